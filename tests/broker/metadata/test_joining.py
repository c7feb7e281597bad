"""A broker in its cluster: how it registers, whom it takes for a stranger, and how it learns that it is forgotten."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import trio
from trio.testing import MockClock

from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.metadata.commands import RegisterBroker
from dafka.broker.core.metadata.store_check import FORMER_RUNS_S, FORMER_SILENT_S
from dafka.broker.metadata import joining
from dafka.broker.metadata.joining import NOTIFY_S, OTHER_SECRET_S, Joining, StoreForgotten
from dafka.errors import ConfigError, NoControllerError, OutdatedStoreError, RefusedChangeError
from tests.seeds import each_seed
from tests.waiting import wait_until

OWN, STARTS = "own", ("1", "2")
LEVELS: Any = object()


class Seen(NamedTuple):
    address: str
    number: int
    cluster_id: str = "cluster"


class Cluster:
    """The cluster around one broker."""

    def __init__(self, *, number: int = -1, registered: int | None = None, replaces: str = "") -> None:
        self.outcomes: list[Exception | None] = []
        self.asked: list[tuple[RegisterBroker, float]] = []
        self.sent: list[tuple[str, object]] = []
        self.connected: list[str] = []
        self.secrets: dict[str, bool | None] = {}
        self.is_accepted = False
        self.handlers: dict[type, Callable[[str, Any], None]] = {}
        self.own = SimpleNamespace(address=OWN, number=-1, cluster_id="cluster")
        members = SimpleNamespace(
            support=SimpleNamespace(levels=LEVELS), find_store=lambda each: SimpleNamespace(store_id=each)
        )
        self.state = SimpleNamespace(cluster_id="cluster", brokers={}, forgotten_ids=set(), members=members)
        if registered is not None:
            self.state.brokers[OWN] = SimpleNamespace(number=registered)
        self.record = SimpleNamespace(starts=STARTS, replaces=replaces)
        self.seen_brokers: list[Any] = []
        part: Any = self
        tables: Any = SimpleNamespace(state=self.state, brokers=SimpleNamespace(own=self.own))
        config: Any = SimpleNamespace(number=number, cluster="", initial_brokers=1)
        self.joining = Joining(tables, part, part, part, part, config, part, lambda _record: None)

    def on(self, kind: type, handle: Callable[[str, Any], None]) -> None:
        self.handlers[kind] = handle

    def send(self, address: str, message: object) -> None:
        self.sent.append((address, message))

    def connect(self, address: str) -> None:
        self.connected.append(address)

    def has_other_secret(self, address: str) -> bool | None:
        return self.secrets[address]

    def seen(self) -> list[Any]:
        return self.seen_brokers

    async def wait_until(self, is_reached: Callable[[], bool]) -> None:
        await wait_until(is_reached, deadline_s=math.inf)

    async def change(self, command: RegisterBroker) -> None:
        self.asked.append((command, trio.current_time()))
        outcome = self.outcomes.pop(0) if self.outcomes else None
        if outcome is not None:
            raise outcome
        self.is_accepted = True
        self.state.brokers[OWN] = SimpleNamespace(number=7)


def refused(error: ErrorCode) -> RefusedChangeError:
    return RefusedChangeError(f"refused: {error.name}", error)


TAKEN, OUTDATED = refused(ErrorCode.DUPLICATE_BROKER_REGISTRATION), refused(ErrorCode.STALE_BROKER_EPOCH)
OTHER = refused(ErrorCode.POLICY_VIOLATION)


async def test_a_broker_registers_until_it_is_accepted_or_an_operator_has_to_decide(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joining, "describe_quorum", lambda *_: None)
    for number, outcome in itertools.product(
        (-1, 0, 7), (None, TAKEN, OUTDATED, refused(ErrorCode.UNSUPPORTED_VERSION), OTHER)
    ):
        cluster = Cluster(number=number)
        cluster.outcomes = [NoControllerError("none"), NoControllerError("none"), outcome]
        ends = {OUTDATED: OutdatedStoreError, None: None, TAKEN: None if number < 0 else ConfigError}
        expected = ends.get(outcome, ConfigError)
        if outcome is None and number == 0:
            expected = ConfigError  # the cluster has given it another one
        if expected is None:
            await cluster.joining._register()
        else:
            with pytest.raises(expected) as error:
                await cluster.joining._register()
            advises_number = outcome in {TAKEN, OTHER}
            assert ("start this broker with another number" in str(error.value)) is advises_number
            assert (f"forget it with `dafka cluster forget {number}`" in str(error.value)) is (outcome is TAKEN)
        assert cluster.joining.is_accepted.is_set() is (expected is None)
        tries = 4 if (number, outcome) == (-1, TAKEN) else 3
        assert [each for each, _ in cluster.asked] == [RegisterBroker(OWN, number, STARTS, "", LEVELS)] * tries
    for number, registered in itertools.product((-1, 0, 7), (0, 7)):
        cluster = Cluster(number=number, registered=registered)
        if number in {-1, registered} and registered == 7:
            await cluster.joining._register()
        elif number not in {-1, registered}:
            with pytest.raises(ConfigError, match=f"has the number {registered} in its cluster, not {number}"):
                await cluster.joining._register()
            assert not cluster.asked


async def test_a_broker_that_is_forgotten_meanwhile_waits_for_that_error(autojump_clock: MockClock) -> None:
    cluster = Cluster()
    cluster.state.forgotten_ids = {OWN}
    cluster.outcomes = [OTHER]
    with trio.move_on_after(100) as waiting:
        await cluster.joining._register()
    assert waiting.cancelled_caught
    with pytest.raises(ConfigError, match="has forgotten this store"):
        await cluster.joining.wait_forgotten()


@pytest.mark.parametrize("is_registered", [True, False])
@pytest.mark.parametrize("heard_until_s", [-math.inf, 0.5, FORMER_RUNS_S + 1])
async def test_a_store_takes_the_place_of_its_former_id_unless_a_broker_runs_with_that(
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    heard_until_s: float,
    is_registered: bool,
) -> None:
    """Meanwhile, an operator reads what to do if that id is needed to vote."""
    cluster = Cluster(replaces="former", registered=7 if is_registered else None)
    voters = {"other"} if is_registered else {"former", "other"}
    monkeypatch.setattr(joining, "describe_quorum", lambda *_: SimpleNamespace(voters=voters))
    cluster.outcomes = [NoControllerError("none")]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cluster.joining._register)
        while trio.current_time() <= heard_until_s:
            cluster.joining.record_heartbeats(frozenset({"former", "other"}))
            await trio.sleep(0.1)
        for _ in range(100):
            cluster.joining.record_heartbeats(frozenset({"other"}))
            await trio.sleep(0.1)
    assert ("recover the cluster with" in caplog.text) is (not is_registered)
    (command, asked_at), _ = cluster.asked
    is_clone = heard_until_s > FORMER_RUNS_S
    assert command.replaces == ("" if is_registered or is_clone else "former")
    assert is_registered or asked_at >= (FORMER_RUNS_S if heard_until_s < 0 or is_clone else FORMER_SILENT_S)


async def test_a_broker_with_another_secret_than_most_others_ends_when_that_lasts(autojump_clock: MockClock) -> None:
    for answers in itertools.product([True, False, None], repeat=3):
        for is_registered, number in itertools.product((True, False), (-1, 2)):
            cluster = Cluster(registered=7 if is_registered else None)
            own = [Seen("b0", number), Seen("b1", 8), Seen("b2", 7)]
            cluster.seen_brokers = [*own, Seen("foreign", 0, "another")]
            agree: dict[str, bool | None] = dict.fromkeys(("b0", "b1", "b2"), False)
            cluster.secrets = dict(zip(agree, answers, strict=True))
            is_other = answers.count(True) > answers.count(False) + is_registered
            cluster.joining.check_secret()
            await trio.sleep(OTHER_SECRET_S - 0.1)
            cluster.joining.check_secret()
            given, cluster.secrets = cluster.secrets, agree
            cluster.joining.check_secret()  # it did not last
            cluster.secrets = given
            cluster.joining.check_secret()
            await trio.sleep(OTHER_SECRET_S)
            problem = ""
            try:
                cluster.joining.check_secret()
            except ConfigError as error:
                problem = str(error)
            names = [("b0" if number < 0 else "2", answers[0]), ("7", answers[2]), ("8", answers[1])]
            named = ", ".join(name for name, has_other in names if has_other)
            assert (f"brokers of its cluster ({named})" in problem) if is_other else not problem, (answers, problem)
            assert set(cluster.connected) == {*agree}
            cluster.own.cluster_id = ""
            cluster.joining.check_secret()


@each_seed(3)
def test_forgotten_brokers_are_notified_now_and_then_and_believe_only_members_of_their_cluster(seed: int) -> None:
    async def play() -> None:
        draw, cluster, sent_at = Random(seed), Cluster(), dict[str, float]()
        for _ in range(200):
            cluster.state.forgotten_ids ^= {draw.choice("abc")} if draw.random() < 0.1 else set()
            heard = frozenset(each for each in "abcd" if draw.random() < 0.4)
            cluster.joining.record_heartbeats(heard)
            now = trio.current_time()
            due = {
                each for each in heard & cluster.state.forgotten_ids if now - sent_at.get(each, -math.inf) >= NOTIFY_S
            }
            assert sorted(cluster.sent, key=str) == [(each, StoreForgotten("cluster")) for each in sorted(due)]
            sent_at |= dict.fromkeys(due, now)
            cluster.sent.clear()
            await trio.sleep(draw.choice([0.25, 1, 2.5]))
        cluster = Cluster()
        cluster.state.brokers["member"] = SimpleNamespace(number=1)
        with trio.move_on_after(100) as waiting:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(cluster.joining.wait_forgotten)
                await trio.sleep(1)
                for sender, cluster_id in (("stranger", "cluster"), ("member", "another")):
                    cluster.handlers[StoreForgotten](sender, StoreForgotten(cluster_id))
        assert waiting.cancelled_caught
        cluster.handlers[StoreForgotten]("member", StoreForgotten("cluster"))
        with pytest.raises(ConfigError, match="the cluster cluster has forgotten this store"):
            await cluster.joining.wait_forgotten()

    trio.run(play, clock=MockClock(autojump_threshold=0))
