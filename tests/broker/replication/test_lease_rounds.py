"""Lease rounds: whom a broker answers, whose answers count, for how long, and logs that are read again."""

from __future__ import annotations

import itertools
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from dafka.broker.core.replication.records import BRANCHES_TOPIC
from dafka.broker.core.rounds import Round, RoundKind, RoundReply, answer_round
from dafka.broker.replication import leases as leases_module
from dafka.broker.replication.leases import LeaderLeases
from dafka.broker.replication.pending_logs import READ_AGAIN_S, PendingLogs
from dafka.config.settings import BrokerConfig
from dafka.records import Partition
from tests.seeds import each_seed

TIMEOUT_S, HEARTBEAT_S = 3.0, 0.5
LEASE_S = TIMEOUT_S - HEARTBEAT_S


class Rounds:
    """A broker `a`, in a cluster with `b`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(leases_module, "_slept_s", lambda: 0.0)
        monkeypatch.setattr(leases_module, "now_ms", lambda: 7)
        self.number = -1
        self.sent: list[Any] = []
        self.may_answer = self.is_durable = self.is_trusted = True
        self.claim: Any = SimpleNamespace(start="s")
        self.state = SimpleNamespace(forgotten_ids=set(), applied=5)
        brokers = SimpleNamespace(
            is_alone=False,
            alive={"a", "b"},
            all=list,
            record_heartbeat=lambda *_: None,
            record_storage=lambda *_, **__: None,
            may_answer=lambda *_, **__: self.may_answer,
        )
        replica = SimpleNamespace(heard_since=lambda heard_since: heard_since("b"))
        topics = {"orders": SimpleNamespace(topic_id="T")}
        tables: Any = SimpleNamespace(
            brokers=brokers,
            state=self.state,
            log_table=SimpleNamespace(topics=topics),
            logs=SimpleNamespace(find=lambda name: SimpleNamespace(replica=replica) if name == "T/2" else None),
        )
        part: Any = self
        storage: Any = SimpleNamespace(can_write=True, durable_end=self.durable_end)
        mesh: Any = SimpleNamespace(address="a", publish=self.sent.extend)
        config = BrokerConfig(leader_timeout_ms=int(1000 * TIMEOUT_S), heartbeat_ms=int(1000 * HEARTBEAT_S))
        identity: Any = SimpleNamespace(
            make_round=self.make_round, is_trusted=lambda *_: self.is_trusted, claim=self.claim
        )
        self.identity = identity
        self.leases = LeaderLeases(tables, storage, identity, part, mesh, config)
        self.log: Any = SimpleNamespace(topic="orders", number=2, leadership=SimpleNamespace(is_led=True))

    def durable_end(self, partition: Partition) -> int:
        assert partition == Partition(BRANCHES_TOPIC, "a")
        return 9

    def make_round(self, number: int, *, can_write: bool) -> object:
        assert can_write
        self.number = number
        return f"round {number}"

    def answer(self, applied: int = 5) -> None:
        self.leases.process_rounds({}, [("b", RoundReply(self.number, 0, applied, 7, "t"))])


async def test_a_round_is_answered_only_with_durable_votes_of_this_start(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for has_claim, may_answer, is_durable in itertools.product((True, False), repeat=3):
        rounds = Rounds(monkeypatch)
        rounds.identity.claim = rounds.claim if has_claim else None
        rounds.may_answer, rounds.is_durable = may_answer, is_durable
        claim: Any = None
        rounds.leases.process_rounds({"b": Round(4, RoundKind.WRITABLE, claim)}, [])
        expected = [answer_round("b", "a", RoundReply(4, 9, 5, 7, "s"))]
        assert rounds.sent == (expected if has_claim and may_answer and is_durable else [])


async def test_a_lease_and_what_others_have_applied_count_from_a_round_of_a_trusted_broker(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for is_trusted, is_forgotten, applied in itertools.product((True, False), (True, False), (4, 5, 6)):
        rounds = Rounds(monkeypatch)
        rounds.is_trusted, rounds.state.forgotten_ids = is_trusted, {"b"} if is_forgotten else set()
        begun = trio.current_time()
        rounds.leases.begin_round()
        await trio.sleep(0.25)
        counts = is_trusted and not is_forgotten
        async with trio.open_nursery() as nursery:
            nursery.cancel_scope.deadline = begun + 60
            nursery.start_soon(rounds.leases.wait_metadata)
            await wait_all_tasks_blocked()
            rounds.answer(applied)
            await wait_all_tasks_blocked()
            assert rounds.leases.holds_lease(rounds.log) is counts
            assert bool(nursery.child_tasks) is not (counts and applied <= 5)
            if counts and applied > 5:
                rounds.state.applied = applied
                rounds.leases.begin_round()
        expected = begun + 0.25 + (0 if counts else 2 * TIMEOUT_S)
        assert trio.current_time() == pytest.approx(expected)
        if counts:
            await trio.sleep_until(begun + LEASE_S - 0.01)
            assert rounds.leases.holds_lease(rounds.log)
            rounds.log.leadership.is_led = False
            assert not rounds.leases.holds_lease(rounds.log)
            rounds.log.leadership.is_led = True
            await trio.sleep_until(begun + LEASE_S + 0.01)
            assert not rounds.leases.holds_lease(rounds.log)
            begun = trio.current_time()
            with trio.move_on_after(60):
                await rounds.leases.wait_metadata()  # the broker was stopped meanwhile
            assert trio.current_time() - begun == pytest.approx(2 * TIMEOUT_S)


async def test_a_wrong_clock_is_told_once_until_it_is_right_again(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rounds, states = Rounds(monkeypatch), [False, True, True, True, False, True, False]
    for is_wrong in states:
        monkeypatch.setattr(rounds.leases._clocks, "is_wrong", lambda *_, found=is_wrong: found)
        rounds.leases.begin_round()
    assert caplog.text.count("the clock of this broker is more than ten minutes") == 2


@each_seed(20)
def test_a_log_that_waits_is_taken_once_and_one_that_failed_again_with_the_next_or_later(seed: int) -> None:
    async def play() -> None:
        draw, pending = Random(seed), PendingLogs[str]()
        waiting, failed, has_put = set[str](), set[str](), False
        for _ in range(60):
            name = draw.choice("abc")
            match draw.randrange(4):
                case 0:
                    pending.put(name)
                    waiting.add(name)
                    has_put = True
                case 1:
                    pending.put_failed(name)
                    failed.add(name)
                case 2:
                    pending.discard(name)
                    waiting.discard(name)
                    failed.discard(name)
                case _ if waiting | failed:
                    begun = trio.current_time()
                    taken = await pending.take()
                    assert sorted(taken) == sorted(waiting | failed)
                    assert trio.current_time() - begun == (0 if has_put else READ_AGAIN_S)
                    waiting, failed, has_put = set(), set(), False
            assert {*pending} == waiting

    trio.run(play, clock=MockClock(autojump_threshold=0))
