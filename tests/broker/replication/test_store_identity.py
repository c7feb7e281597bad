"""What a broker tells of its store, and which other stores it trusts: the broker `a`, with all around it faked."""

from __future__ import annotations

import re
from itertools import product
from random import Random
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from dafka.broker.core.broker_news import RoundsReceived, StoreChecked
from dafka.broker.core.metadata.store_check import SETTLE_S, STARTS_MAX, StoreClaim, StoreMemory
from dafka.broker.core.metadata.store_record import (
    CLUSTER_TOPIC,
    COUNTERS_KEY,
    STORE_KEY,
    SentCounter,
    StoreRecord,
    decode_store_record,
    encode_store_record,
)
from dafka.broker.core.partition_address import INDEX_TOPIC
from dafka.broker.core.replication.records import BRANCHES_TOPIC
from dafka.broker.core.rounds import CheckAnswer, Round, RoundKind, RoundReply, read_check, read_round
from dafka.broker.replication.store_identity import StoreIdentity
from dafka.config.settings import BrokerConfig
from dafka.errors import OutdatedStoreError
from dafka.records import Partition
from tests.seeds import each_seed

RECORD = StoreRecord("cluster", ("a",), starts=("s",))
CONFIG = BrokerConfig(leader_timeout_ms=1000, heartbeat_ms=250)
EITHER = (True, False)


class World:
    """The store of the broker `a`, whose cluster has the brokers `b` and `c`, too."""

    def __init__(self, stored: dict[bytes, bytes] | None = None) -> None:
        self.pending: dict[bytes, bytes] = {}
        self.sent: list[Any] = []
        self.ends: dict[Partition, int] = {}
        self.is_deleted = False
        self.known_epoch = 0
        self.written = trio.Event()
        self.machine = SimpleNamespace(unchecked=None, release=lambda _now: ["released"])
        state = SimpleNamespace(
            brokers={each: SimpleNamespace(start="") for each in "abc"},
            applied=0,
            is_deleted=lambda _address: self.is_deleted,
            name_of=lambda topic_id: "orders" if topic_id == "1D" else "",
        )
        self.state = state
        storage = SimpleNamespace(
            write_state=self._write_state,
            state_end=lambda topic: 7 if topic == BRANCHES_TOPIC else 0,
            durable_end=lambda partition: self.ends.get(partition, 0),
            stored=SimpleNamespace(durable={}),
        )
        self.storage = storage
        parts: dict[str, Any] = {
            "tables": SimpleNamespace(state=state, logs=SimpleNamespace(known_epoch=lambda _name: self.known_epoch)),
            "machine": self.machine,
            "storage": storage,
            "mesh": SimpleNamespace(address="a", publish=self.sent.extend),
        }
        self.acted: list[Any] = []
        self.identity = StoreIdentity(act=self.acted.extend, config=CONFIG, **parts)
        if stored is not None:
            self.identity.restore(decode_store_record(stored[STORE_KEY]), stored, {})

    def _write_state(self, topic: str, changes: list[tuple[bytes, bytes]]) -> trio.Event:
        assert topic == CLUSTER_TOPIC
        self.pending.update(changes)
        return self.written

    def admit(self, *asked: tuple[str, Round], answers: Any = ()) -> dict[str, Round]:
        return self.identity.admit(RoundsReceived(asked, answers))

    def take(self) -> list[Any]:
        sent, self.sent[:] = list(self.sent), []
        return [read_check(each) or read_round(each) for each in sent]


@each_seed(30)
def test_a_counter_that_others_were_told_tells_older_copies_of_the_store_from_those_with_all_writes(seed: int) -> None:
    """A copy is older if it misses a write from before a round whose counter was stored before a later round."""
    draw, disk = Random(seed), {STORE_KEY: encode_store_record(RECORD)}
    world, begun = World(disk), list[tuple[Any, dict[bytes, bytes]]]()
    copies, told, events = list[dict[bytes, bytes]](), list[int](), ""
    for _ in range(30):
        copies.append(dict(disk))
        event = draw.choice("rr" + ("e" if begun else "b"))
        if event == "r":
            world.identity.count_writes()
            claim = world.identity.claim
            assert claim is not None
        elif event == "b":
            topics = draw.choice([[], [CLUSTER_TOPIC], [CLUSTER_TOPIC, BRANCHES_TOPIC]])
            added = [SimpleNamespace(partition=SimpleNamespace(topic=each)) for each in topics]
            commit: Any = SimpleNamespace(added=added, batches=draw.choice([[], [], ["batch"]]))
            begun.append((commit, dict(world.pending)))
            world.pending.clear()
            world.identity.prepare(commit)
        else:
            commit, written = begun.pop()
            disk.update(written)
            world.identity.done(commit)
            event = "E" if commit.batches or len(commit.added) > 1 else "e"
        told.append(claim.counter if event == "r" and claim is not None else -1)
        events += event
    for first, copy in enumerate(copies):
        found = World(copy).identity.claim
        assert found is not None
        assert found.counter == found.counter_at_start
        for end in (place for place in range(first, len(events)) if events[place] == "r"):
            between = events[first:end]
            if re.search("E.*r.*b.*[eE]", between):
                assert found.counter_at_start < told[end], (events, first, end)
            if "e" not in between.lower():
                assert found.counter_at_start >= told[end], "it has all that was durable"


