"""Grouping, running and judging of scenarios, with scripted scenarios and targets."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
import trio.testing

from dafka_conformance import group_runner
from dafka_conformance.catalog import Catalog, UnknownScenarioError
from dafka_conformance.clauses import Clauses
from dafka_conformance.grammar import Grammar
from dafka_conformance.grammar.record_batches import BatchRecord
from dafka_conformance.group_runner import BROKEN_COUNT, GROUP_SCENARIOS_MAX, ProgressListener, group_scenarios
from dafka_conformance.model import Dialect, Outcome, Role, Run, Verdict
from dafka_conformance.repeats import StallMonitor
from dafka_conformance.report.findings import group_failures
from dafka_conformance.runner import run
from dafka_conformance.scenario import Scenario
from dafka_conformance.targets import Ability, Node, Request, TargetError
from dafka_conformance.targets.embedded import EmbeddedTarget
from dafka_conformance.testbed.testbed import Testbed

RFC46 = [Dialect.RFC46]


async def passes(testbed: Testbed) -> None:
    await trio.lowlevel.checkpoint()


def scenario(name: str, play: Callable[[Testbed], Awaitable[None]] = passes, **options: object) -> Scenario:
    role = next(role for role in Role if role.title == name.partition(".")[0])
    made = Scenario(name, "A title.", role, ("ack.sent", "ack.no-gap"), play)
    return attrs.evolve(made, **options)  # type: ignore[arg-type]


def catalog(*scenarios: Scenario) -> Catalog:
    return Catalog(Grammar.load(), Clauses.load(), {each.name: each for each in scenarios})


class CountingTarget(EmbeddedTarget):
    """A target that counts its starts, and how many nodes run at once."""

    def __init__(self) -> None:
        super().__init__()
        self.starts_target = 0
        self.running = 0
        self.running_max = 0

    @asynccontextmanager
    async def start(self, request: Request) -> AsyncIterator[Node]:
        self.starts_target += 1
        self.running += 1
        self.running_max = max(self.running, self.running_max)
        try:
            async with super().start(request) as node:
                yield node
        finally:
            self.running -= 1


async def test_passed_scenario_conforms_to_all_its_clauses() -> None:
    finished = await run(catalog(scenario("store.a")), EmbeddedTarget(), dialects=RFC46)
    assert finished.conforms
    assert [result.outcome for result in finished.results] == [Outcome.PASSED]
    verdicts = {verdict.clause.id: verdict.verdict for verdict in finished.verdicts}
    assert verdicts["ack.sent"] is verdicts["ack.no-gap"] is Verdict.CONFORMS
    assert verdicts["fetch.sent"] is Verdict.NOT_TESTED


async def test_target_is_prepared_once_around_all_its_nodes() -> None:
    seen: list[str] = []

    class PreparedTarget(EmbeddedTarget):
        @asynccontextmanager
        async def prepared(self) -> AsyncIterator[None]:
            seen.append("prepared")
            yield
            seen.append("over")

    async def notes(testbed: Testbed) -> None:
        assert testbed.node is not None
        seen.append("node")

    await run(catalog(scenario("store.a", notes), scenario("store.b", notes)), PreparedTarget(), dialects=RFC46)
    assert seen == ["prepared", "node", "node", "over"]


async def test_failed_scenario_violates_the_failed_clause_only() -> None:
    async def fails(testbed: Testbed) -> None:
        testbed.require_clause("ack.no-gap", False, "a fault")

    finished = await run(catalog(scenario("store.a", fails)), EmbeddedTarget(), dialects=RFC46)
    assert not finished.conforms
    verdicts = {verdict.clause.id: verdict for verdict in finished.verdicts}
    assert verdicts["ack.no-gap"].verdict is Verdict.VIOLATES
    assert (verdicts["ack.sent"].verdict, verdicts["ack.sent"].reason) == (
        Verdict.NOT_TESTED,
        "its scenarios failed before its checks",
    )


async def test_optional_clause_does_not_fail_a_scenario() -> None:
    async def observes(testbed: Testbed) -> None:
        testbed.check_clause("subscription.consumer.ack", False, "it does not")

    finished = await run(catalog(scenario("consumer.a", observes)), EmbeddedTarget(), dialects=RFC46)
    assert finished.conforms
    assert finished.results[0].outcome is Outcome.PASSED


async def test_reading_that_holds_is_the_default() -> None:
    finished = await run(catalog(scenario("store.a", clauses=("ack.cumulative",))), EmbeddedTarget(), dialects=RFC46)
    (verdict,) = [verdict for verdict in finished.verdicts if verdict.clause.id == "ack.cumulative"]
    assert verdict.reading == "cumulative"


async def test_scenarios_share_a_target_until_one_fails() -> None:
    async def fails(testbed: Testbed) -> None:
        testbed.require_clause("ack.sent", False, "a fault")

    target = CountingTarget()
    shared = [scenario(f"store.{name}", fails if name == "c" else passes, shares_target=True) for name in "abcdef"]
    finished = await run(catalog(*shared), target, dialects=RFC46)
    assert [result.outcome.value for result in finished.results] == ["passed"] * 2 + ["failed"] + ["passed"] * 3
    assert target.starts_target == 2


async def test_other_scenarios_have_their_own_targets_up_to_the_limit() -> None:
    target = CountingTarget()
    await run(catalog(*[scenario(f"store.{number}") for number in range(6)]), target, dialects=RFC46, jobs=2)
    assert (target.starts_target, target.running_max) == (6, 2)


async def test_scenarios_that_run_alone() -> None:
    target = CountingTarget()
    alone: list[int] = []

    async def looks(testbed: Testbed) -> None:
        await trio.lowlevel.checkpoint()
        alone.append(target.running)

    scenarios = [scenario("store.heavy", looks, runs_alone=True), *[scenario(f"store.{number}") for number in range(4)]]
    await run(catalog(*scenarios), target, dialects=RFC46)
    assert alone == [1]
    assert target.running_max > 1


def test_groups_are_bounded() -> None:
    shared = [scenario(f"store.{number}", shares_target=True) for number in range(GROUP_SCENARIOS_MAX + 1)]
    sizes = [len(each.scenarios) for each in group_scenarios([*shared, scenario("store.alone")], Dialect.RFC46)]
    assert sizes == [GROUP_SCENARIOS_MAX, 1, 1]


class LackingTarget(EmbeddedTarget):
    """A target with only a store, which cannot be killed."""

    def __init__(self) -> None:
        super().__init__()
        self.name = "lacking"
        self.dialects = (Dialect.RFC46,)
        self.abilities = {Role.STORE: frozenset({Ability.START})}


async def test_missing_ability_is_skipped_with_a_reason() -> None:
    needs_kill = scenario("store.a", needs=frozenset({Ability.KILL}), clauses=("ack.durable",))
    finished = await run(catalog(needs_kill, scenario("consumer.b")), LackingTarget())
    (result,) = finished.results
    reason = "lacking has no way to kill it and start it again with the same storage"
    assert (result.outcome, result.reason) == (Outcome.SKIPPED, reason)
    assert finished.missing_roles[Role.CONSUMER] == "lacking has no consumer"
    verdicts = {verdict.clause.id: verdict.reason for verdict in finished.verdicts}
    assert verdicts["ack.durable"] == reason
    assert verdicts["get-heads.sent"] == "no target for the role consumer"
    assert {verdict.dialect for verdict in finished.verdicts} == {Dialect.RFC46}


class BrokenTarget(EmbeddedTarget):
    """A target that cannot be started."""

    @asynccontextmanager
    async def start(self, request: Request) -> AsyncIterator[Node]:
        await trio.lowlevel.checkpoint()
        raise TargetError("there is no such program")
        yield


async def test_target_that_cannot_be_started_is_broken_and_does_not_conform() -> None:
    finished = await run(catalog(scenario("store.a"), scenario("store.b")), BrokenTarget(), dialects=RFC46)
    assert [(result.outcome, result.reason) for result in finished.results] == [
        (Outcome.BROKEN, "there is no such program")
    ] * 2
    assert not finished.conforms


class EndedNode(Node):
    """A node that has ended before it sent anything."""

    def __init__(self) -> None:
        super().__init__()
        self.exit_reason = "exit status 3: out of luck"
        self.ended.set()

    async def feed(self, contents: Sequence[bytes]) -> None:
        raise TargetError(self.exit_reason)

    async def end_input(self) -> None:
        await trio.lowlevel.checkpoint()

    async def kill(self) -> None:
        await trio.lowlevel.checkpoint()


class DyingTarget(EmbeddedTarget):
    """A target that ends as soon as it is started."""

    @asynccontextmanager
    async def start(self, request: Request) -> AsyncIterator[Node]:
        await trio.lowlevel.checkpoint()
        yield EndedNode()


async def test_target_that_dies_fails_the_scenario_with_its_exit_reason() -> None:
    async def needs_it(testbed: Testbed) -> None:
        assert testbed.node is not None
        testbed.node.exit_reason = "exit status 3: out of luck"
        testbed.node.ended.set()
        await testbed.expect("ACK", "ack.sent")

    finished = await run(catalog(scenario("store.a", needs_it)), EmbeddedTarget(), dialects=RFC46)
    (result,) = finished.results
    assert result.outcome is Outcome.FAILED
    assert "the store ended by itself: exit status 3: out of luck" in [check.message for check in result.checks][-1]


async def test_target_that_ends_at_once_is_broken_and_its_other_scenarios_are_skipped() -> None:
    names = [f"store.{number}" for number in range(BROKEN_COUNT + 2)]
    finished = await run(catalog(*map(scenario, names)), DyingTarget(), dialects=RFC46, jobs=1)
    reasons = Counter((result.outcome, result.reason) for result in finished.results)
    ended = "the store ended by itself before its first beacon: exit status 3: out of luck"
    assert reasons == {
        (Outcome.BROKEN, ended): BROKEN_COUNT,
        (Outcome.SKIPPED, f"the store could not be run in {BROKEN_COUNT} scenarios"): 2,
    }
    (failure,) = group_failures(finished)
    assert failure.count == BROKEN_COUNT
    assert not finished.conforms


@pytest.mark.parametrize(("is_stalled", "is_passed"), [(True, True), (False, False)])
async def test_scenario_that_fails_during_a_stall_is_repeated(
    is_stalled: bool, is_passed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = 0
    repeated = []

    async def fail_at_first(testbed: Testbed) -> None:
        nonlocal attempts
        await trio.lowlevel.checkpoint()
        attempts += 1
        monkeypatch.setattr(StallMonitor, "has_stalled_since", lambda _self, _begin: is_stalled and attempts == 1)
        testbed.check_clause("ack.sent", attempts > 1, "no ACK arrived")

    listener = ProgressListener(repeated=lambda result: repeated.append(result.outcome))
    finished = await run(
        catalog(scenario("store.a", fail_at_first)), EmbeddedTarget(), dialects=RFC46, listener=listener
    )
    assert [result.outcome is Outcome.PASSED for result in finished.results] == [is_passed]
    assert finished.conforms == is_passed
    assert len(repeated) == attempts - 1 == int(is_stalled)


async def test_violation_that_is_certain_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: Counter[str] = Counter()

    def failing(name: str) -> Scenario:
        async def fail(testbed: Testbed) -> None:
            await trio.lowlevel.checkpoint()
            attempts[name] += 1
            monkeypatch.setattr(StallMonitor, "has_stalled_since", lambda _self, _begin: name == "store.b")
            testbed.check_clause("ack.sent", False, "no ACK arrived")

        return scenario(name, fail)

    both = catalog(failing("store.a"), failing("store.b"))
    finished = await run(both, EmbeddedTarget(), dialects=RFC46, jobs=1)
    assert attempts == {"store.a": 1, "store.b": 1}
    assert [result.outcome for result in finished.results] == [Outcome.FAILED] * 2


async def test_listener_hears_of_every_scenario() -> None:
    progress: list[str] = []
    listener = ProgressListener(
        lambda name, dialect: progress.append(f"{name} {dialect.value}"),
        lambda result: progress.append(result.scenario),
    )
    await run(catalog(scenario("store.a")), EmbeddedTarget(), dialects=RFC46, listener=listener)
    assert progress == ["store.a rfc46", "store.a"]


def test_selection() -> None:
    scenarios = catalog(scenario("store.a"), scenario("store.b", dialects=(Dialect.LIBDAFKA,)), scenario("consumer.a"))

    def names(roles: Iterable[Role] = tuple(Role), dialect: Dialect | None = None, *patterns: str) -> list[str]:
        return [each.name for each in scenarios.select(roles, dialect, patterns)]

    assert names() == ["store.a", "store.b", "consumer.a"]
    assert names([Role.STORE]) == ["store.a", "store.b"]
    assert names(tuple(Role), Dialect.RFC46) == ["store.a", "consumer.a"]
    assert names(tuple(Role), None, "*.a") == ["store.a", "consumer.a"]
    with pytest.raises(UnknownScenarioError, match="there is no scenario store"):
        scenarios.get("store.c")


def test_catalog_tests_every_clause_and_no_unknown_one() -> None:
    whole = Catalog.load()
    named = {clause for each in whole.scenarios.values() for clause in each.clauses}
    assert named <= {clause.id for clause in whole.clauses}
    assert len(whole.scenarios) > 500


async def test_exception_in_a_scenario_is_its_result() -> None:
    async def crashes(testbed: Testbed) -> None:
        async with trio.open_nursery():
            raise ValueError("zip() argument 2 is shorter")

    finished = await run(catalog(scenario("store.a", crashes), scenario("store.b")), EmbeddedTarget(), dialects=RFC46)
    crashed, passed = finished.results
    assert (crashed.outcome, passed.outcome) == (Outcome.ERROR, Outcome.PASSED)
    assert crashed.reason.startswith("ValueError: zip() argument 2 is shorter (test_runner.py:")
    assert not finished.conforms


class LineTarget(EmbeddedTarget):
    """A target whose input and output are lines."""

    def carries(self, role: Role, content: bytes) -> bool:
        return b"\n" not in content


@pytest.mark.parametrize("is_batch", [False, True])
async def test_value_that_the_output_of_a_target_cannot_carry_is_a_fault_of_the_scenario(is_batch: bool) -> None:
    """No line of the output could be that value, so that every target would seem to have lost a record."""

    async def sends(testbed: Testbed) -> None:
        producer = await testbed.add_peer("P")
        await testbed.wait_subscribed(producer, "RECORD", producer.topic)
        if is_batch:
            producer.send_batch(0, [BatchRecord(b"two\nlines", b"key")])
        else:
            producer.partition.add(0, b"two\nlines")
            await producer.send_records([0])

    for target, outcome in ((EmbeddedTarget(), Outcome.PASSED), (LineTarget(), Outcome.ERROR)):
        finished = await run(catalog(scenario("consumer.a", sends)), target, dialects=RFC46)
        (result,) = finished.results
        assert result.outcome is outcome
    assert result.reason.startswith("UncarriedError: the target's output cannot carry the value b'two\\nlines'")
    assert not [check for check in result.checks if not check.holds], "no verdict on the target"


async def test_value_that_the_input_of_a_target_cannot_carry_is_a_fault_of_the_scenario() -> None:
    async def feeds(testbed: Testbed) -> None:
        await testbed.feed([b"one line", b"two\nlines"])

    finished = await run(catalog(scenario("producer.a", feeds)), LineTarget(), dialects=RFC46)
    (result,) = finished.results
    assert result.outcome is Outcome.ERROR
    assert result.reason.startswith("UncarriedError: the target's input cannot carry the value b'two\\nlines'")


async def test_store_is_sent_any_value() -> None:
    async def sends(testbed: Testbed) -> None:
        producer = await testbed.add_peer("P")
        await testbed.wait_subscribed(producer, "RECORD", producer.topic)
        producer.partition.add(0, b"two\nlines")
        await producer.send_records([0])

    finished = await run(catalog(scenario("store.a", sends)), LineTarget(), dialects=RFC46)
    assert [result.outcome for result in finished.results] == [Outcome.PASSED]


async def test_clause_whose_scenario_crashed_is_not_tested() -> None:
    async def crashes(testbed: Testbed) -> None:
        raise KeyError("no such peer")

    finished = await run(catalog(scenario("store.a", crashes)), EmbeddedTarget(), dialects=RFC46)
    (verdict,) = [verdict for verdict in finished.verdicts if verdict.clause.id == "ack.sent"]
    assert (verdict.verdict, verdict.reason) == (Verdict.NOT_TESTED, "the suite itself failed in store.a")


async def test_unmet_requirement_in_a_nursery_is_a_failure() -> None:
    async def fails(testbed: Testbed) -> None:
        async with trio.open_nursery():
            testbed.require_clause("ack.sent", False, "a fault")

    finished = await run(catalog(scenario("store.a", fails)), EmbeddedTarget(), dialects=RFC46)
    assert finished.results[0].outcome is Outcome.FAILED


@pytest.mark.parametrize("when", ["at the start", "during the scenario", "at the end"])
async def test_exception_around_a_target_spoils_its_scenario_only(when: str) -> None:
    class CrashingTarget(CountingTarget):
        @asynccontextmanager
        async def start(self, request: Request) -> AsyncIterator[Node]:
            crash = OSError(f"crashed {when}")
            async with super().start(request) as node, trio.open_nursery() as nursery:
                if self.starts_target == 1 and when == "at the start":
                    raise crash
                if self.starts_target == 1 and when == "during the scenario":
                    nursery.start_soon(self.crash_soon, crash)
                yield node
                nursery.cancel_scope.cancel()
            if self.starts_target == 1 and when == "at the end":
                raise crash

        async def crash_soon(self, crash: OSError) -> None:
            await trio.lowlevel.checkpoint()
            raise crash

    async def waits(testbed: Testbed) -> None:
        if when == "during the scenario" and target.starts_target == 1:
            await trio.sleep_forever()

    target = CrashingTarget()
    scenarios = [scenario(f"store.{name}", waits, shares_target=True) for name in "abc"]
    finished = await run(catalog(*scenarios), target, dialects=RFC46, jobs=1)
    spoiled = 2 if when == "at the end" else 0
    assert [result.outcome.value for result in finished.results] == [
        "error" if number == spoiled else "passed" for number in range(3)
    ]
    assert f"OSError: crashed {when}" in finished.results[spoiled].reason


@pytest.mark.parametrize("fail_fast", [False, True])
async def test_role_whose_messages_are_malformed_is_left_early_if_asked(fail_fast: bool) -> None:
    async def malformed(testbed: Testbed) -> None:
        testbed.require_clause("topic.ACK", False, "a fault")

    scenarios = [scenario(f"store.{name}", malformed) for name in "abcde"] + [scenario("consumer.a")]
    finished = await run(catalog(*scenarios), EmbeddedTarget(), dialects=RFC46, jobs=1, fail_fast=fail_fast)
    outcomes = Counter(result.outcome.value for result in finished.results)
    assert outcomes == ({"failed": 3, "skipped": 2, "passed": 1} if fail_fast else {"failed": 5, "passed": 1})
    reasons = {result.reason for result in finished.results if result.outcome is Outcome.SKIPPED}
    assert reasons == ({"3 scenarios in a row violated topic.ACK"} if fail_fast else set())


async def test_different_faults_and_faults_of_behavior_do_not_end_a_role_early() -> None:
    def violates(clause: str) -> Callable[[Testbed], Awaitable[None]]:
        async def fails(testbed: Testbed) -> None:
            testbed.require_clause(clause, False, "a fault")

        return fails

    scenarios = [scenario(f"store.{name}", violates("ack.sent")) for name in "abcd"]
    faults = ["FETCH", "HEAD", "FETCH", "HEAD"]
    shared = [
        scenario(f"consumer.{number}", violates(f"topic.{name}"), shares_target=True)
        for number, name in enumerate(faults)
    ]
    finished = await run(catalog(*scenarios, *shared), EmbeddedTarget(), dialects=RFC46, jobs=1, fail_fast=True)
    assert {result.outcome for result in finished.results} == {Outcome.FAILED}


async def hangs(_testbed: Testbed) -> None:
    await trio.sleep_forever()


async def interrupted(doubtful: bool, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a run that is interrupted after a failure, during a stall or not."""
    scope = trio.CancelScope()

    async def fails(testbed: Testbed) -> None:
        testbed.require_clause("ack.sent", False, "a fault")

    monkeypatch.setattr(StallMonitor, "has_stalled_since", lambda _self, _begin: doubtful)
    scenarios = [scenario("store.a", fails), scenario("store.b", hangs)]
    listener = ProgressListener(finished=lambda _result: scope.cancel())
    return await run(catalog(*scenarios), EmbeddedTarget(), dialects=RFC46, jobs=2, listener=listener, scope=scope)


