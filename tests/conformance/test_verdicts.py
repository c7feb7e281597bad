from __future__ import annotations

from dafka_conformance.model import Check, Clause, Dialect, Outcome, Role, ScenarioResult, Verdict
from dafka_conformance.verdicts import judge_clauses
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
