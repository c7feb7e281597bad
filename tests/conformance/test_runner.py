"""Grouping, running and judging of scenarios, with scripted scenarios and targets."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import product
from random import Random
from typing import Any, TypeAlias

import attrs
import pytest
import trio
import trio.testing

from dafka_conformance import group_runner
from dafka_conformance.catalog import Catalog, UnknownScenarioError
from dafka_conformance.clauses import Clauses
from dafka_conformance.grammar import Grammar
from dafka_conformance.grammar.record_batches import BatchRecord
from dafka_conformance.group_runner import (
    BROKEN_COUNT,
    GROUP_SCENARIOS_MAX,
    SPOILED_COUNT,
    ProgressListener,
    Spoiled,
    group_scenarios,
)
from dafka_conformance.model import Check, Dialect, Outcome, Role, Run, ScenarioResult, Verdict
from dafka_conformance.repeats import StallMonitor
from dafka_conformance.report.findings import group_failures
from dafka_conformance.runner import run
from dafka_conformance.scenario import Scenario
from dafka_conformance.targets import Ability, Node, Request, Target, TargetError
from dafka_conformance.targets.embedded import EmbeddedTarget
from dafka_conformance.testbed.testbed import Testbed
from tests.conformance.sample_targets import LineTarget

Play: TypeAlias = Callable[[Testbed], Awaitable[None]]
Stall: TypeAlias = Callable[[bool], None]


async def passes(testbed: Testbed) -> None:
    await trio.lowlevel.checkpoint()


async def hangs(testbed: Testbed) -> None:
    await trio.sleep_forever()


def violates(clause: str) -> Play:
    async def fail(testbed: Testbed) -> None:
        testbed.require_clause(clause, False, "a fault")

    return fail


def scenario(name: str, play: Play = passes, **options: object) -> Scenario:
    role = next(role for role in Role if role.title == name.partition(".")[0])
    made = Scenario(name, "A title.", role, ("ack.sent", "ack.no-gap"), play)
    return attrs.evolve(made, **options)  # type: ignore[arg-type]


def catalog(*scenarios: Scenario) -> Catalog:
    return Catalog(Grammar.load(), Clauses.load(), {each.name: each for each in scenarios})


async def play(*scenarios: Scenario, target: Target | None = None, **options: Any) -> Run:
    """Run scenarios in one dialect, on the embedded roles if no target is given."""
    return await run(catalog(*scenarios), target or EmbeddedTarget(), dialects=[Dialect.RFC46], **options)


def outcomes(finished: Run) -> list[str]:
    return [result.outcome.value for result in finished.results]


@pytest.fixture(autouse=True)
def stall(monkeypatch: pytest.MonkeyPatch) -> Stall:
    """Return the function that says whether the machine has stalled; without a call it never has."""

    def set_stalled(has_stalled: bool) -> None:
        monkeypatch.setattr(StallMonitor, "has_stalled_since", lambda _self, _begin: has_stalled)

    set_stalled(False)
    return set_stalled


# Outcomes


async def fails_in_a_nursery(testbed: Testbed) -> None:
    async with trio.open_nursery():
        testbed.require_clause("ack.no-gap", False, "a fault")


async def crashes(testbed: Testbed) -> None:
    async with trio.open_nursery():
        raise ValueError("zip() argument 2 is shorter")


async def observes(testbed: Testbed) -> None:
    testbed.check_clause("subscription.consumer.ack", False, "it does not")


async def sees_the_target_die(testbed: Testbed) -> None:
    assert testbed.node is not None
    testbed.node.exit_reason = "exit status 3: out of luck"
    testbed.node.ended.set()
    await testbed.expect("ACK", "ack.no-gap")


UNTESTED = Verdict.NOT_TESTED, "its scenarios failed before its checks"
CRASHED = Verdict.NOT_TESTED, "the suite itself failed in store.a"
FULFILLED, VIOLATED = (Verdict.CONFORMS, ""), (Verdict.VIOLATES, "")


async def test_scenario_decides_on_its_clauses() -> None:
    cases: list[tuple[str, Play, Outcome, tuple[Verdict, str], tuple[Verdict, str]]] = [
        ("store.a", passes, Outcome.PASSED, FULFILLED, FULFILLED),
        ("consumer.a", observes, Outcome.PASSED, FULFILLED, FULFILLED),
        ("store.a", violates("ack.no-gap"), Outcome.FAILED, UNTESTED, VIOLATED),
        ("store.a", fails_in_a_nursery, Outcome.FAILED, UNTESTED, VIOLATED),
        ("store.a", sees_the_target_die, Outcome.FAILED, UNTESTED, VIOLATED),
        ("store.a", crashes, Outcome.ERROR, CRASHED, CRASHED),
    ]
    for name, played, outcome, sent, no_gap in cases:
        finished = await play(scenario(name, played))
        (result,) = finished.results
        assert (result.outcome, finished.conforms) == (outcome, outcome is Outcome.PASSED)
        verdicts = {each.clause.id: (each.verdict, each.reason) for each in finished.verdicts}
        assert (verdicts["ack.sent"], verdicts["ack.no-gap"]) == (sent, no_gap)
        assert verdicts["fetch.sent"][0] is Verdict.NOT_TESTED
        if played is crashes:
            assert result.reason.startswith("ValueError: zip() argument 2 is shorter (test_runner.py:")
        if played is sees_the_target_die:
            assert "the store ended by itself: exit status 3: out of luck" in result.checks[-1].message


async def test_reading_that_holds_is_the_default() -> None:
    finished = await play(scenario("store.a", clauses=("ack.cumulative",)))
    assert [each.reading for each in finished.verdicts if each.clause.id == "ack.cumulative"] == ["cumulative"]


async def test_scenario_that_hangs_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_runner, "SCENARIO_TIMEOUT_S", 0.5)
    finished = await play(scenario("store.a", hangs))
    assert [check.message for check in finished.results[0].checks if not check.holds] == [
        "the scenario did not end within 0.5 s"
    ]


# Targets


class CountingTarget(EmbeddedTarget):
    """A target that counts its starts, and how many nodes run at once."""

    def __init__(self) -> None:
        super().__init__()
        self.prepared_count = 0
        self.starts_target = 0
        self.running = 0
        self.running_max = 0

    @asynccontextmanager
    async def prepared(self) -> AsyncIterator[None]:
        self.prepared_count += 1
        yield
        assert self.running == 0

    @asynccontextmanager
    async def start(self, request: Request) -> AsyncIterator[Node]:
        assert self.prepared_count == 1
        self.starts_target += 1
        self.running += 1
        self.running_max = max(self.running, self.running_max)
        try:
            async with super().start(request) as node:
                yield node
        finally:
            self.running -= 1


@pytest.mark.parametrize("seed", range(3))
async def test_each_scenario_runs_once_on_no_more_targets_than_needed(seed: int) -> None:
    """Scenarios that may share a target use it until one fails. Others get their own, and some run alone."""
    random, target = Random(seed), CountingTarget()
    heard: Counter[str] = Counter()
    running_with_heavy: set[int] = set()

    async def looks(testbed: Testbed) -> None:
        await trio.lowlevel.checkpoint()
        running_with_heavy.add(target.running)

    failing = {f"store.{number}" for number in range(8) if random.random() < 0.3}
    shared = [f"store.{number}" for number in range(8) if random.random() < 0.5]
    scenarios = [
        scenario(name, violates("ack.sent") if name in failing else passes, shares_target=name in shared)
        for name in (f"store.{number}" for number in range(8))
    ]
    listener = ProgressListener(
        lambda name, dialect: heard.update([f"{name} {dialect.value}"]), lambda result: heard.update([result.scenario])
    )
    heavy = scenario("store.heavy", looks, runs_alone=True)
    finished = await play(heavy, *scenarios, target=target, jobs=2, listener=listener)
    names = [*(each.name for each in scenarios), heavy.name]
    assert [(each.scenario, each.outcome) for each in finished.results] == [
        (name, Outcome.FAILED if name in failing else Outcome.PASSED) for name in names
    ]
    starts_for_shared = 1 + len(failing & set(shared[:-1])) if shared else 0
    assert target.starts_target == starts_for_shared + len(names) - len(shared)
    assert (target.running_max, running_with_heavy) == (2, {1})
    assert heard == Counter([*names, *(f"{name} rfc46" for name in names)])


def test_groups_are_bounded() -> None:
    shared = [scenario(f"store.{number}", shares_target=True) for number in range(GROUP_SCENARIOS_MAX + 1)]
    sizes = [len(each.scenarios) for each in group_scenarios([*shared, scenario("store.alone")], Dialect.RFC46)]
    assert sizes == [GROUP_SCENARIOS_MAX, 1, 1]


async def test_missing_ability_is_skipped_with_a_reason() -> None:
    needs_kill = scenario("store.a", needs=frozenset({Ability.KILL}), clauses=("ack.durable",))
    target = EmbeddedTarget()
    target.name, target.dialects, target.abilities = (
        "lacking",
        (Dialect.RFC46,),
        {Role.STORE: frozenset({Ability.START})},
    )
    finished = await run(catalog(needs_kill, scenario("consumer.b")), target)
    (result,) = finished.results
    reason = "lacking has no way to kill it and start it again with the same storage"
    assert (result.outcome, result.reason) == (Outcome.SKIPPED, reason)
    assert finished.missing_roles[Role.CONSUMER] == "lacking has no consumer"
    verdicts = {verdict.clause.id: verdict.reason for verdict in finished.verdicts}
    assert verdicts["ack.durable"] == reason
    assert verdicts["get-heads.sent"] == "no target for the role consumer"
    assert {verdict.dialect for verdict in finished.verdicts} == {Dialect.RFC46}


class BrokenTarget(EmbeddedTarget):
    """A target that cannot be started, or not again."""

    def __init__(self, starts: int = 0) -> None:
        super().__init__()
        self.starts = starts

    @asynccontextmanager
    async def start(self, request: Request) -> AsyncIterator[Node]:
        self.starts -= 1
        if self.starts < 0:
            raise TargetError("there is no such program")
        async with super().start(request) as node:
            yield node


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


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        (BrokenTarget(), "there is no such program"),
        (DyingTarget(), "the store ended by itself before its first beacon: exit status 3: out of luck"),
    ],
)
async def test_target_that_does_not_run_is_broken_and_its_other_scenarios_are_skipped(
    target: Target, reason: str
) -> None:
    scenarios = [scenario(f"store.{number}") for number in range(BROKEN_COUNT + 2)]
    finished = await play(*scenarios, target=target, jobs=1)
    assert Counter((result.outcome, result.reason) for result in finished.results) == {
        (Outcome.BROKEN, reason): BROKEN_COUNT,
        (Outcome.SKIPPED, f"the store could not be run in {BROKEN_COUNT} scenarios"): 2,
    }
    (failure,) = group_failures(finished)
    assert failure.count == BROKEN_COUNT
    assert not finished.conforms


async def test_target_that_has_run_once_may_run_again() -> None:
    scenarios = [scenario(f"store.{number}") for number in range(BROKEN_COUNT + 2)]
    finished = await play(*scenarios, target=BrokenTarget(starts=1), jobs=1)
    assert Counter(outcomes(finished)) == Counter(passed=1, broken=BROKEN_COUNT + 1)


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
    finished = await play(*(scenario(f"store.{name}", waits, shares_target=True) for name in "abc"), target=target)
    spoiled = 2 if when == "at the end" else 0
    assert outcomes(finished) == ["error" if number == spoiled else "passed" for number in range(3)]
    assert f"OSError: crashed {when}" in finished.results[spoiled].reason


async def sends_lines(testbed: Testbed, in_batch: bool = False) -> None:
    producer = await testbed.add_peer("P")
    await testbed.wait_subscribed(producer, "RECORD", producer.topic)
    if in_batch:
        producer.send_batch(0, [BatchRecord(b"two\nlines", b"key")])
        return
    producer.partition.add(0, b"two\nlines")
    await producer.send_records([0])


sends_a_batch_of_lines = partial(sends_lines, in_batch=True)


async def feeds_lines(testbed: Testbed) -> None:
    await testbed.feed([b"one line", b"two\nlines"])


async def test_value_that_a_target_cannot_carry_is_a_fault_of_the_scenario() -> None:
    """No line of the output could be that value, so that every target would seem to have lost a record."""
    cases: list[tuple[Target, str, Play, str]] = [
        (EmbeddedTarget(), "consumer.a", sends_lines, ""),
        (LineTarget(), "consumer.a", sends_lines, "output"),
        (EmbeddedTarget(), "consumer.a", sends_a_batch_of_lines, ""),
        (LineTarget(), "consumer.a", sends_a_batch_of_lines, "output"),
        (LineTarget(), "producer.a", feeds_lines, "input"),
        (LineTarget(), "store.a", sends_lines, ""),
    ]
    for target, name, played, direction in cases:
        (result,) = (await play(scenario(name, played), target=target)).results
        assert result.outcome is (Outcome.ERROR if direction else Outcome.PASSED)
        if direction:
            assert f"UncarriedError: the target's {direction} cannot carry the value b'two\\nlines'" in result.reason
        assert not [check for check in result.checks if not check.holds], "no verdict on the target"


# What is repeated, or left out


@pytest.mark.parametrize(
    ("attempts", "conforms"),
    [
        ([(False, "ack.sent")], False),
        ([(True, "ack.sent"), (False, "")], True),
        ([(True, "ack.sent"), (True, "")], True),
        ([(True, "ack.sent"), (False, "ack.sent")], False),
        ([(True, "ack.sent"), (True, "ack.sent")], False),
        ([(True, "ack.sent"), (True, "ack.no-gap"), (True, "")], True),
        ([(True, "ack.sent"), (True, "ack.no-gap"), (True, "fetch.sent")], False),
    ],
)
async def test_scenario_that_fails_during_a_stall_is_repeated(
    attempts: list[tuple[bool, str]], conforms: bool, stall: Stall
) -> None:
    """Each attempt is whether the machine stalls, and the clause that is violated then."""
    waiting = list(attempts)
    repeated: list[Outcome] = []

    async def attempt(testbed: Testbed) -> None:
        await trio.lowlevel.checkpoint()
        is_stalled, clause = waiting.pop(0)
        stall(is_stalled)
        if clause:
            testbed.check_clause(clause, False, "a fault")

    listener = ProgressListener(repeated=lambda result: repeated.append(result.outcome))
    finished = await play(scenario("store.a", attempt), listener=listener)
    assert (waiting, finished.conforms) == ([], conforms)
    assert repeated == [Outcome.FAILED if clause else Outcome.PASSED for _, clause in attempts[1:]]


async def test_violation_that_another_scenario_has_shown_is_not_repeated(stall: Stall) -> None:
    attempts: Counter[str] = Counter()

    def failing(name: str) -> Scenario:
        async def fail(testbed: Testbed) -> None:
            await trio.lowlevel.checkpoint()
            attempts[name] += 1
            stall(name == "store.b")
            testbed.check_clause("ack.sent", False, "no ACK arrived")

        return scenario(name, fail)

    finished = await play(failing("store.a"), failing("store.b"), jobs=1)
    assert attempts == {"store.a": 1, "store.b": 1}
    assert outcomes(finished) == ["failed", "failed"]


@pytest.mark.parametrize(("fail_fast", "failed_count"), [(True, SPOILED_COUNT), (False, 5)])
@pytest.mark.parametrize("shares_target", [False, True])
async def test_role_whose_messages_are_malformed_is_left_early_if_asked(
    fail_fast: bool, failed_count: int, shares_target: bool
) -> None:
    failing = [scenario(f"store.{n}", violates("topic.ACK"), shares_target=shares_target) for n in range(5)]
    finished = await play(*failing, scenario("tower.a"), jobs=1, fail_fast=fail_fast)
    assert Counter(outcomes(finished)) == Counter(failed=failed_count, skipped=5 - failed_count, passed=1)
    reasons = {result.reason for result in finished.results if result.outcome is Outcome.SKIPPED}
    assert reasons == ({f"{SPOILED_COUNT} scenarios in a row violated topic.ACK"} if fail_fast else set())


@pytest.mark.parametrize(("is_stalled", "expected"), [(False, ["failed", "skipped"]), (True, ["skipped", "skipped"])])
async def test_interrupted_run_has_what_it_found_without_a_stall(
    is_stalled: bool, expected: list[str], stall: Stall
) -> None:
    scope = trio.CancelScope()
    stall(is_stalled)
    listener = ProgressListener(finished=lambda _result: scope.cancel())
    scenarios = scenario("store.a", violates("ack.sent")), scenario("store.b", hangs)
    finished = await play(*scenarios, jobs=2, listener=listener, scope=scope)
    assert outcomes(finished) == expected
    skipped = [result.reason for result in finished.results if result.outcome is Outcome.SKIPPED]
    assert set(skipped) == {"the run was interrupted"}
    assert not finished.is_complete
    assert not finished.conforms


async def test_run_that_is_interrupted_during_a_repeat_is_not_complete(stall: Stall) -> None:
    scope = trio.CancelScope()
    attempts: list[Testbed] = []

    async def fails_and_hangs(testbed: Testbed) -> None:
        attempts.append(testbed)
        if len(attempts) > 1:
            scope.cancel()
            await trio.sleep_forever()
        testbed.require_clause("ack.sent", False, "a fault")

    stall(True)
    finished = await play(scenario("store.a", fails_and_hangs), scope=scope)
    assert [(result.outcome, result.reason) for result in finished.results] == [
        (Outcome.SKIPPED, "the run was interrupted")
    ]
    assert not finished.is_complete


async def test_stall_does_not_count_to_a_time_limit(
    mock_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
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


def test_a_role_is_spoiled_only_by_scenarios_in_a_row_that_violate_the_same_clause() -> None:
    """Different faults, and faults of behavior, do not end a role early."""
    clauses = Clauses.load()
    for causes in product(["", "topic.ACK", "topic.HEAD", "ack.sent"], repeat=SPOILED_COUNT + 1):
        spoiled = Spoiled(clauses, is_enabled=True)
        for number, cause in enumerate(causes, 1):
            checks = (Check(cause, False),) if cause else ()
            outcome = Outcome.FAILED if cause else Outcome.PASSED
            spoiled.note(ScenarioResult("store.a", "A title.", Role.STORE, Dialect.RFC46, (), outcome, checks))
            last = causes[max(number - SPOILED_COUNT, 0) : number]
            is_spoiled = cause.startswith("topic.") and number >= SPOILED_COUNT and set(last) == {cause}
            expected = f"{SPOILED_COUNT} scenarios in a row violated {cause}" if is_spoiled else ""
            assert spoiled.reason(Role.STORE, Dialect.RFC46) == expected, causes
            assert not spoiled.reason(Role.CONSUMER, Dialect.RFC46)


# The catalog


def test_selection() -> None:
    scenarios = catalog(scenario("store.a"), scenario("store.b", dialects=(Dialect.LIBDAFKA,)), scenario("consumer.a"))
    for selected, names in (
        (scenarios.select(Role, None, ()), ["store.a", "store.b", "consumer.a"]),
        (scenarios.select([Role.STORE], None, ()), ["store.a", "store.b"]),
        (scenarios.select(Role, Dialect.RFC46, ()), ["store.a", "consumer.a"]),
        (scenarios.select(Role, None, ["*.a"]), ["store.a", "consumer.a"]),
    ):
        assert [each.name for each in selected] == names
    with pytest.raises(UnknownScenarioError, match="there is no scenario store"):
        scenarios.get("store.c")


def test_catalog_tests_no_unknown_clause() -> None:
    whole = Catalog.load()
    named = {clause for each in whole.scenarios.values() for clause in each.clauses}
    assert named <= {clause.id for clause in whole.clauses}
    assert len(whole.scenarios) > 500
