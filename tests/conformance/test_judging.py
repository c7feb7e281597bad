"""Verdicts on clauses, and which findings follow from others."""

from __future__ import annotations

import attrs
import pytest

from dafka_conformance.causes import attribute_causes, attribute_missing
from dafka_conformance.model import (
    Check,
    Clause,
    Dialect,
    Event,
    Kind,
    Layer,
    Outcome,
    Role,
    Run,
    ScenarioResult,
    Verdict,
)
from dafka_conformance.report.findings import group_failures
from dafka_conformance.verdicts import judge_clauses
from tests.conformance.run_mutant import CATALOG
from tests.conformance.sample_runs import (
    ACK_SENT,
    CLAUSES,
    DIALECTS,
    FETCH_TOPIC,
    HELLO_ANSWERED,
    RECORD_KEPT,
    failed,
    result,
)

RFC46, LIBDAFKA = DIALECTS


def verdict_of(clause: Clause, *results: ScenarioResult, missing: dict[Role, str] | None = None) -> tuple[str, ...]:
    (verdict,) = judge_clauses([clause], results, [RFC46], missing or {})
    return verdict.verdict.value, *verdict.scenarios, verdict.reason or verdict.reading


def test_every_clause_gets_a_verdict_in_every_dialect_in_order() -> None:
    verdicts = judge_clauses(CLAUSES, [failed()], DIALECTS, {})
    assert [(verdict.clause, verdict.dialect) for verdict in verdicts] == [
        (clause, dialect) for clause in CLAUSES for dialect in DIALECTS
    ]


def test_one_failed_check_decides() -> None:
    assert verdict_of(ACK_SENT, result("b", ACK_SENT), failed("a"), result("c", ACK_SENT)) == ("violates", "a", "")


def test_conforming_clause_names_its_scenarios_once_and_sorted() -> None:
    twice = result("b", ACK_SENT, checks=(Check(ACK_SENT.id, True), Check(ACK_SENT.id, True)))
    unchecked = result("c", ACK_SENT, checks=())
    assert verdict_of(ACK_SENT, twice, result("a", ACK_SENT), unchecked) == ("conforms", "a", "b", "")


def test_check_of_an_unrelated_scenario_counts_in_its_dialect() -> None:
    stray = result("fetch", FETCH_TOPIC, checks=(Check(ACK_SENT.id, False, "wrong"),))
    verdicts = judge_clauses([ACK_SENT], [stray, result("ok", ACK_SENT, dialect=LIBDAFKA)], DIALECTS, {})
    assert [verdict.verdict for verdict in verdicts] == [Verdict.VIOLATES, Verdict.CONFORMS]


def test_optional_clause_is_followed_or_not() -> None:
    not_done = result("b", HELLO_ANSWERED, checks=(Check(HELLO_ANSWERED.id, False, "none came"),))
    assert verdict_of(HELLO_ANSWERED, result("a", HELLO_ANSWERED)) == ("does", "a", "")
    assert verdict_of(HELLO_ANSWERED, result("a", HELLO_ANSWERED), not_done) == ("does not", "b", "")


def test_observed_readings_are_named_once() -> None:
    checks = tuple(Check(FETCH_TOPIC.id, True, reading=reading) for reading in ("partition", "", "requestor"))
    one = result("a", FETCH_TOPIC, checks=checks[:2])
    both = result("b", FETCH_TOPIC, checks=checks)
    assert verdict_of(FETCH_TOPIC, one) == ("conforms", "a", "partition")
    assert verdict_of(FETCH_TOPIC, one, both) == ("conforms", "a", "b", "partition and requestor")
    wrong = result("c", FETCH_TOPIC, checks=(Check(FETCH_TOPIC.id, False, "wrong"),))
    assert verdict_of(FETCH_TOPIC, one, wrong) == ("violates", "c", ""), "it does not follow the reading everywhere"


SKIPPED = result("skipped", ACK_SENT, outcome=Outcome.SKIPPED, checks=(), reason="it cannot be killed")
BROKEN = result("broken", ACK_SENT, outcome=Outcome.BROKEN, checks=(), reason="status 1")
STORELESS = {Role.STORE: "no [store]"}


