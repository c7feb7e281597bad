"""Share partitions behave like a table of records, whatever members, clocks, leaders and coordinators do.

The coordinator loses requests and answers. The leader loses its leadership, its lease and the end of its log. Letters
are stored in parts, and not always at once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from random import Random
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from dafka.batches import encode_batch, encode_marker, read_header
from dafka.broker.coordinator import led_share_partition, share_partitions, share_reads
from dafka.broker.coordinator.dead_letters import StoredLetters
from dafka.broker.coordinator.led_share_partition import LedSharePartition, ShareLoader
from dafka.broker.coordinator.share_partitions import IDLE_S, SharePartitions
from dafka.broker.coordinator.share_reads import AcquiredRecords, ShareRead, ShareReader
from dafka.broker.core.coordination.effects import ReplacedState
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.results import FetchedOffset
from dafka.broker.core.groups.share.runs import ENDED, RecordState, Run
from dafka.broker.core.groups.share.settings import ShareSettings
from dafka.broker.core.groups.share.share_partition import Acknowledgement, AcknowledgeType, ShareEvent, ShareLimits
from dafka.broker.core.groups.share.state import SharePartitionKey, ShareState, restore_runs
from dafka.broker.core.groups.share.states import LoadedShareState, ShareStates
from dafka.broker.core.topic_partition import TopicPartition
from dafka.broker.log.durable_waits import DURABLE_S, DurableWaits
from dafka.broker.log.waiters import LogWaiters
from dafka.errors import StorageCorruptError, StorageError
from tests.broker.core.groups.share.model import Offset, expand_ranges
from tests.seeds import each_seed

SEEDS, STEPS = 16, 200
MEMBERS = ("m", "n")
TEMPORARY = [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE]
AVAILABLE, ACQUIRED, ARCHIVING = RecordState.AVAILABLE, RecordState.ACQUIRED, RecordState.ARCHIVING
GAP, ACCEPT, RELEASE, REJECT, RENEW = AcknowledgeType
NOT_LEADER, REPLACED = ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_STATE_EPOCH
AGE_MS, TIME_MS = 1_000, 10_000
PATIENCE_S = 60
GROUPS = {
    "early": ShareSettings(is_earliest=True, is_committed=True, limits=ShareLimits(lock_ms=7_000)),
    "timed": ShareSettings(
        begins_after_ms=AGE_MS, limits=ShareLimits(lock_ms=5_000, delivery_count_max=2, has_dead_letters=True)
    ),
    "late": ShareSettings(limits=ShareLimits(lock_ms=3_000, in_flight_max=9, has_dead_letters=True)),
}


def now_ms() -> int:
    return round(trio.current_time() * 1000)


@attrs.frozen
class Batch:
    first: int
    end: int
    data: bytes
    producer_id: int = -1
    commits: bool | None = None
    """Whether this marker commits; None if this is no marker."""


@attrs.define(eq=False)
class FakeLog:
    """A log with records, transactions, markers, and offsets without any."""

    number: int
    draw: Random
    topic: str = "orders"
    leadership: Any = attrs.field(factory=lambda: SimpleNamespace(is_led=True, epoch=0))
    index: Any = attrs.field(factory=lambda: SimpleNamespace(start_offset=0))
    is_end_known: bool = True
    has_lease: bool = True
    may_have_letters: bool = True
    high_watermark: int = 0
    batches: list[Batch] = attrs.field(factory=list)
    divergences: list[tuple[int, int]] = attrs.field(factory=list)

    def append(self) -> None:
        first, count, producer_id = self.high_watermark, self.draw.randint(1, 4), self.draw.choice([-1, -1, 0, 1])
        end, open_ids = first + count, sorted(self.open_transactions())
        if open_ids and self.draw.random() < 0.4:
            producer_id, commits, end = self.draw.choice(open_ids), self.draw.random() < 0.5, first + 1
            data = encode_marker(producer_id, 0, 0, is_commit=commits, base_offset=first)
            self.batches.append(Batch(first, end, data, producer_id, commits))
        elif self.draw.random() < 0.8:
            data = encode_batch(
                first,
                [b"v%d" % each for each in range(first, end)],
                timestamps=0,
                producer_id=producer_id,
                producer_epoch=min(producer_id, 0),
                base_sequence=min(producer_id, 0),
                is_transactional=producer_id >= 0,
            )
            self.batches.append(Batch(first, end, data, producer_id))
        self.high_watermark = end

    def open_transactions(self) -> dict[int, int]:
        """Return where each open transaction begins, by its producer."""
        found = dict[int, int]()
        for each in self.batches:
            if each.commits is not None:
                found.pop(each.producer_id, None)
            elif each.producer_id >= 0:
                found.setdefault(each.producer_id, each.first)
        return found

    @property
    def last_stable_offset(self) -> int:
        return min(self.open_transactions().values(), default=self.high_watermark)

    def aborted(self) -> list[tuple[int, int, int]]:
        """Return the aborted transactions: the producer, where it begins, and its marker."""
        found, begun = list[tuple[int, int, int]](), dict[int, int]()
        for each in self.batches:
            if each.commits is not None:
                first = begun.pop(each.producer_id, each.first)
                found += [] if each.commits else [(each.producer_id, first, each.first)]
            elif each.producer_id >= 0:
                begun.setdefault(each.producer_id, each.first)
        return found

    def aborted_between(self, offset: int, end: int) -> list[tuple[int, int]]:
        found = [(producer, first) for producer, first, marker in self.aborted() if first < end and marker >= offset]
        return sorted(found, key=lambda each: each[1])

    def find_records(self, settings: ShareSettings) -> set[int]:
        """Return the offsets of the records that a group gets."""
        end = self.last_stable_offset if settings.is_committed else self.high_watermark
        aborted = self.aborted() if settings.is_committed else []
        return {
            offset
            for each in self.batches
            if each.commits is None
            and not any(
                each.producer_id == producer and first <= each.first < last for producer, first, last in aborted
            )
            for offset in range(max(each.first, self.index.start_offset), min(each.end, end))
        }

    def delete(self) -> None:
        """Delete the first records."""
        self.index.start_offset = self.draw.randint(self.index.start_offset, self.high_watermark)
        self.batches = [each for each in self.batches if each.end > self.index.start_offset]

    def truncate(self, epoch: int) -> None:
        """Lose the last records to another leader, whose epoch this is."""
        kept = self.batches[: len(self.batches) - self.draw.randint(1, 3)]
        if kept:
            self.batches, self.high_watermark = kept, kept[-1].end
            self.divergences.append((epoch, kept[-1].end))

    def find_valid_end(self, epoch: int) -> int:
        """Return up to which offset the records of a leader are valid."""
        return min((end for begun, end in self.divergences if epoch < begun), default=2**62)


@attrs.define(eq=False)
class Table:
    """What a share partition must say of each record, from when it is loaded."""

    served: LedSharePartition
    limits: ShareLimits
    start: int
    records: dict[int, Offset] = attrs.field(factory=dict)
    used_at: float = 0.0

    def find(self, offset: int) -> Offset:
        return self.records.get(offset, Offset() if offset >= self.start else Offset(RecordState.ARCHIVED))

    def find_acquired(self, member_id: str = "") -> list[int]:
        acquired = [each for each, found in self.records.items() if found.state is ACQUIRED]
        return sorted(each for each in acquired if member_id in {"", self.records[each].member_id})

    def acquire(self, member_id: str, offset: int) -> None:
        self.records[offset] = Offset(ACQUIRED, self.find(offset).count + 1, member_id, now_ms() + self.limits.lock_ms)

    def end(self, offset: int, kind: AcknowledgeType) -> None:
        found = self.records[offset]
        if kind is RENEW:
            found.deadline_ms = now_ms() + self.limits.lock_ms
        elif kind in {ACCEPT, GAP}:
            self.records[offset] = Offset(RecordState.ARCHIVED)
        elif kind is RELEASE and found.count < self.limits.delivery_count_max:
            self.records[offset] = Offset(count=found.count)
        else:
            self.records[offset] = (
                Offset(ARCHIVING, found.count) if self.limits.has_dead_letters else Offset(RecordState.ARCHIVED)
            )

    def expire(self) -> None:
        for offset in self.find_acquired():
            if self.records[offset].deadline_ms <= now_ms():
                self.end(offset, RELEASE)


def _range(data: bytes) -> tuple[int, int]:
    header = read_header(data)
    return header.base_offset, header.end_offset


def expand(start: int, runs: Iterable[Run], offset: int) -> Offset:
    """Return what runs say of an offset. All states that have ended are the same."""
    found = next((run for run in runs if run.first <= offset < run.end), None)
    if offset < start or (found is not None and found.state in ENDED):
        return Offset(RecordState.ARCHIVED)
    return Offset() if found is None else Offset(found.state, found.delivery_count, found.member_id, found.deadline_ms)


class World:
    """A leader of two logs, and the coordinator of its groups."""

    def __init__(self, seed: int) -> None:
        self.draw = Random(seed)
        self.logs = [FakeLog(number, self.draw) for number in range(2)]
        self.keys = [SharePartitionKey(group, "T", log.number) for group in GROUPS for log in self.logs]
        self.groups = {*GROUPS}
        self.loaded: dict[SharePartitionKey, tuple[ShareState, int]] = {}
        self.ended: dict[LedSharePartition, ErrorCode] = {}
        self.is_unreadable = False
        self.given: list[bytes] = []
        self.read_end = self.failures = 0
        self.tables: dict[SharePartitionKey, Table] = {}
        self.accepted: defaultdict[SharePartitionKey, set[int]] = defaultdict(set)
        self.lettered: defaultdict[SharePartitionKey, set[int]] = defaultdict(set)
        self.letters = Counter[ShareEvent]()
        self.is_calm = False
        self.may_write, self.may_read = trio.Event(), trio.Event()
        self.may_write.set()
        self.may_read.set()
        ids = iter(range(10**6))
        self.states = ShareStates(lambda: str(next(ids)))
        self.watchers = LogWaiters()
        part: Any = self
        letters: Any = SimpleNamespace(store=self.store_letters)
        log_reader: Any = SimpleNamespace(read=self.read_log)
        loader = ShareLoader(part, part, part, self.watchers, part, lambda: TIME_MS, GROUPS.__getitem__)
        self.shares = SharePartitions(part, loader, part, self.watchers, DurableWaits(), letters, GROUPS.__getitem__)
        self.reader = ShareReader(self.shares, log_reader)

    # What it stands on

    def holds_lease(self, log: FakeLog) -> bool:
        return log.has_lease

    def log_of(self, key: SharePartitionKey) -> Any:
        return self.logs[key.number]

    def committed(self, key: SharePartitionKey) -> ShareState | None:
        return self.states.of(key.group_id).get(key.log)

    async def _is_lost(self) -> bool:
        """Wait for a request or an answer, and return whether it is lost."""
        await trio.sleep(self.draw.choice([0, 0.001, 0.05]))
        return not self.is_calm and self.draw.random() < 0.15

    async def load(self, key: SharePartitionKey, leader_epoch: int) -> LoadedShareState:
        if await self._is_lost():
            return LoadedShareState(self.draw.choice(TEMPORARY))
        if key.group_id not in self.groups:
            return LoadedShareState(ErrorCode.GROUP_ID_NOT_FOUND)
        _, loaded = self.states.load(key, leader_epoch)
        if await self._is_lost():
            return LoadedShareState(self.draw.choice(TEMPORARY))
        self.loaded[key] = loaded.state, self.find_start(key)
        return loaded

    async def write(self, key: SharePartitionKey, state: ShareState) -> ErrorCode:
        await self.may_write.wait()
        if await self._is_lost():
            return self.draw.choice(TEMPORARY)
        before = self.committed(key)
        _, error = self.states.write(key, state)
        if before is not None and not error:
            self._check_written(key, before, state)
        return self.draw.choice(TEMPORARY) if await self._is_lost() else error

    def _check_written(self, key: SharePartitionKey, before: ShareState, state: ShareState) -> None:
        """Check that no record ends before its letter is stored, and that none comes back that was accepted."""
        assert state.start_offset >= 0
        runs, former = restore_runs(state), restore_runs(before)
        for offset in self.log_of(key).find_records(GROUPS[key.group_id]):
            found = expand(state.start_offset, runs, offset)
            if expand(before.start_offset, former, offset).state is ARCHIVING and found.state in ENDED:
                assert offset in self.lettered[key]
            assert found.state in ENDED or offset not in self.accepted[key]

    async def store_letters(
        self, log: FakeLog, group_id: str, run: Run, settings: ShareSettings, is_wanted: Callable[[], bool]
    ) -> StoredLetters:
        """Store some letters, of records which the coordinator knows to be given up."""
        if not is_wanted():
            return StoredLetters(run.end, run.end - run.first)
        key = SharePartitionKey(group_id, "T", log.number)
        table, state = self.sync(key), self.committed(key)
        assert table is not None
        assert settings is GROUPS[group_id]
        assert log.may_have_letters
        is_replaced = state is None or state.state_id != self.loaded[key][0].state_id
        for offset in () if is_replaced else range(max(run.first, log.index.start_offset), run.end):
            assert state is not None
            assert expand(state.start_offset, restore_runs(state), offset) == Offset(ARCHIVING, run.delivery_count)
        if await self._is_lost():
            raise StorageError("records cannot be read")
        if not is_wanted():
            return StoredLetters(run.end, run.end - run.first)
        end = run.end if self.is_calm else self.draw.randint(run.first, run.end)
        stored = self.draw.randint(0, end - run.first)
        self.letters += {ShareEvent.DEAD_LETTERED: stored, ShareEvent.UNDELIVERABLE: end - run.first - stored}
        self.lettered[key].update(range(run.first, end))
        table.records |= {offset: Offset(RecordState.ARCHIVED) for offset in range(run.first, end)}
        return StoredLetters(end, stored, end - run.first - stored)

    async def find_offset_by_time(self, log: FakeLog, timestamp_ms: int) -> tuple[int, int] | None:
        assert timestamp_ms == TIME_MS - AGE_MS
        if await self._is_lost() and self.draw.random() < 0.3:
            self.is_unreadable = True
            raise StorageError("unreadable")
        end = log.high_watermark
        return (end // 2 if end % 2 else end + 5, 0) if log.number else None

    def find_start(self, key: SharePartitionKey) -> int:
        """Return where a new group begins."""
        log, settings = self.log_of(key), GROUPS[key.group_id]
        if settings.is_earliest:
            return int(log.index.start_offset)
        is_found = log.number and settings.begins_after_ms and log.high_watermark % 2
        return int(log.high_watermark // 2 if is_found else log.high_watermark)

    def follow(self, _tables: object, partition: TopicPartition, fetched: FetchedOffset) -> FetchedOffset:
        assert partition.topic == "orders"
        valid = self.logs[partition.partition].find_valid_end(fetched.leader_epoch)
        return fetched._replace(offset=min(fetched.offset, valid))

    async def read_log(self, log: FakeLog, first: int, end: int, bytes_max: int) -> Sequence[bytes]:
        """Return some batches, at least one if there is any, or fail."""
        assert log.index.start_offset <= first < end <= log.high_watermark
        assert bytes_max > 0, "nothing that is read would fit"
        await trio.lowlevel.checkpoint()
        await self.may_read.wait()
        self.read_end = end
        if not self.is_calm and self.draw.random() < 0.1:
            self.failures += 1
            raise self.draw.choice([StorageError("unreadable"), StorageCorruptError("damaged", end)])
        found = [each.data for each in log.batches if each.end > first and each.first < end]
        count = self.draw.randint(1, max(len(found), 1))
        while count > 1 and sum(map(len, found[:count])) > bytes_max:
            count -= 1
        self.given += found[:count]
        return found[:count]

    # The model

    def sync(self, key: SharePartitionKey) -> Table | None:
        """Return the table of a share partition; None if it is not served. One that was just loaded has a new one."""
        served, table = self.shares.served(*key), self.tables.get(key)
        if served is None or (table is not None and table.served is served):
            return None if served is None else table
        (state, begun), committed = self.loaded[key], self.committed(key)
        assert served.partition is not None
        assert committed == served.partition.store(), "the next leader would have it begin elsewhere"
        if (start := state.start_offset) < 0:
            start = committed.start_offset
            assert start in {begun, self.find_start(key)}
        valid = self.log_of(key).find_valid_end(state.written_epoch) if state.written_epoch >= 0 else 2**62
        table = self.tables[key] = Table(served, GROUPS[key.group_id].limits, min(start, valid))
        offset = state.start_offset
        for size, found, count in state.runs:
            for each in range(offset, min(offset + size, valid)):
                table.records[each] = Offset(RecordState.ARCHIVED if found in ENDED else found, count)
            offset += size
        return table

    def find_available(self, key: SharePartitionKey) -> list[int]:
        """Return the records that a member can get."""
        table = self.sync(key)
        records = self.log_of(key).find_records(GROUPS[key.group_id]) if table is not None else ()
        return [each for each in sorted(records) if table is not None and table.find(each).state is AVAILABLE]

    def check(self) -> None:
        """Compare each share partition with its table."""
        counts = Counter[tuple[str, RecordState]]()
        for key in self.keys:
            table, former = self.sync(key), self.tables.get(key)
            if table is not None and table.served.partition is not None:
                partition, log = table.served.partition, self.log_of(key)
                table.expire()
                for offset in log.find_records(GROUPS[key.group_id]).union(table.find_acquired()):
                    assert expand(partition.start_offset, partition.runs, offset) == table.find(offset), (key, offset)
                counts.update((key.group_id, each.state) for each in table.records.values())
            elif former is not None and former.served.error:
                assert self.ended.setdefault(former.served, former.served.error) is former.served.error
                assert former.served.error in {NOT_LEADER, REPLACED, ErrorCode.GROUP_ID_NOT_FOUND}
                leadership = self.log_of(key).leadership
                if former.served.error is NOT_LEADER and leadership.epoch == former.served.epoch:
                    self._check_idle(key, former)
                    del self.tables[key]
        if all(self.sync(key) for key in self.tables):
            expected = {each: count for each, count in counts.items() if each[1] in {ACQUIRED, ARCHIVING}}
            assert self.shares.count_records() == expected

    def _check_idle(self, key: SharePartitionKey, table: Table) -> None:
        """Check that nothing is lost with a share partition that was not used for a while."""
        assert trio.current_time() - table.used_at > share_partitions.IDLE_S
        self.check_committed(key, table)

    def check_committed(self, key: SharePartitionKey, table: Table) -> None:
        """Check that all changes are committed, and that no member has records."""
        state = self.committed(key)
        if state is None or state.state_id != self.loaded[key][0].state_id:
            return
        table.expire()
        for offset in self.log_of(key).find_records(GROUPS[key.group_id]):
            found = expand(state.start_offset, restore_runs(state), offset)
            assert found == table.find(offset)
            assert found.state is not ARCHIVING

    async def open(self, key: SharePartitionKey) -> Table:
        """Wait until a share partition is served, and return its table."""
        log = self.log_of(key)
        with trio.fail_after(PATIENCE_S):
            while (served := self.shares.find(key.group_id, log, "T")).partition is None:
                with self.watchers.watching([log]) as noticed:
                    await served.changed.wait()
                    assert noticed.is_set()
                if served.error is ErrorCode.GROUP_ID_NOT_FOUND:
                    assert key.group_id not in self.groups
                    self.groups.add(key.group_id)
                assert (served.error is ErrorCode.KAFKA_STORAGE_ERROR) is self.is_unreadable
                self.is_unreadable = False
        table = self.sync(key)
        assert table is not None
        table.expire()
        table.used_at = trio.current_time()
        return table

    # Steps

    async def read(self, key: SharePartitionKey | None = None) -> None:
        """Have a member acquire records; perhaps it does not get them."""
        key = key or self.draw.choice(self.keys)
        table, log, member_id = await self.open(key), self.log_of(key), self.draw.choice(MEMBERS)
        served, partition = table.served, table.served.partition
        assert partition is not None
        wanted = ShareRead(
            member_id=member_id,
            records_max=self.draw.choice([1, 2, 5, 30]),
            range_max=self.draw.choice([1, 30]),
            is_exact=self.draw.random() < 0.5,
            may_exceed=self.draw.random() < 0.7,
        )
        largest = max([len(each.data) for each in log.batches], default=1)
        bytes_max = self.draw.choice([50, largest, 2**20, 2**20])
        available, end = self.find_available(key), partition.start_offset + table.limits.in_flight_max
        must_find = bool(available) and available[0] < max(end, partition.end_offset) and bytes_max >= largest
        has_others = any(
            expand(partition.start_offset, partition.runs, each).state is AVAILABLE and each not in available
            for each in range(partition.start_offset, max(available[: wanted.records_max], default=0))
        )
        self.given, self.read_end, failures = [], 0, self.failures
        try:
            found = await self.reader.read(served, wanted, bytes_max)
        except StorageError as error:
            got = [offset for data in self.given for offset in range(*_range(data))]
            if isinstance(error, StorageCorruptError) and bytes_max > largest and must_find and available[0] in got:
                raise
            return
        offsets = expand_ranges(found.ranges)
        assert [offset for offset, _ in offsets] == available[: len(offsets)]
        assert [count for _, count in offsets] == [table.find(offset).count + 1 for offset, _ in offsets]
        assert offsets or not must_find or not served.is_current
        if bytes_max > largest and served.is_current and failures == self.failures and not has_others:
            assert len(offsets) >= len([each for each in available[: wanted.records_max] if each < end])
        if wanted.is_exact:
            assert len([each for each in available if each < self.read_end]) <= wanted.records_max
        if not self.find_available(key) and not offsets and served.is_current:
            self.read_end = 0
            with self.watchers.watching([log]) as noticed, suppress(StorageError):
                assert not (await self.reader.read(served, wanted, 2**20)).ranges
            assert self.read_end or not noticed.is_set(), "a member that waits would read again and again"
        self._check_read(key, wanted, bytes_max, found)
        assert found.record_count == len(offsets)
        is_broken = self.draw.random() < 0.15
        with self.watchers.watching([log]) as noticed:
            with suppress(BrokenPipeError), self.shares.delivering(member_id) as acquired:
                acquired[served] = found.ranges
                if is_broken:
                    raise BrokenPipeError
            assert noticed.is_set() is is_broken
        for offset, _ in () if is_broken else offsets:
            table.acquire(member_id, offset)

    def _check_read(self, key: SharePartitionKey, wanted: ShareRead, bytes_max: int, found: AcquiredRecords) -> None:
        """Check that a member gets no more than it wants, and exactly the batches that have its records."""
        headers = [read_header(data) for data in found.batches]
        records = self.log_of(key).find_records(GROUPS[key.group_id])
        count = sum(offset < headers[-1].base_offset for offset, _ in expand_ranges(found.ranges)) if headers else 0
        assert (found.record_count <= wanted.records_max) if wanted.is_exact else count < wanted.records_max
        assert sum(map(len, found.batches)) <= bytes_max or (len(headers) == 1 and wanted.may_exceed)
        assert all(any(each in records for each in range(each.base_offset, each.end_offset)) for each in headers)
        assert all(
            any(header.base_offset <= first and end <= header.end_offset for header in headers)
            for first, end, _ in found.ranges
            if wanted.range_max == 1
        )
        got = {offset for header in headers for offset in range(header.base_offset, header.end_offset)}
        assert got.issuperset(offset for offset, _ in expand_ranges(found.ranges))
        if headers:
            assert headers[0].end_offset > found.ranges[0].first
            assert headers[-1].base_offset < found.ranges[-1].end

    async def contend(self) -> None:
        """Have another member ask for records while they are read: it gets none, and is notified."""
        key = self.draw.choice(self.keys)
        table, log = await self.open(key), self.log_of(key)
        wanted = ShareRead(member_id="m", records_max=2, range_max=9)
        is_replaced = self.draw.random() < 0.2
        self.may_read = trio.Event()

        async def read() -> None:
            with suppress(StorageError):
                for offset, _ in expand_ranges((await self.reader.read(table.served, wanted, 2**20)).ranges):
                    assert not is_replaced
                    table.acquire("m", offset)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await wait_all_tasks_blocked()
            if table.served.is_reading:
                with trio.fail_after(PATIENCE_S):
                    assert not (await self.reader.read(table.served, wanted, 2**20)).ranges
                if is_replaced:
                    self.shares.drop_replaced([ReplacedState(*key, "another")])
                with self.watchers.watching([log]) as noticed:
                    self.may_read.set()
                    await wait_all_tasks_blocked()
                    assert noticed.is_set()
            self.may_read.set()

    async def acknowledge(self, key: SharePartitionKey | None = None) -> None:
        """Have a member acknowledge records that it has, or not; at times, wait until that is written."""
        found = [(each, table) for each in self.keys if (table := self.sync(each)) and table.find_acquired()]
        key = key or self.draw.choice([each for each, _ in found] or self.keys)
        table = await self.open(key)
        acquired = [table.records[each].member_id for each in table.find_acquired()]
        member_id = self.draw.choice([*acquired, *MEMBERS])
        has = table.find_acquired(member_id)
        kinds = [ACCEPT, ACCEPT, RELEASE, RELEASE, REJECT, REJECT, RENEW, GAP]
        said = {each: self.draw.choice(kinds) for each in has if self.draw.random() < 0.6}
        if not said or self.draw.random() < 0.2:
            said[self.draw.randrange(20)] = ACCEPT
        ranges = [Acknowledgement(each, each + 1, kind) for each, kind in sorted(said.items())]
        if self.draw.random() < 0.5:
            others = self.draw.choice([None, RELEASE, ACCEPT])
            given = said | {each: others for each in has if each not in said and others is not None}
            taken = self.shares.acknowledge_acquired(table.served, member_id, ranges, others)
            said = {offset: kind for first, end, kind in taken for offset in range(first, end)}
            assert said == {each: kind for each, kind in given.items() if each in has}
        else:
            error = self.shares.acknowledge(table.served, member_id, ranges)
            assert error is (ErrorCode.NONE if said.keys() <= set(has) else ErrorCode.INVALID_RECORD_STATE)
            said = {} if error else said
        for offset, kind in said.items():
            table.end(offset, kind)
        if self.draw.random() < 0.8:
            await self._wait_written(key, table, said)

    async def _wait_written(self, key: SharePartitionKey, table: Table, said: dict[int, AcknowledgeType]) -> None:
        with trio.move_on_after(self.draw.choice([0.01, 20])) as waiting:
            uncertain = await self.shares.wait_written([table.served])
        if waiting.cancelled_caught:
            return
        assert uncertain == ({table.served: table.served.error} if uncertain else {})
        state = self.committed(key)
        assert state is not None
        for offset, kind in () if uncertain else said.items():
            found = expand(state.start_offset, restore_runs(state), offset)
            if kind in {ACCEPT, GAP}:
                assert found.state in ENDED
                self.accepted[key].add(offset)
            elif kind in {REJECT, RELEASE} and offset in self.log_of(key).find_records(GROUPS[key.group_id]):
                assert found == table.find(offset) or {found.state, table.find(offset).state} <= {ARCHIVING, *ENDED}

    async def release(self) -> None:
        """Have a member leave its group."""
        group, member_id = self.draw.choice([*GROUPS]), self.draw.choice(MEMBERS)
        tables = [self.sync(key) for key in self.keys if key.group_id == group]
        self.shares.release(group, member_id)
        for table in tables:
            for offset in () if table is None else table.find_acquired(member_id):
                assert table is not None
                table.end(offset, RELEASE)

    async def wait(self) -> None:
        await trio.sleep(self.draw.choice([0.5, 2, 4, 8]))

    async def append(self) -> None:
        log: Any = self.draw.choice(self.logs)
        log.append()
        self.watchers.notify(log)

    async def delete(self) -> None:
        log: Any = self.draw.choice(self.logs)
        log.delete()
        self.watchers.notify(log)

    async def lead(self) -> None:
        """Have another broker lead a log for a while, which perhaps loses the end of it."""
        log: Any = self.draw.choice(self.logs)
        epoch, key = log.leadership.epoch, self.draw.choice([each for each in self.keys if each.number == log.number])
        if self.draw.random() < 0.3:
            self.shares.find(key.group_id, log, "T")
            await trio.sleep(self.draw.choice([0, 0.001, 0.05]))
        log.leadership = SimpleNamespace(is_led=False, epoch=epoch + 1)
        served = self.shares.find(key.group_id, log, "T")
        await trio.sleep(self.draw.choice([0, 0.3]))
        assert self.shares.served(*key) is None
        assert not self.shares.holds_lease(served)
        if self.draw.random() < 0.4:
            log.truncate(epoch + 2)
            for each in self.keys:
                if each.number == log.number:
                    self.accepted[each] -= {*range(log.high_watermark, 10**4)}
        log.leadership = SimpleNamespace(is_led=True, epoch=epoch + 2)
        log.is_end_known, log.has_lease = self.draw.choice([(True, True), (False, True), (True, False)])
        is_ready = log.is_end_known and log.has_lease
        served = self.shares.find(key.group_id, log, "T")
        await trio.sleep(1)
        assert is_ready or served.partition is None
        log.is_end_known = log.has_lease = True
        if not is_ready:
            self.watchers.notify(log)
            await trio.testing.wait_all_tasks_blocked()
        await self.open(key)
        assert not served.error or served.error is not NOT_LEADER

    async def lose_lease(self) -> None:
        """Have a leader lose its lease: letters wait, except for those that are stored already."""
        key = self.draw.choice(self.keys)
        table, log = await self.open(key), self.log_of(key)
        log.has_lease = False
        assert not self.shares.holds_lease(table.served)
        await trio.sleep(2)
        log.may_have_letters = False
        if table.served.is_current:
            await self.acknowledge(key)
        await self.wait()
        log.has_lease = log.may_have_letters = True
        assert self.shares.holds_lease(table.served) is table.served.is_current

    async def replace(self) -> None:
        """Have an administrator move or delete a group. The message to the leader can be lost."""
        key = self.draw.choice(self.keys)
        table = await self.open(key) if self.draw.random() < 0.8 else None
        if table is not None and self.draw.random() < 0.3:
            await self.shares.verify(table.served)
            self.shares.drop_replaced([ReplacedState(*key, self.states.of(key.group_id)[key.log].state_id)])
            assert table.served.is_current, "nothing was replaced"
            return
        log, keys = self.log_of(key), [key]
        if table is None:
            self.shares.find(key.group_id, log, "T")
            await trio.sleep(self.draw.choice([0, 0.001, 0.02, 0.05, 0.1]))
        if self.draw.random() < 0.3:
            keys = [each for each in self.keys if each.group_id == key.group_id]
            self.states.delete_group(key.group_id)
            self.groups.discard(key.group_id)
        else:
            self.states.set_start(key, self.draw.randint(log.index.start_offset, log.high_watermark))
        for each in keys:
            self.accepted[each], self.lettered[each] = set(), set()
        replaced = self.states.take_replaced()
        if table is None or self.draw.random() < 0.6:
            self.shares.drop_replaced(replaced)
            assert all(self.shares.served(*each) is None for each in keys if each in {x[:3] for x in replaced})
        else:
            with trio.fail_after(PATIENCE_S):
                while not table.served.error:
                    await self.shares.verify(table.served)
            assert key.group_id in self.groups or table.served.error in {REPLACED, ErrorCode.GROUP_ID_NOT_FOUND}
            self.shares.drop_replaced(replaced)
        assert table is None or key.group_id not in self.groups or table.served.error is REPLACED

    async def stall(self) -> None:
        """Have the coordinator write nothing for long: all that wait are answered, and it is written later."""
        tables = [await self.open(key) for key in self.keys[:: self.draw.randint(1, 2)]]
        self.may_write = trio.Event()
        for _ in range(5):
            with trio.move_on_after(1):
                await self.acknowledge()
        begun, served = trio.current_time(), [each.served for each in tables]
        uncertain = await self.shares.wait_written(served)
        assert trio.current_time() - begun <= DURABLE_S + 1
        assert all(error in {each.error, ErrorCode.KAFKA_STORAGE_ERROR} for each, error in uncertain.items())
        self.may_write.set()

    async def settle(self) -> None:
        """Have the coordinator answer for a while: everything is committed then."""
        self.is_calm = True
        await trio.sleep(10)
        for key in self.keys:
            if (table := self.sync(key)) is not None:
                self.check_committed(key, table)
        self.is_calm = False

    async def step(self) -> None:
        """Do something. Members that wait are notified of records that become available."""
        weights = {
            self.read: 30, self.contend: 5, self.acknowledge: 30, self.release: 3, self.wait: 8, self.append: 20,
            self.delete: 1, self.lead: 3, self.lose_lease: 2, self.replace: 3, self.stall: 1, self.settle: 3,
        }  # fmt: skip
        (act,) = self.draw.choices([*weights], [*weights.values()])
        before = {key: (self.sync(key), self.find_available(key)) for key in self.keys}
        logs: list[Any] = [*self.logs]
        with self.watchers.watching(logs[:1]) as first, self.watchers.watching(logs[1:]) as second:
            await act()
            await wait_all_tasks_blocked()
            self.check()
            for key, (table, available) in before.items():
                if table is not None and table.served.error:
                    assert (second if key.number else first).is_set()
                if table is not None and self.sync(key) is table and set(self.find_available(key)) - {*available}:
                    assert (second if key.number else first).is_set()

    async def finish(self) -> None:
        """Have a member accept everything that is left."""
        await self.settle()
        self.is_calm = True
        for log in self.logs:
            while log.open_transactions():
                log.append()
        for key in self.keys:
            with trio.fail_after(PATIENCE_S * 10):
                while True:
                    table = await self.open(key)
                    state = self.committed(key)
                    records = self.log_of(key).find_records(GROUPS[key.group_id])
                    assert state is not None
                    if all(expand(state.start_offset, restore_runs(state), each).state in ENDED for each in records):
                        break
                    await self.read(key)
                    self.shares.acknowledge_acquired(table.served, "m", [], ACCEPT)
                    self.shares.acknowledge_acquired(table.served, "n", [], ACCEPT)
                    for offset in table.find_acquired():
                        table.end(offset, ACCEPT)
                    assert await self.shares.wait_written([table.served]) in ({}, {table.served: REPLACED})
                    await trio.sleep(1)
            self.check()
        for key in self.keys:
            await self.open(key)
        assert not self.shares.count_records()


async def play(seed: int, idle_s: float) -> None:
    """Play a history, and have all records accepted in the end."""
    trio._core._run._r.seed(seed)
    world = World(seed)
    with pytest.MonkeyPatch.context() as patch:
        for module in (share_partitions, share_reads):
            patch.setattr(module, "steady_now_ms", now_ms)
        patch.setattr(led_share_partition, "follow_divergences", world.follow)
        patch.setattr(share_partitions, "IDLE_S", idle_s)
        async with trio.open_nursery() as nursery:
            await nursery.start(world.shares.run)
            for _ in range(STEPS):
                await world.step()
            await world.finish()
            counts = sum(world.shares.counts.values(), Counter[ShareEvent]())
            if trio.current_time() < idle_s:  # no group was forgotten
                assert {each: counts[each] for each in world.letters} == world.letters
            assert world.letters.total() > 0
            await trio.sleep(2 * idle_s + 1)
            assert not any(world.shares.served(*key) for key in world.keys)
            assert not world.shares.counts
            nursery.cancel_scope.cancel()


@each_seed(SEEDS)
def test_share_partitions_do_what_a_table_of_their_records_says(seed: int) -> None:
    trio.run(play, seed, 2.0 if seed % 4 == 3 else IDLE_S, clock=MockClock(autojump_threshold=0))