def test_a_broker_answers_checks_and_admits_rounds_of_stores_that_have_forgotten_nothing() -> None:
    for is_checked_here, is_own, kind, problem, is_twin in product(EITHER, EITHER, RoundKind, EITHER, EITHER):
        world = World({STORE_KEY: encode_store_record(RECORD)})
        world.identity._is_checked = is_checked_here
        broker = "a" if is_own else "b"
        if is_twin:
            world.identity._known.record(broker, StoreClaim(("t", "other")), 0.0)
        if problem:
            world.ends[Partition(BRANCHES_TOPIC, "b")] = 8
        asked = Round(5, kind, StoreClaim(("t",), control_end=7))
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(trio, "current_time", lambda: 0.5)
            admitted = world.admit((broker, asked))
            assert world.identity._heard() == ([] if is_own else ["b"])
        is_checked, is_problem = kind is RoundKind.CHECKED, problem or is_twin
        assert admitted == ({"b": asked} if is_checked_here and not (is_own or is_checked or is_problem) else {})
        answers = world.take()
        assert len(answers) == (not is_own and (is_checked or is_problem))
        for each in answers:
            assert each.start == "t"
            assert (each.memory.running, each.memory.control_end) == ("other" if is_twin else "", 8 if problem else 0)
        assert world.identity.is_trusted(broker, "t") == (not is_own and not is_problem)


def test_the_leader_of_logs_is_told_how_far_its_partitions_of_their_latest_epochs_are_here() -> None:
    for known_epoch, is_led, has_records in product((4, 5, 6), EITHER, EITHER):
        world = World({STORE_KEY: encode_store_record(RECORD)})
        world.known_epoch = known_epoch
        address = f"{'b' if is_led else 'c'}/1D/0/5"
        world.storage.stored.durable[INDEX_TOPIC] = {address: 3, "malformed": 9, "b/unknown/0/5": 4}
        if has_records:
            world.ends[Partition("orders", address)] = 20
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(trio, "current_time", lambda: 1.0)
            world.admit(("b", Round(5, RoundKind.CHECKED, StoreClaim(("t",)))))
        *ends, answer = world.take()
        assert isinstance(answer, CheckAnswer)
        expected = []
        if known_epoch <= 5:
            expected += [(Partition(INDEX_TOPIC, address), 3)] * is_led
            expected += [(Partition("orders", address), 20)] * (is_led and has_records)
            expected.append((Partition(INDEX_TOPIC, "b/unknown/0/5"), 4))
        assert ends == expected


def test_a_store_has_forgotten_records_of_the_latest_epoch_that_others_have() -> None:
    index, records = Partition(INDEX_TOPIC, "a/1D/0/5"), Partition("orders", "a/1D/0/5")
    for partition, end, restored, durable, is_deleted, known_epoch in product(
        (index, records), (0, 3, 4), (0, 3), (0, 3, 4), EITHER, (5, 6)
    ):
        world = World()
        world.identity.restore(RECORD, {}, {partition: restored})
        world.ends[partition], world.is_deleted, world.known_epoch = durable, is_deleted, known_epoch
        world.identity.process_check(StoreChecked(frozenset(), [], {partition: end}))
        own = max(restored, durable)
        is_shorter = end > own and (own > 0 or partition is index) and not is_deleted and known_epoch <= 5
        assert (world.identity._check._suspected is not None) == is_shorter


def test_answers_to_rounds_that_this_start_has_not_asked_are_of_a_twin() -> None:
    for is_accepted, first in product(EITHER, (5, 9)):
        world = World({STORE_KEY: encode_store_record(RECORD)})
        world.state.brokers["a"].start = "s" if is_accepted else "other"
        for number in range(first, first + 3):
            message = world.identity.make_round(number, can_write=number % 2 == 0)
            assert message is not None
            asked = read_round(message)
            assert isinstance(asked, Round)
            kind = RoundKind.WRITABLE if number % 2 == 0 else RoundKind.UNWRITABLE
            assert (asked.number, asked.kind, asked.claim) == (number, kind, world.identity.claim)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(trio, "current_time", lambda: 1.0)
            for broker, number in (("b", first - 1), ("c", first), ("d", first + 2), ("e", first + 3)):
                world.admit(answers=[(broker, RoundReply(number, 0, 0, 0, "s"))])
        assert "".join(world.identity._check._sightings) == ("" if is_accepted else "be")
    assert World().identity.make_round(1, can_write=True) is None, "it belongs to no cluster"