def test_reason_why_a_clause_was_not_tested() -> None:
    cases: list[tuple[Clause, list[ScenarioResult], dict[Role, str], str]] = [
        (RECORD_KEPT, [], {Role.PRODUCER: ""}, RECORD_KEPT.untestable),
        (ACK_SENT, [SKIPPED], STORELESS, "no target for the role store"),
        (FETCH_TOPIC, [], STORELESS | {Role.CONSUMER: ""}, "no target for the roles consumer and store"),
        (FETCH_TOPIC, [], STORELESS, "no scenario of this run tests it"),
        (ACK_SENT, [SKIPPED, SKIPPED], {}, "it cannot be killed"),
        (ACK_SENT, [BROKEN], {}, "its scenarios failed before its checks"),
        (ACK_SENT, [failed(checks=())], {}, "its scenarios failed before its checks"),
        (ACK_SENT, [SKIPPED, BROKEN], {}, "its scenarios failed before its checks"),
        (ACK_SENT, [failed(dialect=Dialect.LIBDAFKA)], {}, "no scenario of this run tests it"),
    ]
    for clause, results, missing, reason in cases:
        assert verdict_of(clause, *results, missing=missing) == ("not tested", reason)


def test_layers() -> None:
    cases: list[tuple[Layer, str]] = [
        (Layer.FORM, "grammar.RECORD grammar.dialect signature.value version.sent topic-frame.first address.uuid"),
        (Layer.CONNECTION, "subscriber.connects publisher.bound subscription.store.record beacon.sockets"),
        (Layer.ADDRESSING, "topic.ACK topic.DIRECT-RECORD ack.address subject.sent partition.name partition.one"),
        (Layer.NUMBERING, "sequence.first sequence.increment ack.no-gap head.last-offset"),
        (Layer.BEHAVIOR, "ack.sent fetch.count topic.length grammar.traffic signature.discarded subject.exact"),
    ]
    for layer, clauses in cases:
        for clause in clauses.split():
            assert CATALOG.clauses.get(clause).layer is layer, clause


OPTIONAL, DUPLICATE = "subscription.consumer.ack", "nodes.duplicate-record"


def test_finding_of_the_lowest_layer_explains_later_ones_of_higher_layers() -> None:
    cases: list[tuple[list[str], list[str]]] = [
        (["topic.RECORD", "fetch.count", "record.kept-until-ack"], ["", "topic.RECORD", "topic.RECORD"]),
        (["fetch.count", "topic.RECORD", "topic.HEAD"], ["", "", ""]),
        (["sequence.increment", "topic.RECORD", "fetch.count"], ["", "", "topic.RECORD"]),
        ([OPTIONAL, "ack.sent"], ["", ""]),
    ]
    for clauses, causes in cases:
        assert not CATALOG.clauses.get(OPTIONAL).level.is_binding
        found = [Check(clause, False, event=event) for event, clause in enumerate(clauses)]
        assert [check.because for check in attribute_causes(found, CATALOG.clauses)] == causes


def test_findings_about_one_message_follow_from_one_of_them() -> None:
    """That is the one of the lowest layer, then the one that the scenario tests, then the first one."""
    cases: list[tuple[list[str], list[str], list[str]]] = [
        (["grammar.traffic", "topic.FETCH", "signature.value"], [], ["signature.value", "signature.value", ""]),
        (["fetch.count", "direct-record.checked"], [], ["", "fetch.count"]),
        (["direct-record.content", DUPLICATE], [DUPLICATE], [DUPLICATE, ""]),
    ]
    for clauses, tested, causes in cases:
        found = [Check(clause, False, event=0) for clause in clauses]
        assert [check.because for check in attribute_causes(found, CATALOG.clauses, tested)] == causes


@pytest.mark.parametrize(
    "found",
    [
        [Check("topic.FETCH", False, event=0, missing="FETCH"), Check("fetch.sent", False, event=0)],
        [Check("subscriber.connects", False, "it ended by itself"), Check("robust.malformed", False)],
    ],
)
def test_missing_message_explains_nothing(found: list[Check]) -> None:
    assert [check.because for check in attribute_causes(found, CATALOG.clauses)] == ["", ""]


def checked(scenario: str, *checks: Check) -> ScenarioResult:
    clauses = tuple(check.clause for check in checks)
    outcome = Outcome.PASSED if all(check.holds for check in checks) else Outcome.FAILED
    return ScenarioResult(scenario, "A title.", Role.PRODUCER, Dialect.RFC46, clauses, outcome, checks)


