"""A broker that begins to lead a log, follows others, and merges, while what it has stored or who leads changes."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import trio
import trio.testing
from trio.testing import MockClock

from dafka.broker.core.log.entries import MergedEntry
from dafka.broker.core.log.log import LEADER, Log
from dafka.broker.core.log.log_table import LogTable
from dafka.broker.core.metadata.brokers import BrokerRegistration, Brokers
from dafka.broker.core.metadata.features import MERGED_ENDS
from dafka.broker.core.metadata.leader_and_isr import LeaderAndIsr
from dafka.broker.core.metadata.topics import Topic
from dafka.broker.core.partition_address import EpochAddress
from dafka.broker.core.positions import Offset, RecordSequence
from dafka.broker.core.replication.epoch_tree import EpochTree
from dafka.broker.core.replication.records import NO_EPOCH_END, EpochStart, LeaderAndEpoch
from dafka.broker.replication import divergent_records, leader
from dafka.broker.replication.leader import HELD_S, LedLogs
from dafka.broker.replication.pending_logs import READ_AGAIN_S
from dafka.errors import StorageError
from dafka.records import Partition, RecordBatch
from dafka.storage import PartitionInfo
from tests.broker.core.entries import epoch_end, run_entry

FIRST, SIDE, OWN, NEXT = (
    LeaderAndEpoch(epoch, broker) for epoch, broker in ((0, "b"), (1024, "c"), (2048, "a"), (3072, "a"))
)
STARTS = [
    EpochStart("1D/0", FIRST, NO_EPOCH_END, ("a", "b", "c")),
    EpochStart("1D/0", SIDE, epoch_end(FIRST, 5), ("a", "b", "c")),
    EpochStart("1D/0", OWN, epoch_end(FIRST, 10), ("a", "b", "c"), log_start=Offset(6)),
    EpochStart("1D/0", NEXT, epoch_end(OWN, 12), ("a", "b", "c")),
]
LATER = LeaderAndEpoch(1536, "c")
"""Another epoch, which continues that of `SIDE`."""

NATIVE = Partition("orders", "P")


@attrs.define(eq=False, slots=False)
class LogOfReplica:
    replica: Any
    local_log: Any
    name: str = "1D/0"
    topic: str = "orders"
    topic_id: str = "1D"
    number: int = 0

    def leader_partition(self, epoch: LeaderAndEpoch) -> Partition:
        return Partition(self.topic, str(EpochAddress(epoch.leader, self.topic_id, self.number, epoch.epoch)))


class World:
    """The broker `a`, with a log that it leads or follows. Reading it has a scripted outcome, and takes a moment."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.table, self.brokers = LogTable("a"), Brokers(BrokerRegistration(address="a"), 1.0)
        self.table.add_topic(Topic("orders", "1D", 1))
        (self.state,) = self.table.logs("orders")
        self.table.replicate(self.state)
        self.table.end_epoch(self.state)
        self.ends, self.made = {FIRST: 10}, list[Any]()
        self.refreshed, self.restored, self.were_read = list[Any](), list[Any](), list[Any]()
        self.tail, self.writes = list[Any](), list[int]()
        self.voted, self.is_complete = "bc", True
        self.replica: Any = SimpleNamespace(
            led_epoch=OWN,
            latest=STARTS[2],
            epoch_tree=EpochTree(STARTS),
            high_watermark=9,
            repeat_acknowledgement=lambda: ["acknowledge"],
            has_voted=lambda broker, epoch: broker in self.voted and epoch == self.replica.led_epoch.epoch,
            local_epochs=SimpleNamespace(is_complete=lambda _epoch: self.is_complete),
        )
        self.log: Any = LogOfReplica(self.replica, SimpleNamespace(ends=lambda: self.ends))
        self.failures, self.restored_start, self.during = 0, 0, "nothing"
        fetch = SimpleNamespace(observed_topics=(), find=lambda _: self.log, fetch_missing=lambda _: ["fetch"])
        self.members = SimpleNamespace(feature_level=MERGED_ENDS)
        state = SimpleNamespace(members=self.members)
        tables: Any = SimpleNamespace(log_table=self.table, brokers=self.brokers, logs=fetch, state=state)
        self.durable_end = 0
        storage: Any = SimpleNamespace(storage=SimpleNamespace(read=self.read), write=lambda: self.writes.append(1))
        storage.ends, storage.earliest = (
            lambda topic: {Partition(topic, "Q"): 9},
            lambda topic: {Partition(topic, "Q"): 4},
        )
        storage.wait_durable, storage.assign_offsets = self.wait_durable, self.assign
        storage.durable_end = lambda _partition: self.durable_end
        own: Any = SimpleNamespace(lead=lambda _log: self.made.append("lead"))
        fake: Any = SimpleNamespace(notify=lambda _log: None)
        led: Any = LedLogs(tables, storage, own, fake, fake, self.made.extend)
        led.refresh = self.refreshed.append
        self.led = led
        for name in ("restore_log", "continue_log"):
            monkeypatch.setattr(leader, name, getattr(self, name))
        monkeypatch.setattr(divergent_records, "read_tail", self.read_tail)
        monkeypatch.setattr(self.table, "merge_divergent", lambda _state, found: self.made.append(found))

    async def _step(self) -> None:
        await trio.sleep(0.01)
        if self.failures:
            self.failures -= 1
            raise StorageError("no")
        if self.during in {"another leads", "this one leads"}:
            self.replica.led_epoch = None if self.during == "another leads" else OWN
        self.state.is_gone |= self.during == "deleted"

    async def wait_durable(self) -> None:
        await trio.lowlevel.checkpoint()
        self.durable_end = 5

    async def restore_log(
        self, _storage: object, _log: object, state: Log, epoch: LeaderAndEpoch, *, is_whole: bool
    ) -> None:
        self.restored.append((epoch, is_whole, state.leader_partition))
        await self._step()
        state.next_start = Offset(self.restored_start)
        state.index.append("P", RecordSequence(0), 10, is_open=False)

    async def continue_log(self, *_: Any) -> None:
        await self._step()
        self.made.append("continue")

    async def read_tail(self, _storage: object, _log: object, epoch: LeaderAndEpoch, *offsets: int) -> list[Any]:
        await self._step()
        self.made.append((epoch, *offsets))
        return self.tail

    async def read(self, partition: Partition, first: int, _count: int) -> RecordBatch | None:
        await self._step()
        self.were_read.append((partition.address, first))
        if first not in {3, 4}:
            return RecordBatch(partition, first, [b""] * 2)
        self.durable_end += 2 * (self.during == "more comes")
        return None

    async def assign(self, _state: Log, batch: RecordBatch) -> None:
        await trio.lowlevel.checkpoint()
        self.made.append((batch.first_sequence, batch.end_sequence))
        self.state.backfill["P"] = RecordSequence(batch.end_sequence)

    def take(self) -> list[Any]:
        made, self.made[:] = list(self.made), []
        return made


