"""What the storage of a broker does in each case: waits, refusals, retries and deletions. All around it is faked."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import product
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from dafka.batches import encode_batch, read_header
from dafka.broker.core.log.log import Log
from dafka.broker.core.log.log_table import LogTable
from dafka.broker.core.log.offset_assigner import OffsetAssigner
from dafka.broker.core.metadata.leader_and_isr import LeaderAndIsr
from dafka.broker.core.metadata.topics import Deletion, Topic
from dafka.broker.core.partition_address import INDEX_TOPIC
from dafka.broker.core.positions import Offset, RecordSequence
from dafka.broker.core.replication.checkpoints import CHECKPOINTS_TOPIC
from dafka.broker.log.broker_storage import BrokerStorage
from dafka.broker.log.compaction import LogCompaction, LogPolicy
from dafka.broker.log.damaged_logs import DamagedLogs
from dafka.broker.log.deletion import RecordDeletion
from dafka.broker.log.durable_waits import DurableWaits
from dafka.broker.log.expiry import find_retained_offset
from dafka.broker.log.log_starts import LogStarts
from dafka.broker.log.reader import LAST_OFFSETS_MAX, LogReader, split_committed
from dafka.broker.log.retention import LogRetention
from dafka.broker.log.space_reserve import AGAIN_FACTOR, SpaceReserve
from dafka.broker.log.stages import AssignOffsets
from dafka.broker.log.trimming import LogTrimmer
from dafka.broker.log.waiters import LogWaiters
from dafka.broker.log.writer import PendingAppend
from dafka.config import StoreConfig
from dafka.errors import NotLeaderError, StorageCorruptError, StorageError, TopicDeletedError
from dafka.records import Partition, RecordBatch
from dafka.storage import PartitionInfo, RetentionPolicy
from dafka.storage.memory import MemoryStorage
from tests.broker.core.entries import marker_entry
from tests.seeds import each_seed

NATIVE = Partition("orders", "P")
INDEX = Partition(INDEX_TOPIC, "a/1D/0/5")


def begin(records: int = 0, native: int = 0) -> tuple[OffsetAssigner, Log]:
    """Return a log that this broker leads, with records of its own and of a producer."""
    assigner = OffsetAssigner(LogTable("a"))
    assigner.table.add_topic(Topic("orders", "1D", 1))
    (log,) = assigner.table.logs("orders")
    log.leadership = LeaderAndIsr("a", is_led=True)
    batches = [RecordBatch(log.leader_partition, 0, [b""] * records), RecordBatch(NATIVE, 0, [b""] * native)]
    assigner.commit(assigner.plan(batches, 0))
    return assigner, log


def note(made: list[Any], what: str) -> Any:
    async def run(*arguments: Any) -> None:
        made.append((what, *arguments))

    return run


# Waits


async def test_capacity_is_waited_for_as_often_as_it_is_taken_by_others(autojump_clock: MockClock) -> None:
    machine: Any = SimpleNamespace(pending_bytes=10)
    fake: Any = SimpleNamespace(has_work=lambda: True)
    fake.queue = SimpleNamespace(is_deleting=True)
    storage: Any = BrokerStorage(fake, machine, fake, fake, fake, 10)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(storage.wait_capacity)
        for pending_bytes in (10, 11, 9):
            await wait_all_tasks_blocked()
            assert nursery.child_tasks
            machine.pending_bytes = pending_bytes
            storage.acknowledged(None)
    machine.pending_bytes = 0
    await storage.wait_capacity()


def test_partitions_end_after_what_is_being_written() -> None:
    fake: Any = SimpleNamespace(stored=SimpleNamespace(durable={"orders": {"P": 3, "Q": 4}, "others": {"P": 9}}))
    in_flight = [RecordBatch(NATIVE, 3, [b""] * 2), RecordBatch(NATIVE, 5, [b""]), RecordBatch(INDEX, 0, [b""])]
    pipeline: Any = SimpleNamespace(in_flight=in_flight)
    storage = BrokerStorage(fake, fake, pipeline, fake, fake, 0)
    assert storage.ends("orders") == {NATIVE: 6, Partition("orders", "Q"): 4}


def test_an_append_is_known_to_be_in_the_log_when_enough_brokers_hold_it() -> None:
    for is_durable, all_replicas, mark, is_led, epoch, moved in product(
        (True, False), (True, False), (2, 3), (True, False), (0, 1), (True, False)
    ):
        assigner, log = begin(3)
        assigner.table.replicate(log)
        durable = trio.Event()
        if is_durable:
            durable.set()
        log.high_watermark, log.leadership = Offset(mark), LeaderAndIsr("a", epoch, is_led=is_led)
        own = Partition("orders", "former") if moved else log.leader_partition
        append = PendingAppend(LogWaiters(), assigner.table, log, own, RecordSequence(0), 3, 0, durable)
        is_enough = mark == 3 or (is_durable and not all_replicas)
        assert append.find_committed(all_replicas=all_replicas) == (0 if is_enough and not moved else None)
        if is_led and not epoch:
            assert append.find_offset() == 0
        else:
            with pytest.raises(NotLeaderError):
                append.find_offset()


async def test_a_start_has_moved_when_the_deletion_is_durable_too(autojump_clock: MockClock) -> None:
    assigner, log = begin(3)
    written = [trio.Event(), trio.Event()]
    waiting = iter(written)
    fake: Any = SimpleNamespace(waits=DurableWaits(), write=lambda: next(waiting))
    starts = LogStarts(assigner.table, fake, fake, LogWaiters())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(starts.move, log, Offset(2))
        for each, start in zip(written, (0, 2), strict=True):
            await wait_all_tasks_blocked()
            assert (log.index.start_offset, len(nursery.child_tasks)) == (start, 1)
            each.set()


@pytest.mark.parametrize("error", [None, NotLeaderError, TopicDeletedError])
async def test_a_start_moves_when_enough_replicas_store_it_unless_this_broker_leads_no_longer(
    error: type[Exception] | None, autojump_clock: MockClock
) -> None:
    (assigner, log), watchers, committed, done = begin(3), LogWaiters(), list[bool](), trio.Event()
    assigner.table.replicate(log)
    done.set()
    storage: Any = SimpleNamespace(waits=DurableWaits(), write=lambda: done)
    logs: Any = SimpleNamespace(find=lambda _name: log, has_committed_index=lambda *_: bool(committed))
    starts = LogStarts(assigner.table, logs, storage, watchers)

    async def move() -> None:
        with nullcontext() if error is None else pytest.raises(error):
            await starts.move(log, Offset(2))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(move)
        await wait_all_tasks_blocked()
        assert log.index.start_offset == 0
        if error is None:
            committed.append(True)
        log.is_gone = error is TopicDeletedError
        log.leadership = LeaderAndIsr("a", 0 if error is None else 1, is_led=True)
        watchers.notify(log)
    assert log.index.start_offset == (2 if error is None else 0)


async def test_records_that_cannot_be_deleted_yet_stay_for_now(caplog: pytest.LogCaptureFixture) -> None:
    _, log = begin(3)
    errors = [NotLeaderError("another leads", ""), TopicDeletedError("orders"), StorageError("disk full")]

    async def move(_log: Log, _start: Offset) -> None:
        await trio.lowlevel.checkpoint()
        raise errors.pop()

    fake: Any = None
    starts: Any = SimpleNamespace(move=move)
    retention: Any = LogRetention(fake, fake, fake, fake, StoreConfig(), "a", fake, starts, fake, fake)
    while errors:
        await retention._move_start(log, Offset(2))
    assert [each.getMessage() for each in caplog.records] == [
        "expired records of log 0 of orders stay for now: disk full"
    ]


@pytest.mark.parametrize("failures", range(3))
def test_stored_records_get_their_offsets_in_order_after_a_failure(failures: int) -> None:
    assigner, log = begin()
    log.backfill = {"P": RecordSequence(0)}
    commit: Any = SimpleNamespace(batches=[], added=[])
    stage = AssignOffsets(assigner.table, LogWaiters())
    stage.assign_later(log, RecordBatch(NATIVE, 0, [b""] * 2))
    for number in range(failures + 1):
        stage.prepare(commit)
        stage.assign_later(log, RecordBatch(NATIVE, 2 + number, [b""]))
        if number < failures:
            stage.failed(commit, OSError())
            assert log.index.end_offset == 0
    for _ in range(2):
        stage.done(commit)
        stage.prepare(commit)
    assert log.index.end_sequence("P") == 3 + failures
    assert not stage.has_work()


@each_seed(20)
def test_a_disk_is_low_until_somewhat_more_than_the_reserve_is_free(seed: int) -> None:
    draw, held, is_low = Random(seed), list[bool](), False
    fake: Any = SimpleNamespace(space_problem="", hold_client_data=lambda _now, is_held: held.append(is_held))
    reserve = SpaceReserve(fake, lambda _: None, fake, "", 100)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(trio, "current_time", lambda: 0.0)
        for _ in range(40):
            free, before = draw.randint(95, 115), is_low
            is_low = free < (100 * AGAIN_FACTOR if is_low else 100)
            reserve._check(free)
            assert bool(fake.space_problem) == is_low
            assert held == ([is_low] if is_low != before else [])
            held.clear()


# What is committed, damaged or expired


@each_seed(100)
def test_records_of_aborted_transactions_are_split_off(seed: int) -> None:
    draw, at = Random(seed), 0
    open_since, aborted = dict[int, tuple[int, list[int]]](), list[tuple[int, int]]()
    batches, is_committed = list[bytes](), dict[int, bool]()
    for _ in range(20):
        producer, count = draw.choice([7, 8]), draw.randint(1, 3)
        step = draw.choice(["plain", "records", "records", "end"])
        if step == "end" and producer in open_since:
            first, held = open_since.pop(producer)
            is_aborted = draw.random() < 0.5
            aborted += [(producer, first)] * is_aborted
            is_committed.update(dict.fromkeys(held, not is_aborted))
            batches.append(
                encode_batch(at, [b""], keys=[bytes(4)], timestamps=1, producer_id=producer, is_control=True)
            )
            at += 1
            continue
        if step == "records":
            open_since.setdefault(producer, (at, []))[1].append(at)
        is_committed[at] = True
        transaction: dict[str, Any] = {
            "producer_id": producer,
            "producer_epoch": 0,
            "base_sequence": 0,
            "is_transactional": True,
        }
        batches.append(encode_batch(at, [b""] * count, timestamps=1, **(transaction if step == "records" else {})))
        at += count
    end = min((first for first, _ in open_since.values()), default=at)
    headers = [(read_header(data), data) for data in batches if read_header(data).base_offset < end]
    found = split_committed(headers, sorted((each for each in aborted if each[1] < end), key=lambda each: each[1]))
    assert {header.base_offset: found for (header, _), found in found} == {
        each: found for each, found in is_committed.items() if each < end
    }


def test_a_damaged_log_is_copied_when_it_has_grown_since_the_damage_was_found() -> None:
    topic = SimpleNamespace(topic_id="1D", name="orders", log_count=1)
    state: Any = SimpleNamespace(find_id=lambda _: topic, topics={"orders": topic})
    outcomes: tuple[int | None, ...] = (None, 3, 4, 5)
    for partition, ends in product((INDEX, NATIVE), product(outcomes, repeat=3)):
        damaged, known = DamagedLogs(state), list[int]()
        damaged.record(partition, StorageCorruptError("no", 1))
        for end in ends:
            damaged.record_end("1D/0", end)
            known += [] if end is None else [end]
            has_grown = partition is INDEX and (end is None or end > known[0])
            assert damaged.to_copy == (("1D/0",) if has_grown else ())
            assert damaged.unreadable == (("1D/0",) if end is None else ())
        assert damaged.partitions("1D/0") == [partition]
        damaged.forget("1D/0")
        assert (damaged.partitions("1D/0"), list(damaged.names)) == ([], [])


async def test_the_last_record_is_found_unless_as_many_markers_follow_it_as_are_searched() -> None:
    """Otherwise it would take long to list the topics of a broker."""
    for count in (0, 1, LAST_OFFSETS_MAX - 1, LAST_OFFSETS_MAX, LAST_OFFSETS_MAX + 1):
        storage, (_, log) = MemoryStorage(), begin(2)
        await storage.append([RecordBatch(log.leader_partition, 0, [b"", b""], timestamps=[1000, 2000])])
        for number in range(count):
            log.index.append_marker(marker_entry(2 + number, 2, 7, 0, 1, 3000, None))
        log.high_watermark = log.index.end_offset
        assert await LogReader(storage).find_last_timestamp(log) == (2000 if count < LAST_OFFSETS_MAX else None)


async def test_records_expire_that_were_stored_before_a_time_as_far_as_that_is_known() -> None:
    """Records that only other brokers store count as old as the last one that was stored here."""
    for earliest, last in product((None, 10, 40), (None, 10, 40)):
        _, log = begin(native=3)
        infos = {NATIVE: PartitionInfo(0, 3, earliest_stored_at=earliest, last_append_at=last)}

        async def find_sequence_by_time(_partition: Partition, _time: int) -> int:
            await trio.lowlevel.checkpoint()
            return 1

        storage: Any = SimpleNamespace(find_sequence_by_time=find_sequence_by_time)
        reader: Any = None
        found = await find_retained_offset(storage, reader, log, infos, RetentionPolicy(age_ms=30), 60)
        by_last = 3 if last == 10 else 0
        assert found == {None: by_last, 10: 1, 40: 0}[earliest]


@pytest.mark.parametrize(("dirty", "is_due"), [(0, False), (4, False), (5, True), (6, True)])
async def test_a_log_is_compacted_when_enough_of_it_is_new(dirty: int, is_due: bool) -> None:
    for may_expire in (True, False):
        _, log = begin(native=3)
        log.high_watermark = Offset(0)
        made: list[Any] = []
        fake: Any = None
        compaction: Any = LogCompaction(fake, fake, fake, fake, fake, {log: may_expire}.__getitem__)
        part = SimpleNamespace(address="P", clean_end=0, is_dirty=dirty > 0)
        part.found = SimpleNamespace(dirty_bytes=dirty, clean_bytes=10 - dirty)

        async def find_parts(_log: Log, part: object = part) -> list[object]:
            await trio.lowlevel.checkpoint()
            return [part]

        compaction._find_parts, compaction._compact_part = find_parts, note(made, "compact")
        await compaction.compact_log(log, LogPolicy(dirty_ratio=0.5, tombstone_ms=1000, keys_max=10))
        assert [each is part for _, _, each, _ in made] == [True] * is_due
        assert all((keys._stored_before > 0) == may_expire for *_, keys in made)


# Deletions


def test_checkpoints_go_with_their_partitions() -> None:
    made: list[Any] = []
    other, done = Partition(INDEX_TOPIC, "a/1D/1/5"), trio.Event()
    fake: Any = SimpleNamespace(forget=lambda _: None, state=lambda _: {INDEX.address.encode(): b"", b"kept": b""})
    fake.write_state = lambda *change: made.append(change)
    fake.delete_partitions = lambda _: done
    deletion = RecordDeletion(fake, fake, fake, fake, fake, fake, 0)
    for partitions, gone in (([INDEX, other, NATIVE], True), ([other, Partition("orders", INDEX.address)], False)):
        assert deletion.delete_partitions(partitions) is done
        assert made == ([(CHECKPOINTS_TOPIC, [(INDEX.address.encode(), None)])] if gone else [])
        made.clear()


async def test_a_topic_is_dropped_when_its_deletion_is_durable(autojump_clock: MockClock) -> None:
    assigner, log = begin()
    durable, forgotten = trio.Event(), list[Partition]()
    machine: Any = SimpleNamespace(partitions_of=lambda _: (), forget_own=forgotten.append)
    storage: Any = SimpleNamespace(wait_durable=durable.wait)
    fake: Any = SimpleNamespace(forget=lambda _: None)
    deletion = RecordDeletion(machine, storage, assigner.table, fake, fake, fake, 0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(deletion.drop_topic, Deletion(Topic("orders", "1D", 1)), [log])
        await wait_all_tasks_blocked()
        assert forgotten == []
        durable.set()
    assert forgotten == [log.leader_partition, log.index_partition]


async def test_only_what_is_stored_here_is_trimmed() -> None:
    for start, durable, earliest in product(range(4), range(4), range(4)):
        assigner, log = begin(native=3)
        assigner.table.move_start(log, Offset(start))
        ends = {NATIVE: durable, log.leader_partition: 0}
        stored: Any = SimpleNamespace(durable_end=ends.__getitem__, earliest={NATIVE: earliest})
        fake: Any = None
        found = await LogTrimmer(fake, stored, assigner.table, fake).find_surplus("orders")
        kept = min(start, durable)
        assert found == ({NATIVE: kept} if kept > earliest else {})


async def test_indexes_of_other_leaders_are_trimmed_where_they_were_rewritten() -> None:
    for owner, sequence, earliest in product("ab", (3, 4), (3, 4)):
        trimmed: list[Any] = []
        partition = Partition(INDEX_TOPIC, f"{owner}/1D/0/5")
        stored = SimpleNamespace(earliest={partition: earliest})
        storage: Any = SimpleNamespace(stored=stored, storage=SimpleNamespace(trim=note(trimmed, "trim")))
        log: Any = SimpleNamespace(index_partition=lambda _epoch, partition=partition: partition)
        log.local_log = SimpleNamespace(needed_from=lambda sequence=sequence: {"epoch": sequence})
        fake: Any = None
        retention: Any = LogRetention(storage, fake, fake, fake, StoreConfig(), "a", fake, fake, fake, fake)
        moved: dict[Partition, int] = {}
        await retention._trim_indexes(log, moved)
        is_due = owner == "b" and sequence > earliest
        assert (trimmed, moved) == (([("trim", partition, sequence)], {partition: sequence}) if is_due else ([], {}))
