"""The check of stores: one that has forgotten anything is found, and one that has not never is."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import product

import attrs
import pytest

from dafka.broker.core.metadata.cluster_state import ClusterState
from dafka.broker.core.metadata.commands import Order, RegisterBroker
from dafka.broker.core.metadata.outcome import DONE
from dafka.broker.core.metadata.store_check import (
    ANSWER_S,
    FORMER_RUNS_S,
    SETTLE_S,
    STARTS_MAX,
    KnownStores,
    StoreCheck,
    StoreClaim,
    StoreMemory,
    StoreProblem,
    add_start,
    complete_registration,
    find_problem,
    takes_place,
)
from dafka.broker.core.positions import Offset

STORE, OTHER = "s" * 32, "t" * 32
TIMEOUT_S = 1.0


@attrs.define
class Cluster:
    """What the other brokers know and, as the model, one store that may be copied."""

    state: ClusterState = attrs.field(factory=ClusterState)
    now: float = 0.0
    claim: StoreClaim = attrs.field(factory=lambda: StoreClaim(("s0",)))
    applied: str = ""  # the accepted start, as far as the store knows
    known: KnownStores = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.known = KnownStores(self.state, TIMEOUT_S)

    def start(self, number: int) -> None:
        starts = add_start(self.claim.starts, f"s{number}", self.applied)
        self.claim = attrs.evolve(self.claim, starts=starts, counter_at_start=self.claim.counter)

    @property
    def accepted(self) -> str:
        registered = self.state.brokers.get(STORE)
        return "" if registered is None else registered.start

    def register(self) -> bool:
        outcome = self.state.apply(Order(RegisterBroker(STORE, 0, self.claim.starts)))
        self.state.applied = Offset(self.state.applied + 1)
        return outcome == DONE

    def hear(self) -> StoreProblem | None:
        memory = self.known.recall(STORE, self.claim, self.claim.control_end, self.now)
        problem = find_problem(self.claim, memory)
        if problem is None:
            self.known.record(STORE, self.claim, self.now)
        return problem


def live(cluster: Cluster, draw: random.Random, steps: int) -> None:
    """Let a store start, write, register and be heard, never two starts at a time."""
    for number in range(1, steps):
        match draw.choice(["start", "write", "register", "hear", "apply"]):
            case "start":
                cluster.now += 2 * TIMEOUT_S
                cluster.start(number)
            case "write":
                claim = cluster.claim
                cluster.claim = attrs.evolve(
                    claim, counter=claim.counter + 1, control_end=claim.control_end + draw.randint(0, 1)
                )
            case "register":
                assert cluster.register()
            case "hear":
                assert cluster.hear() is None
            case "apply":
                cluster.claim = attrs.evolve(cluster.claim, applied=cluster.state.applied)
                cluster.applied = cluster.accepted


def test_a_store_that_has_forgotten_nothing_is_never_suspected() -> None:
    for seed in range(300):
        live(Cluster(), random.Random(seed), 60)


def test_a_store_is_found_that_lacks_an_accepted_start_or_a_counter_that_it_has_sent() -> None:
    found = 0
    for seed in range(300):
        draw, cluster = random.Random(seed), Cluster()
        live(cluster, draw, 20)
        cluster.register()
        former, applied = cluster.claim, cluster.applied
        live(cluster, draw, 20)
        later = cluster.known.counters.get(STORE)
        has_counted = later is not None and later.counter > former.counter
        has_registered = cluster.accepted not in former.starts
        cluster.now += 2 * TIMEOUT_S
        cluster.claim, cluster.applied = former, applied
        cluster.start(100)
        cluster.claim = attrs.evolve(cluster.claim, counter=cluster.claim.counter + draw.choice([0, 50]))
        problem = cluster.hear()
        if has_registered:
            assert problem is StoreProblem.START
            assert not cluster.register()
        elif has_counted:
            assert problem is StoreProblem.COUNTER
        else:
            assert problem is None
        found += problem is not None
    assert 50 < found < 300


def test_of_two_copies_that_run_the_one_that_the_cluster_has_accepted_is_right() -> None:
    cluster = Cluster()
    first, second = (StoreClaim(("s0", each)) for each in ("s1", "s2"))
    cluster.claim = first
    assert cluster.hear() is None
    cluster.claim = second
    assert cluster.hear() is StoreProblem.TWIN
    cluster.known.record(STORE, second, cluster.now)
    cluster.claim = first
    assert cluster.hear() is StoreProblem.TWIN
    assert cluster.register()
    assert cluster.hear() is None
    cluster.claim = second
    assert cluster.hear() is StoreProblem.START


@pytest.mark.parametrize("is_registered", [True, False])
def test_a_heard_start_is_trusted_unless_the_cluster_has_accepted_one_that_it_lacks(is_registered: bool) -> None:
    for accepted, applied in product(("", "s0", "s1", "s9"), (0, 1, 2)):
        cluster = Cluster()
        if is_registered:
            starts = (accepted,) if accepted else ()
            assert cluster.state.apply(Order(RegisterBroker(STORE, 0, starts))) == DONE
        cluster.state.applied = Offset(1)
        assert not cluster.known.is_trusted(STORE, "s1")
        cluster.known.record(STORE, StoreClaim(("s0", "s1"), applied, 7), cluster.now)
        is_outdated = is_registered and applied < 1 and accepted == "s9"
        assert cluster.known.is_trusted(STORE, "s1") == (not is_outdated)
        assert not cluster.known.is_trusted(STORE, "s0"), "that one was not heard"
        assert cluster.known.counters == ({STORE: ("s1", 7)} if is_registered else {}), "strangers are not stored"


def test_of_several_starts_that_run_a_strange_one_is_told() -> None:
    known = KnownStores(ClusterState(), TIMEOUT_S)
    for starts in (("s0",), ("s0", "s8"), ("s0", "s9")):
        known.record(STORE, StoreClaim(starts), 0.0)
    for own, expected in ((("s0", "s8", "s1"), "s9"), (("s0", "s9", "s1"), "s8")):
        assert known.recall(STORE, StoreClaim(own), 0, 0.5).running == expected
    assert known.recall(STORE, StoreClaim(("s1",)), 0, TIMEOUT_S).running == ""


def test_a_start_that_others_do_not_know_yet_is_no_problem() -> None:
    claim = StoreClaim(("s7", "s8"), applied=9)
    assert find_problem(claim, StoreMemory(accepted="s1", applied=9)) is None
    assert find_problem(claim, StoreMemory(accepted="s9", applied=10)) is StoreProblem.START


def test_the_accepted_start_is_kept_among_many_others() -> None:
    starts: tuple[str, ...] = ("accepted",)
    for number in range(3 * STARTS_MAX):
        starts = add_start(starts, str(number), "accepted")
        assert len(starts) <= STARTS_MAX
        assert starts[-1] == str(number)
        assert "accepted" in starts


@pytest.mark.parametrize(
    ("heard", "answered", "passes_after_s"),
    [
        ("", "", SETTLE_S),
        ("ab", "ab", 0.0),
        ("ab", "a", ANSWER_S),
        ("a", "a", SETTLE_S),
    ],
)
def test_the_check_waits_for_all_then_for_those_that_are_heard(
    heard: str, answered: str, passes_after_s: float
) -> None:
    check, claim = StoreCheck(TIMEOUT_S), StoreClaim(("s",))
    for each in answered:
        check.answered(each, claim, StoreMemory(), 0.0)
    passed = [each for each in (0.0, SETTLE_S, ANSWER_S) if check.is_passed("ab", heard, each, each)]
    assert passed[0] == passes_after_s
    slow = StoreCheck(2 * ANSWER_S)
    assert [slow.is_passed("ab", "ab", each, each) for each in (ANSWER_S, 6 * ANSWER_S)] == [False, True]


@pytest.mark.parametrize(
    "report",
    [
        lambda check, now: check.answered("a", StoreClaim(("s0", "s1")), StoreMemory(running="s0"), now),
        lambda check, now: check.overheard("a", now),
    ],
)
def test_a_former_start_may_have_ended_a_moment_ago_and_later_it_is_a_twin(
    report: Callable[[StoreCheck, float], None],
) -> None:
    check = StoreCheck(TIMEOUT_S)
    for at in (*(0.5 for _ in range(50)), 1.0, 1.5, 3.0, 3.0, 3.0, 5.5):
        report(check, at)
        assert check.find_problem(at) is None
        assert not any(check.is_passed("a", "a", waited_s, at + FORMER_RUNS_S) for waited_s in (0.5, 10 * ANSWER_S))
        assert check.is_passed("a", "a", ANSWER_S, at + FORMER_RUNS_S + 0.1)
    for at in range(10):
        report(check, 6.0 + 0.25 * at)
        assert check.find_problem(6.0 + 0.25 * at) is None
    report(check, 8.5)
    assert check.find_problem(8.5) is StoreProblem.TWIN


@pytest.mark.parametrize("memory", [StoreMemory(running="s2"), StoreMemory(running="s0", counter=1)])
def test_a_store_with_a_problem_is_a_clone_if_another_start_runs_and_else_an_older_copy(memory: StoreMemory) -> None:
    claim = StoreClaim(("s0", "s1"))
    problem = find_problem(claim, memory)
    older, clone = StoreCheck(TIMEOUT_S), StoreCheck(TIMEOUT_S)
    for at in (0.0, 0.5, 1.0, 1.5, 2.0, 2.5):
        for check in (older, clone):
            check.answered("a", claim, memory, at)
            assert check.find_problem(at) is None
    older.answered("a", claim, StoreMemory(counter=memory.counter), 3.0)
    expected = StoreProblem.START if problem is StoreProblem.TWIN else StoreProblem.COUNTER
    assert older.find_problem(3.0) is expected
    clone.answered("a", claim, memory, 3.0)
    assert clone.find_problem(3.0) is StoreProblem.TWIN
    for check in (older, clone):
        assert not check.is_passed("a", "a", 10 * ANSWER_S, 10 * ANSWER_S), "it must not serve with this id"
    unheard = StoreCheck(TIMEOUT_S)
    unheard.answered("a", claim, memory, 0.0)
    assert [unheard.find_problem(at) for at in (0.0, 3.0, 3.1)] == [None, None, expected]


@pytest.mark.parametrize(
    ("silent_s", "age_s", "expected"),
    [
        (float("inf"), 2.9, None),
        (float("inf"), 3.0, True),  # it was never heard
        (0.0, 0.0, None),
        (0.5, 3.4, None),  # what was heard can have been on its way
        (0.5, 3.5, False),
        (4.9, 7.8, None),
        (4.9, 7.9, False),
        (5.0, 5.0, True),
    ],
)
def test_a_former_id_must_be_silent_for_long_and_runs_if_it_is_heard_late(
    silent_s: float, age_s: float, *, expected: bool | None
) -> None:
    assert takes_place(silent_s, age_s) is expected


def test_a_store_takes_the_place_of_its_former_id_unless_that_one_runs() -> None:
    state = ClusterState()
    state.apply(Order(RegisterBroker(STORE, 3, ("s0",))))
    asked = RegisterBroker(OTHER, -1, ("t0",), STORE)
    beside = complete_registration(asked, state, lambda _: True)
    assert (beside.number, beside.replaces) == (0, "")
    instead = complete_registration(asked, state, lambda _: False)
    assert (instead.number, instead.replaces) == (3, STORE)
    assert state.apply(Order(instead)) == DONE
    assert state.forgotten_ids == {STORE}
    assert [(each.store_id, each.number) for each in state.brokers.values()] == [(OTHER, 3)]
    again = complete_registration(asked, state, lambda _: False)
    assert (again.number, again.replaces) == (3, "")
    assert state.apply(Order(again)) == DONE


def test_a_store_that_has_forgotten_its_ids_takes_the_place_of_its_last_one() -> None:
    """Its disk forgets again and again, and knows each time only one of the ids that the store has had."""
    for number, remembered in product((-1, 3), product(range(3), repeat=3)):
        state = ClusterState()
        state.apply(Order(RegisterBroker(STORE, 3, ("s0",))))
        ids = [STORE]
        for turn, known in enumerate(remembered):
            asked = RegisterBroker(f"{turn}" * 32, number, (f"t{turn}",), ids[min(known, turn)])
            assert complete_registration(asked, state, ids[-1].__eq__).replaces == "", "a clone beside it"
            completed = complete_registration(asked, state, lambda _: False)
            assert (completed.number, completed.replaces) == (3, ids[-1])
            assert state.apply(Order(completed)) == DONE
            ids.append(asked.store_id)
        assert [(each.store_id, each.former_ids) for each in state.brokers.values()] == [(ids[-1], tuple(ids[:-1]))]