FRAME = Check("topic.RECORD", False, "the topic frame is wrong")
CONSEQUENCE = Check("fetch.count", False, "nothing was sent", because="topic.RECORD")


def judged(*results: ScenarioResult) -> Run:
    verdicts = judge_clauses(CATALOG.clauses, results, [Dialect.RFC46], {})
    return Run("sample", 0.0, 0.0, results, verdicts)


def test_clause_that_fails_by_consequence_is_not_judged() -> None:
    run = judged(checked("producer.a", FRAME, CONSEQUENCE), checked("producer.b", Check("fetch.count", True)))
    found = {verdict.clause.id: verdict for verdict in run.verdicts}
    assert found["topic.RECORD"].verdict is Verdict.VIOLATES
    assert (found["fetch.count"].verdict, found["fetch.count"].reason) == (
        Verdict.NOT_JUDGED,
        "because of topic.RECORD",
    )
    assert not run.conforms


def test_clause_that_fails_by_itself_elsewhere_is_violated() -> None:
    own = attrs.evolve(CONSEQUENCE, because="")
    run = judged(checked("producer.a", FRAME, CONSEQUENCE), checked("producer.b", own))
    (found,) = [verdict for verdict in run.verdicts if verdict.clause.id == "fetch.count"]
    assert (found.verdict, found.scenarios) == (Verdict.VIOLATES, ("producer.b",))


def test_scenarios_of_one_cause_are_one_failure_and_come_first() -> None:
    run = judged(
        checked("producer.a", Check("fetch.count", False, "too many")),
        checked("producer.b", FRAME, CONSEQUENCE),
        checked("producer.c", FRAME),
    )
    first, second = group_failures(run)
    assert (first.scenario, first.similar, first.cause) == ("producer.b", ("producer.c",), "topic.RECORD")
    assert (second.scenario, second.similar, second.cause) == ("producer.a", (), "fetch.count")
    assert [finding.is_violation for finding in first.findings] == [True, False]


def missed(scenario: str, clause: str, message: str = "DIRECT-RECORD") -> ScenarioResult:
    return checked(scenario, Check(clause, False, f"no {message} arrived", missing=message))


def causes_of(results: list[ScenarioResult]) -> list[str]:
    return [check.because for each in attribute_missing(results, CATALOG.clauses) for check in each.checks]


def test_message_that_most_scenarios_miss_explains_why_others_miss_it() -> None:
    results = [missed(f"store.{number}", "direct-record.sent") for number in range(2)]
    assert causes_of([*results, missed("store.restart", "robust.malformed")]) == ["", "", "direct-record.sent"]


FETCH_EVENT = Event(0.0, "C", "", Kind.MESSAGE, "FETCH")


def test_fault_of_a_message_in_most_scenarios_explains_why_others_miss_it() -> None:
    fault = Check("topic.FETCH", False, "the topic frame is wrong", event=0)
    faulty = [attrs.evolve(checked(f"consumer.{n}", fault), trace=(FETCH_EVENT,)) for n in range(2)]
    assert causes_of([*faulty, missed("consumer.c", "fetch.sent", "FETCH")]) == ["", "", "topic.FETCH"]
    assert causes_of([*faulty, missed("consumer.c", "ack.sent", "ACK")]) == ["", "", ""]
    assert causes_of([faulty[0], missed("consumer.c", "fetch.sent", "FETCH")]) == ["", ""]


def test_cause_is_the_clause_that_most_scenarios_miss_the_message_for() -> None:
    kept = [missed(f"producer.{number}", "record.kept-until-ack") for number in range(4)]
    other = [missed("producer.again", "direct-record.sent"), missed("producer.vanished", "robust.vanished-peer")]
    assert causes_of([*kept, *other])[4:] == ["record.kept-until-ack", "record.kept-until-ack"]


def test_missing_message_does_not_explain_as_many_findings_or_other_messages() -> None:
    results = [missed("store.a", "direct-record.sent"), missed("store.b", "robust.malformed")]
    assert causes_of(results) == ["", ""]
    results = [missed(f"store.{number}", "direct-record.sent") for number in range(4)]
    assert causes_of([*results, missed("store.c", "ack.durable", "DIRECT-HEAD")])[4:] == [""]