async def test_a_log_is_led_when_all_before_its_epoch_is_read_and_nothing_has_changed_meanwhile(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it is asked to twice: the second time, it does so only if the first one has failed."""
    for failures, during, restored_start, asked in product(
        (0, 1), ("nothing", "another leads", "deleted"), (0, 8), (1, 2)
    ):
        world = World(monkeypatch)
        world.failures, world.during, world.restored_start = failures, during, restored_start
        async with trio.open_nursery() as nursery:
            for _ in range(asked):
                nursery.start_soon(world.led.lead, world.log, STARTS[2])
        leads = failures < asked and during == "nothing"
        assert world.take() == ["lead", (world.log, "acknowledge")] * leads
        assert world.table.leads(world.state) == leads
        assert set(world.restored) == {(OWN, True, world.log.leader_partition(OWN))}
        assert (world.refreshed, world.writes) == ([world.log] * leads, [1] * leads)
        assert world.were_read == [("Q", 4)] * leads
        if leads:
            assert (world.state.next_start, world.led._ready_from) == (max(restored_start, 6), {"1D/0": 10})
            assert [world.led.is_ready(world.log) for world.replica.high_watermark in (9, 10)] == [False, True]
            assert list(world.led.divergent._to_merge) == [world.log]


@pytest.mark.parametrize("end", ["stored", "another leads", "dropped"])
@pytest.mark.parametrize("misses", ["records", "a start"])
async def test_a_new_leader_asks_for_what_it_misses_until_that_is_stored_or_it_leads_no_longer(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, end: str, misses: str
) -> None:
    world, start = World(monkeypatch), STARTS[2]
    world.ends = {FIRST: 9 if misses == "records" else 10}
    if misses == "a start":
        start = attrs.evolve(start, parent=epoch_end(SIDE, 5))
        world.replica.epoch_tree = EpochTree([STARTS[0], start])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.led.lead, world.log, start)
        await trio.sleep(2.5 * HELD_S)
        assert world.take() == ["fetch"] * 3
        if end == "stored":
            world.ends = {FIRST: 10, SIDE: 5}
            world.replica.epoch_tree.add(STARTS[1])
            world.led.record_stored([world.log])
        elif end == "another leads":
            world.replica.led_epoch = None
        else:
            world.led._logs.find = lambda _: None
    assert world.take()[:1] == ["lead"] * (end == "stored")


async def test_stored_records_get_offsets_until_none_are_left_or_another_broker_leads(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for first, failures, during in product((0, 1, 3, 5), (0, 2), ("nothing", "another leads", "more comes")):
        world = World(monkeypatch)
        world.table.finish_epoch(world.state, {}, {})
        world.state.backfill, world.failures = {"P": RecordSequence(first)}, failures
        world.during = during
        if during == "another leads":
            world.table.end_epoch(world.state)
            world.state.backfill = {"P": RecordSequence(first)}
        begun = trio.current_time()
        await world.led.catch_up(world.state)
        reads = [(each, each + 2) for each in range(first, 3, 2)] + [(5, 7)] * (during == "more comes" and first < 5)
        assert world.take() == ([] if during == "another leads" else reads)
        assert bool(world.state.backfill) == (during == "another leads")
        waits = failures if during != "another leads" and first < 5 else 0
        assert trio.current_time() - begun == pytest.approx(waits * READ_AGAIN_S, abs=0.1)


async def test_divergent_records_of_ended_epochs_are_merged_once_into_each_epoch(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for voted, is_alive, failures in product(("", "b", "bc"), (True, False), (0, 1)):
        world = World(monkeypatch)
        for each in "bc" if is_alive else "":
            world.brokers.record_registration(BrokerRegistration(address=each))
            world.brokers.record_heartbeat(each, 0.0)
        world.brokers.check_alive(0.5)
        world.voted, world.failures = voted, failures
        world.ends = {FIRST: 13, SIDE: 7, LATER: 9, OWN: 20}  # the start of one is not known here yet
        await world.led.divergent._merge_log(world.log, world.state)
        merged = [(FIRST, 10, 13), [], (SIDE, 5, 7), []]
        due = merged if not is_alive else merged[: 2 * len(voted)]
        assert world.take() == (due if not failures else [])
        assert len(world.writes) == (len(due) // 2 if not failures else 0)
        assert bool(world.led.divergent._to_merge._failed) == bool(due and failures)
        if due != merged or failures:
            continue
        world.ends = {FIRST: 13, SIDE: 9}
        await world.led.divergent._merge_log(world.log, world.state)
        assert world.take() == [(SIDE, 7, 9), []], "only the records since then"
        world.replica.led_epoch = NEXT
        await world.led.divergent._merge_log(world.log, world.state)
        assert world.take() == [(FIRST, 10, 13), [], (SIDE, 5, 9), []]
        world.ends, world.during = {SIDE: 11}, "deleted" if is_alive else "another leads"
        await world.led.divergent._merge_log(world.log, world.state)
        assert world.take() == [(SIDE, 9, 11)], "it leads no longer"


async def test_only_a_leader_that_serves_clients_merges_and_never_into_a_log_of_commands(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for leads, is_led, is_observed, steps_down in product((True, False), repeat=4):
        world = World(monkeypatch)
        world.led._logs.observed_topics = ("orders",) if is_observed else ()
        world.replica.led_epoch, world.ends = OWN if leads else None, {SIDE: 7}
        world.state.leadership = LeaderAndIsr("a", is_led=is_led)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.led.divergent.run)
            world.led.divergent.merge_later([world.log])
            if steps_down:  # before it has got round to it
                world.replica.led_epoch = None
            await trio.sleep(1)
            nursery.cancel_scope.cancel()
        assert world.take() == [(SIDE, 5, 7), []] * (leads and is_led and not is_observed and not steps_down)


async def test_the_end_of_what_was_merged_is_recorded_where_logs_can_diverge_and_all_brokers_know_such_entries(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for level, can_diverge, count in product((MERGED_ENDS - 1, MERGED_ENDS, MERGED_ENDS + 1), (True, False), range(3)):
        world = World(monkeypatch)
        world.members.feature_level, world.state.can_diverge, world.ends = level, can_diverge, {SIDE: 7}
        world.tail = [run_entry(20, LEADER, 3, 4), run_entry(24, LEADER, 9, 2)][:count]
        await world.led.divergent._merge_log(world.log, world.state)
        end = MergedEntry(Offset(0), world.log.leader_partition(SIDE).address, RecordSequence((0, 7, 11)[count]))
        is_recorded = count > 0 and can_diverge and level >= MERGED_ENDS
        assert world.take() == [(SIDE, 5, 7), [*world.tail, *[end] * is_recorded]]


async def test_records_of_epochs_that_diverged_from_others_are_merged_from_where_they_did(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(monkeypatch)
    world.replica.epoch_tree = EpochTree([*STARTS, EpochStart("1D/0", LATER, epoch_end(SIDE, 7), ("a", "b", "c"))])
    world.ends = {FIRST: 13, SIDE: 7, LATER: 9}
    await world.led.divergent._merge_log(world.log, world.state)
    assert world.take() == [(FIRST, 10, 13), [], (SIDE, 5, 7), [], (LATER, 7, 9), []]


async def test_a_follower_shows_what_is_committed_and_read(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for mark, failures, during, is_complete, leads in product(
        (9, 10, 11), (0, 1), ("nothing", "deleted", "this one leads"), (True, False), (True, False)
    ):
        world = World(monkeypatch)
        world.replica.led_epoch, world.replica.latest = OWN if leads else None, STARTS[1]
        world.replica.high_watermark, world.failures, world.during = mark, failures, during
        world.is_complete = is_complete
        await world.led._follow_log(world.log, world.state)
        is_begun = is_complete and not leads
        is_read = is_begun and not failures
        assert world.led.is_followed(world.log, SIDE) == is_read
        is_shown = is_read and during == "nothing"
        assert world.state.high_watermark == (min(mark, 10) if is_shown else 0)
        assert world.refreshed == [world.log] * is_shown
        own = world.log.leader_partition(LeaderAndEpoch(SIDE.epoch, "a"))
        assert world.restored == [(SIDE, False, own)] * is_begun
        assert list(world.led._to_follow._failed) == ["1D/0"] * (is_begun and failures)
        if is_shown:
            await world.led._follow_log(world.log, world.state)
            assert world.take() == ["continue"]


async def test_a_log_is_followed_if_it_is_still_there_when_nothing_else_happens_to_it(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for is_gone in (True, False):
        world = World(monkeypatch)
        world.replica.led_epoch, world.replica.latest = None, STARTS[1]
        world.brokers.own = BrokerRegistration(address="a", rack="r")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.led.run)
            async with world.led._locks["1D/0"]:
                world.led._follow_later(world.log)
                await trio.sleep(1)
                assert world.restored == []
                world.state.is_gone = is_gone
            await trio.sleep(1)
            nursery.cancel_scope.cancel()
        assert len(world.restored) == (not is_gone)


async def test_readers_are_woken_up_when_a_led_log_advances_and_when_its_start_can_move(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for is_known, leads, can_diverge, mark, next_start in product(
        (True, False), (True, False), (True, False), (0, 9), (0, 4, 5)
    ):
        world = World(monkeypatch)
        notified, dropped = list[Log](), list[int]()
        world.led._watchers = SimpleNamespace(notify=notified.append)
        state: Any = SimpleNamespace(
            topic="orders",
            number=0,
            can_diverge=can_diverge,
            shared_offset=0,
            high_watermark=Offset(4),
            next_start=next_start,
            index=SimpleNamespace(start_offset=4),
            drop_shared_batches=lambda dropped=dropped: dropped.append(1),
        )
        world.led._log_table = SimpleNamespace(find_log=lambda *_, state=state if is_known else None: state)
        world.brokers.own = BrokerRegistration(address="a", rack="r")
        world.replica.led_epoch = OWN if leads else None
        world.replica.high_watermark, world.replica.shared_end = Offset(mark), Offset(3)
        world.led.move_high_watermark(world.log, Offset(8))
        is_shown = is_known and leads
        assert state.high_watermark == (mark if is_shown else 4)
        assert state.shared_offset == (3 if is_shown and can_diverge else 0)
        assert (notified, dropped) == ([state] * is_shown, [1] * (is_shown and mark > 0))
        assert list(world.led._to_follow) == ["1D/0"] * (is_known and not leads)
        notified.clear()
        missing = world.led._missing["1D/0"] = trio.Event()
        other = world.led._missing["1D/1"] = trio.Event()
        world.led.record_stored([world.log])
        assert (missing.is_set(), other.is_set(), list(world.led._missing)) == (True, False, ["1D/1"])
        assert notified == [state] * (is_known and next_start > 4)


async def test_a_log_that_others_replicate_from_now_on_is_led_on(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.replica.high_watermark = 0
    world.led.keep_leading(world.log, world.state)
    assert (world.led.is_ready(world.log), world.take()) == (True, ["lead"])


async def test_nothing_of_a_log_is_left_that_is_deleted_here(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for is_locked in (True, False):
        world = World(monkeypatch)
        led, missing = world.led, trio.Event()
        led._followed["1D/0"], led._ready_from["1D/0"], led._epoch_counts["1D/0"] = FIRST, 5, 1
        led.divergent._merged["1D/0"], led._missing["1D/0"] = (OWN, {}), missing
        led._to_follow.put("1D/0")
        if is_locked:
            await led._locks["1D/0"].acquire()
        led.forget("1D/0")
        known = [led._followed, led._ready_from, led._epoch_counts, led.divergent._merged, led._missing, led._to_follow]
        assert not any(map(list, known))
        assert (missing.is_set(), "1D/0" in led._locks) == (True, is_locked)
        led.forget("1D/1")


async def test_a_change_of_the_leadership_is_counted_and_ends_waits(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, waited = World(monkeypatch), list[str]()

    async def wait(name: str) -> None:
        await world.led.wait_leadership(world.state)
        waited.append(name)

    async with trio.open_nursery() as nursery:
        for name in "ab":
            nursery.start_soon(wait, name)
        await trio.testing.wait_all_tasks_blocked()
        assert (waited, world.led.changes) == ([], 0)
        for leader in "bc":
            world.led.set_leadership(world.state, LeaderAndIsr(leader))
        await trio.testing.wait_all_tasks_blocked()
        assert (sorted(waited), world.led.changes, world.state.leadership.leader) == (["a", "b"], 2, "c")
    world.state.is_gone = True
    await world.led.wait_leadership(world.state)


async def test_a_new_topic_begins_with_the_records_that_were_stored_first(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for count, fails in ((1, False), (4, False), (4, True)):
        world, caught_up = World(monkeypatch), list[Any]()
        stored_at = {"P": 30, "Q": 10, "R": None, "S": 20}

        async def partitions(
            topic: str, fails: bool = fails, stored_at: dict[str, int | None] = stored_at
        ) -> dict[Partition, PartitionInfo]:
            await trio.lowlevel.checkpoint()
            if fails:
                raise StorageError("no")
            return {
                Partition(topic, each): PartitionInfo(0, 9, earliest_stored_at=at) for each, at in stored_at.items()
            }

        async def catch_up(state: Log, caught_up: list[Any] = caught_up) -> None:
            await trio.lowlevel.checkpoint()
            caught_up.append(dict(state.backfill))

        world.led._storage.storage.partitions, world.led.catch_up = partitions, catch_up
        world.state.backfill = {each: RecordSequence(n) for n, each in enumerate([*stored_at][:count])}
        before = dict(world.state.backfill)
        await world.led.catch_up_oldest_first(world.state)
        assert caught_up == [before]
        assert [*caught_up[0]] == (["R", "Q", "S", "P"] if count > 1 and not fails else [*before])


async def test_brokers_with_racks_make_leaders_readable_for_their_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    world, refreshed = World(monkeypatch), list[Any]()
    world.led.refresh_all = refreshed.append
    for rack, is_new in (("", False), ("r", True), ("s", False), ("", True)):
        world.brokers.record_registration(BrokerRegistration(address="b", rack=rack))
        world.led.update_racks()
        assert (world.led._has_racks, refreshed) == (bool(rack), [world.led._logs] * is_new)
        refreshed.clear()