@pytest.mark.parametrize("outcome", ["all answer", "one is silent", "one falls silent", "forgotten", "no cluster"])
async def test_a_store_is_checked_by_all_that_answer_in_time(autojump_clock: MockClock, outcome: str) -> None:
    former = attrs.evolve(RECORD, starts=("s", *(f"t{number}" for number in range(STARTS_MAX - 1))))
    world = World() if outcome == "no cluster" else World({STORE_KEY: encode_store_record(former)})
    world.written.set()
    world.state.brokers["a"].start = "s"
    begun, is_silent = trio.current_time(), outcome.endswith("silent")
    if outcome == "one falls silent":
        world.admit(("c", Round(5, RoundKind.CHECKED, StoreClaim(("t",)))))
        world.take()

    async def answer() -> None:
        """Answer as the others do, which remember the first start."""
        while True:
            await trio.sleep(0.05)
            if not world.take():
                continue
            claim = world.identity.claim
            assert claim is not None
            memory = StoreMemory("s", 0, "", 1 if outcome == "forgotten" else 0, 0)
            brokers = "b" if is_silent else "bc"
            answers = [(each, CheckAnswer(claim.start, memory)) for each in brokers]
            answers.append(("c", CheckAnswer("another start", memory)))
            world.identity.process_check(StoreChecked(frozenset(), answers, {}))

    settled = list[Any]()

    async def wait_settled() -> None:
        await trio.sleep(0.07)
        settled.append(world.take())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer)
        if outcome == "forgotten":
            with pytest.raises(OutdatedStoreError, match="later writes"):
                await world.identity.check(trio.lowlevel.checkpoint)
        else:
            await world.identity.check(wait_settled)
            assert world.identity._is_checked
            assert settled == [[]] * (outcome != "no cluster"), "it asks when it has found the others"
        nursery.cancel_scope.cancel()
    if outcome == "no cluster":
        assert (world.machine.unchecked, world.identity.claim) == (None, None)
        return
    assert world.identity.record is not None
    assert world.identity.record.starts[:-1] == ("s", *former.starts[2:]), "the accepted one stays"
    assert decode_store_record(world.pending[STORE_KEY]) == world.identity.record
    if outcome != "forgotten":
        assert world.machine.unchecked == (frozenset("c") if is_silent else frozenset())
        assert trio.current_time() - begun == pytest.approx(SETTLE_S if is_silent else 0, abs=0.2)
        assert not world.identity.is_accepted
        world.state.brokers["a"].start = world.identity.record.starts[-1]
        assert world.identity.is_accepted


async def test_a_store_is_checked_again_by_brokers_that_are_heard_later_and_takes_no_part_meanwhile(
    autojump_clock: MockClock,
) -> None:
    """Until the cluster has accepted its start, all others count as unchecked that have not answered."""
    asked = Round(5, RoundKind.WRITABLE, StoreClaim(("t",)))
    for is_accepted, has_forgotten in product(EITHER, EITHER):
        world, problems = World({STORE_KEY: encode_store_record(RECORD)}), list[OutdatedStoreError]()
        world.state.brokers["a"].start = "s" if is_accepted else ""
        world.machine.unchecked = frozenset("bcd")

        async def watch(world: World = world, problems: list[OutdatedStoreError] = problems) -> None:
            try:
                await world.identity.watch()
            except OutdatedStoreError as error:
                problems.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            world.identity._is_checked = True
            assert world.admit(("d", asked)) == {"d": asked}
            for met in "bc":
                world.identity.process_check(StoreChecked(frozenset(met), [], {}))
            for answered in ("", "b", "c"):
                claim = world.identity.claim
                assert claim is not None
                memory = StoreMemory("s", 0, "", 1 if has_forgotten and answered == "c" else 0, 0)
                answers = [(each, CheckAnswer(claim.start, memory)) for each in answered]
                world.identity.process_check(StoreChecked(frozenset(), answers, {}))
                await trio.sleep(0.25)
                is_done = answered == "c" and not has_forgotten
                kinds = [each.kind for each in world.take() if isinstance(each, Round)]
                assert set(kinds) <= {RoundKind.CHECKED}
                assert (len(kinds) > 1) == (answered != "c"), "again and again until all have answered"
                assert world.admit(("d", asked)) == ({"d": asked} if is_done else {})
                assert world.acted == ["released"] * is_done
            assert bool(problems) == has_forgotten
            assert world.machine.unchecked == frozenset("bcd" if has_forgotten else "" if is_accepted else "d")
            nursery.cancel_scope.cancel()


def test_counters_of_others_are_stored_when_they_change() -> None:
    world = World({STORE_KEY: encode_store_record(RECORD)})
    for counter, is_new in ((1, True), (1, False), (2, True)):
        world.identity._known.counters["b"] = SentCounter("t", counter)
        world.identity.count_writes()
        assert (COUNTERS_KEY in world.pending) == is_new
        world.pending.clear()
    commit: Any = SimpleNamespace(batches=["batch"], added=[])
    for has_written in (True, False, False, True):
        if has_written:
            world.identity.done(commit)
        world.identity.count_writes()
        assert (COUNTERS_KEY in world.pending) == has_written, "an idle broker writes nothing"
        world.pending.clear()