@pytest.mark.parametrize(("doubtful", "outcomes"), [(False, ["failed", "skipped"]), (True, ["skipped", "skipped"])])
async def test_interrupted_run_has_what_it_found_without_a_stall(
    doubtful: bool, outcomes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    finished = await interrupted(doubtful, monkeypatch)
    assert [result.outcome.value for result in finished.results] == outcomes
    skipped = [result.reason for result in finished.results if result.outcome is Outcome.SKIPPED]
    assert set(skipped) == {"the run was interrupted"}
    assert not finished.is_complete
    assert not finished.conforms


async def test_run_that_is_interrupted_before_a_repeat_is_not_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    scope = trio.CancelScope()
    attempts = 0

    async def fails_and_hangs(testbed: Testbed) -> None:
        nonlocal attempts
        attempts += 1
        if attempts > 1:
            scope.cancel()
            await trio.sleep_forever()
        testbed.require_clause("ack.sent", False, "a fault")

    monkeypatch.setattr(StallMonitor, "has_stalled_since", lambda _self, _begin: True)
    one = catalog(scenario("store.a", fails_and_hangs))
    finished = await run(one, EmbeddedTarget(), dialects=RFC46, scope=scope)
    assert [(result.outcome, result.reason) for result in finished.results] == [
        (Outcome.SKIPPED, "the run was interrupted")
    ]
    assert not finished.is_complete


async def test_scenario_that_fails_in_stalls_only_is_repeated_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = 0

    async def fails_twice(testbed: Testbed) -> None:
        nonlocal attempts
        await trio.lowlevel.checkpoint()
        attempts += 1
        testbed.check_clause("ack.sent" if attempts == 1 else "ack.no-gap", attempts > 2, "a fault")

    monkeypatch.setattr(StallMonitor, "has_stalled_since", lambda _self, _begin: True)
    finished = await run(catalog(scenario("store.a", fails_twice)), EmbeddedTarget(), dialects=RFC46)
    assert attempts == 3
    assert finished.conforms


async def test_scenario_that_hangs_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_runner, "SCENARIO_TIMEOUT_S", 1.0)
    finished = await run(catalog(scenario("store.a", hangs)), EmbeddedTarget(), dialects=RFC46)
    assert [check.message for check in finished.results[0].checks if not check.holds] == [
        "the scenario did not end within 1 s"
    ]


async def test_stall_does_not_count_to_a_time_limit(mock_clock: trio.testing.MockClock) -> None:
    stalls = StallMonitor()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stalls.run)
        await trio.testing.wait_all_tasks_blocked()
        begin = trio.current_time()
        with stalls.limit(10.0):
            mock_clock.jump(60.0)
            await trio.testing.wait_all_tasks_blocked()
        assert stalls.has_stalled_since(begin)
        mock_clock.autojump_threshold = 0
        await trio.sleep(1.0)
        begin = trio.current_time()
        with pytest.raises(trio.TooSlowError), stalls.limit(10.0):
            await trio.sleep_forever()
        assert 9.0 < trio.current_time() - begin <= 10.5
        assert not stalls.has_stalled_since(begin)
        nursery.cancel_scope.cancel()
