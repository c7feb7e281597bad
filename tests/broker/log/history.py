"""One log of a broker, on a storage, and a list of what it must contain.

Operations are drawn from a seed as plain values, so that a history that fails is reduced to the ones that matter.
"""

from __future__ import annotations

import random
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import attrs
import trio
from trio.testing import MockClock

from dafka.batches import Compression, check_crc, decode_held, decode_run, encode_batch, iter_batches, read_header
from dafka.batches.decoding import decode_batch
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.log.entries import MarkerEntry
from dafka.broker.core.log.log import Log
from dafka.broker.core.log.log_table import LogTable
from dafka.broker.core.log.offset_assigner import OffsetAssigner
from dafka.broker.core.log.producer_state import Marker
from dafka.broker.core.metadata.topics import Topic
from dafka.broker.core.positions import FIRST_OFFSET, FIRST_SEQUENCE, Offset, ProducerSequence, RecordSequence
from dafka.broker.log.compaction import LogCompaction, LogPolicy
from dafka.broker.log.reader import LogReader
from dafka.config import Config
from dafka.records import Partition, RecordBatch
from dafka.roles.compactor import Compactor
from dafka.storage import RetentionPolicy, Storage
from dafka.storage.plugin_helpers import now_ms
from tests.storage.quick import quickly

TOPIC = Topic("orders", "1D", 1)
KEYS = [None, b"a", b"b", b"c"]
STEP_MS = 10**9
"""Milliseconds between two appends: days, so that a clock that jumps makes no difference."""

BEGIN_MS = 10**10
COARSE_MS = STEP_MS // 4  # so that some timestamps are equal

Operation: TypeAlias = tuple[str, dict[str, Any]]


@attrs.define(eq=False)
class Item:
    """What the log has at an offset: a record, or the end of a transaction."""

    partition: Partition
    sequence: int
    epoch: int
    stored_at: int
    key: bytes | None = None
    value: bytes | None = None
    timestamp: int = 0
    producer_id: int = -1
    is_transactional: bool = False
    is_commit: bool | None = None
    is_dropped: bool = False
    is_compacted: bool = False

    @property
    def is_marker(self) -> bool:
        return self.is_commit is not None

    @property
    def is_held(self) -> bool:
        return not (self.is_marker or self.is_dropped or self.is_compacted)


def draw_operations(seed: int, count: int) -> list[Operation]:
    """Return a history."""
    draw = random.Random(seed)

    def records() -> list[tuple[bytes | None, bytes | None, int]]:
        found = []
        for _ in range(draw.randint(1, 6)):
            key = draw.choice(KEYS)
            value = draw.choice([b"v" * draw.choice([1, 90]), b"w", b"x" if key is None else None])
            found.append((key, value, draw.randint(0, STEP_MS - 1)))
        return found

    found: list[Operation] = []
    for _ in range(count):
        kind = draw.choices(
            ["produce", "end", "delete", "retain", "compact", "restart", "lead", "fail", "commit"],
            [10, 4, 1, 1, 2, 2, 1, 1, 4],
        )[0]
        fields: dict[str, Any] = {}
        if kind in {"produce", "fail"}:
            batches = [
                {
                    "to": draw.choice(["own", "own", "own", "P", "Q"]),
                    "producer": draw.choice([-1, 1, 2, 3]),
                    "transactional": draw.random() < 0.7,
                    "codec": draw.choice(list(Compression)),
                    "records": records(),
                }
                for _ in range(draw.choice([1, 1, 2]))
            ]
            fields = {"batches": batches}
        elif kind == "end":
            fields = {"producer": draw.choice([1, 2, 3]), "commit": draw.random() < 0.5}
        elif kind == "lead":
            fields = {"lost": draw.choice([0, 0, 1, 4])}
        elif kind in {"delete", "retain", "commit"}:
            limit = draw.choice(["records_max", "bytes_max", "age_ms"])
            fields = {"share": draw.random(), "limit": limit}
        found.append((kind, fields))
    return found


class World:
    """A broker's log, and what it must contain."""

    def __init__(self, storage: Storage, seed: int) -> None:
        self.draw = random.Random(seed)
        self.storage = storage
        self.rewrite_entries = self.draw.choice([0, 10, 1000])
        self.is_replicated = self.draw.random() < 0.5
        self.keys_max = self.draw.choice([1, 2, 1000])
        self.tombstones_ms = self.draw.choice([0, 8, 16]) * STEP_MS
        self.lag_min_ms = self.draw.choice([0, 0, 4, 9]) * STEP_MS
        self.lag_max_ms = self.draw.choice([0, 2, 12]) * STEP_MS
        self.items: list[Item] = []
        self.start = self.high_watermark = 0
        self.appended: list[int] = []
        self.clean_ends: dict[Partition, int] = {}
        self.epochs: list[tuple[int, int, Partition, Partition]] = []
        self.clock = BEGIN_MS
        self.producers: dict[int, list[tuple[int, int, int, int]]] = defaultdict(list)
        self.compactor = Compactor(storage, Config().store, lambda _event: None)
        self.reader = LogReader(storage)
        self.order = self._make_order()
        log = self.log
        self.epochs = [(0, 0, log.leader_partition, log.index_partition)]

    def _make_order(self) -> OffsetAssigner:
        table = LogTable("broker")
        table.add_topic(TOPIC)
        if self.is_replicated:
            table.replicate(table.logs("orders")[0])
        return OffsetAssigner(table, self.rewrite_entries)

    @property
    def now_ms(self) -> int:
        """The time of the producers, of which none is forgotten."""
        return self.clock // STEP_MS

    @property
    def log(self) -> Log:
        return self.order.table.logs("orders")[0]

    @property
    def open(self) -> dict[int, int]:
        """The offset of the first record of each open transaction, by producer."""
        found: dict[int, int] = {}
        for offset, each in enumerate(self.items):
            if each.is_marker:
                found.pop(each.producer_id, None)
            elif each.is_transactional:
                found.setdefault(each.producer_id, offset)
        return found

    def transactions(self) -> list[tuple[int, int, int, bool]]:
        """Return the ended transactions: producer, offsets of the first record and the marker, whether committed."""
        found, begun = [], dict[int, int]()
        for offset, each in enumerate(self.items):
            if each.is_commit is not None:
                first = begun.pop(each.producer_id, None)
                if first is not None:
                    found.append((each.producer_id, first, offset, each.is_commit))
            elif each.is_transactional:
                begun.setdefault(each.producer_id, offset)
        return found

    def last_stable(self) -> int:
        """Return the last stable offset, which is within the limits that undecided transactions set.

        It is at most the first remaining record of one, and at least its first record, deleted or not.
        """
        undecided = [(producer, first, end) for producer, first, end, _ in self.transactions()]
        undecided = [each for each in undecided if each[2] >= self.high_watermark]
        undecided += [(producer, first, len(self.items)) for producer, first in self.open.items()]
        left = [self._first_left(*each) for each in undecided]
        found = self.log.last_stable_offset
        assert min([self.high_watermark, *(first for _, first, _ in undecided)]) <= found
        assert found <= min([self.high_watermark, *left])
        return found

    def _first_left(self, producer: int, first: int, end: int) -> int:
        left = (at for at in range(max(first, self.start), end) if self._is_of(at, producer))
        return next(left, self.high_watermark)

    def outcome(self, offset: int) -> bool:
        """Return whether the record at an offset is committed, which is decided."""
        item = self.items[offset]
        if not item.is_transactional:
            return True
        return next(
            is_commit
            for producer, first, end, is_commit in self.transactions()
            if producer == item.producer_id and first <= offset < end
        )

    # Operations

    async def play(self, operation: Operation) -> None:
        kind, fields = operation
        await getattr(self, kind)(**fields)

    async def produce(self, batches: list[dict[str, Any]], *, fails: bool = False) -> None:
        self.clock += STEP_MS
        appended: list[RecordBatch] = []
        items: list[Item] = []
        known: list[tuple[int, tuple[int, int, int, int]]] = []
        touched: set[str] = set()
        for each in batches:
            if each["to"] in touched:
                continue
            touched.add(each["to"])
            own = each["to"] == "own"
            partition = self.log.leader_partition if own else Partition("orders", each["to"])
            info = await self.storage.find_partition(partition)
            first = 0 if info is None else info.end_sequence
            keys, values = [key for key, _, _ in each["records"]], [value for _, value, _ in each["records"]]
            times = [self.clock - earlier // COARSE_MS * COARSE_MS for _, _, earlier in each["records"]]
            producer, count = (each["producer"] if own else -1), len(values)
            transactional = producer >= 0 and (each["transactional"] or producer in self.open)
            batch = RecordBatch(partition, first, values, keys=keys, timestamps=times)
            if own:
                last = self.producers[producer][-1] if producer >= 0 and self.producers[producer] else None
                base = -1 if producer < 0 else 2**31 - 9 if last is None else (last[0] + last[1]) % 2**31
                data = encode_batch(
                    first,
                    values,
                    keys=keys,
                    timestamps=times,
                    compression=each["codec"],
                    producer_id=producer,
                    producer_epoch=min(producer, 0),
                    base_sequence=base,
                    is_transactional=transactional,
                )
                header = check_crc(data)
                check = self.log.producers.check_batch(header)
                assert (check.error_code, check.duplicate_of) == (ErrorCode.NONE, None)
                if not fails and producer >= 0:
                    self.log.producers.add_batch(header, RecordSequence(first), self.now_ms)
                    known.append((producer, (base, count, first, self.epochs[-1][0])))
                batch = decode_run(partition, [(header, data)], bytes_max=2**20)
            appended.append(attrs.evolve(batch, stored_at=[self.clock] * count))
            items += [
                Item(partition, sequence, self.epochs[-1][0], self.clock, key, value, time, producer, transactional)
                for sequence, key, value, time in zip(range(first, first + count), keys, values, times, strict=True)
            ]
        plan = self.order.plan(appended, self.now_ms)
        if fails:
            self.order.undo(plan)
            return
        await self.storage.append([*appended, *plan.index_records])
        self.order.commit(plan)
        self.appended.append(len(self.items))
        self.items += items
        for producer, batch_known in known:
            self.producers[producer].append(batch_known)
        self._advance()

    async def fail(self, batches: list[dict[str, Any]]) -> None:
        await self.produce(batches, fails=True)

    async def end(self, producer: int, commit: bool) -> None:
        if not self.producers[producer]:
            return
        self.clock += STEP_MS
        log = self.log
        info = await self.storage.find_partition(log.leader_partition)
        position = RecordSequence(0 if info is None else info.end_sequence)
        first = log.producers.open_transactions.get(producer)
        assert (first is not None) == (producer in self.open)
        log.producers.add_marker(Marker(producer, 0, commit), self.now_ms)
        entry = MarkerEntry(FIRST_OFFSET, position, producer, 0, int(commit), self.now_ms, first)
        self.order.table.append_marker(log, entry)
        await self._write()
        self.appended.append(len(self.items))
        self.items.append(
            Item(log.leader_partition, -1, self.epochs[-1][0], self.clock, producer_id=producer, is_commit=commit)
        )
        self._advance()

    async def _write(self) -> None:
        plan = self.order.plan([], self.now_ms)
        await self.storage.append(plan.index_records)
        self.order.commit(plan)

    def _advance(self) -> None:
        if not self.is_replicated:
            self.high_watermark = len(self.items)

    async def commit(self, share: float, **_: Any) -> None:
        """Let more replicas hold a part of the log."""
        if self.is_replicated:
            self.high_watermark += round(share * (len(self.items) - self.high_watermark))
            self.log.high_watermark = Offset(self.high_watermark)

    async def delete(self, share: float, **_: Any) -> None:
        """Delete records, as an administrator does."""
        offset = round(share * (len(self.items) + 1))
        table = self.order.table
        table.decide_start(self.log, Offset(offset))
        await self._write()
        table.move_start(self.log, self.log.next_start)
        await self._write()
        self.start = max(self.start, min(offset, self.high_watermark))
        for each, sequence in table.find_needed("orders", {}).items():
            await self.storage.trim(each, sequence)

    async def retain(self, share: float, limit: str) -> None:
        """Apply a limit to each partition of the topic, and let the log skip what is gone."""
        held = [each for each in self.items if not each.is_marker]
        value = {
            "records_max": round(share * len(held)),
            "bytes_max": round(share * sum(len(each.value or b"") for each in held)),
            "age_ms": now_ms() - BEGIN_MS - round(share * (self.clock - BEGIN_MS) / STEP_MS) * STEP_MS - STEP_MS // 2,
        }[limit]
        await self.storage.apply_retention(RetentionPolicy(**{limit: value}), "orders")
        earliest = await self._earliest()
        for each in held:
            each.is_dropped |= each.sequence < earliest[each.partition]
        self._skip(earliest)

    def _skip(self, earliest: dict[Partition, int]) -> None:
        self.order.table.skip_dropped(self.log, earliest)
        self.order.table.forget_dropped(self.log, earliest)
        while self.start < self.high_watermark:
            if not (self.items[self.start].is_marker or self.items[self.start].is_dropped):
                break
            self.start += 1

    async def compact(self) -> None:
        ends = {partition: info.end_sequence for partition, info in (await self.storage.partitions("orders")).items()}
        places = {each.partition for each in self.items[self.start :] if not each.is_marker}
        dirty = {each for each in places if ends[each] - 1 > self.clean_ends.get(each, 0)}
        unread = (
            at
            for at, each in enumerate(self.items)
            if at >= self.start
            and each.partition in dirty
            and not each.is_marker
            and each.sequence >= self.clean_ends.get(each.partition, 0)
        )
        first = max(next(unread, 0), self.start)
        is_overdue = self._first_after(self.lag_max_ms) > first
        is_due = bool(dirty) and (self.lag_max_ms == 0 or is_overdue) and self._first_after(self.lag_min_ms) > first
        end, last = await self._latest_keys(first) if is_due else (0, {})
        compaction = LogCompaction(
            self.order.table, self.reader, self.storage, self.compactor, Config(), lambda _log: True
        )
        since = now_ms() - self.clock + STEP_MS // 2
        policy = LogPolicy(
            dirty_ratio=2 if self.lag_max_ms else 0,
            tombstone_ms=since + self.tombstones_ms,
            keys_max=self.keys_max,
            lag_min_ms=since + self.lag_min_ms if self.lag_min_ms else 0,
            lag_max_ms=since + self.lag_max_ms if self.lag_max_ms else 2**63 - 1,
        )
        await compaction.compact_log(self.log, policy)
        for offset in range(self.start, end):
            item = self.items[offset]
            if not item.is_marker:
                clean_end = min(item.sequence + 1, ends[item.partition] - 1)
                self.clean_ends[item.partition] = max(clean_end, self.clean_ends.get(item.partition, 0))
            if item.is_held and item.sequence < ends[item.partition] - 1:  # a storage keeps the last record
                is_superseded = item.key is not None and last.get(item.key, -1) > offset
                is_tombstone = (
                    item.key is not None and item.value is None and item.stored_at < self.clock - self.tombstones_ms
                )
                item.is_compacted = is_superseded or is_tombstone or (offset >= first and not self.outcome(offset))

    def _first_after(self, age_ms: int) -> int:
        """Return the first offset of a record that was stored more recently than an age; without one, of any."""
        after = self.clock - age_ms
        found = (
            at
            for at, each in enumerate(self.items)
            if age_ms and at >= self.start and not each.is_marker and each.stored_at >= after
        )
        return next(found, len(self.items))

    async def _latest_keys(self, first: int) -> tuple[int, dict[bytes, int]]:
        """Return the last offset of each key from an offset on, up to the first batch that does not fit."""
        stable, last = min(self.last_stable(), self._first_after(self.lag_min_ms)), dict[bytes, int]()
        for data in await self.reader.read(self.log, Offset(first), Offset(stable), 2**20):
            header = read_header(data)
            offsets = range(max(header.base_offset, first), header.end_offset)
            is_committed = not header.is_control and self.outcome(offsets[0])
            if is_committed and len(last) >= self.keys_max:
                return header.base_offset, last
            last |= {
                key: at
                for at in offsets
                if is_committed and self.items[at].is_held and (key := self.items[at].key) is not None
            }
        return stable, last

    async def restart(self) -> None:
        """Restore everything that a former life of the broker has stored."""
        await self._restore(self.epochs, is_same=True)

    async def lead(self, lost: int) -> None:
        """Begin a leader epoch, perhaps without the last records of the former one, which were not committed."""
        if not self.is_replicated:
            self.is_replicated = True
            self.order.table.replicate(self.log)
            await self._write()
        start, kept_from = len(self.items), max(self.high_watermark, self.epochs[-1][1])
        for before in [each for each in reversed(self.appended) if kept_from <= each < start][:lost]:
            if any(each.partition.address in "PQ" for each in self.items[before:start]):
                break  # the next leader appends the records of nodes again
            start = before
        del self.items[start:]
        epoch = self.epochs[-1][0] + 1024
        await self._restore([*self.epochs, (epoch, start, Partition("", ""), Partition("", ""))], is_same=False)

    async def _restore(self, epochs: list[tuple[int, int, Partition, Partition]], *, is_same: bool) -> None:
        if is_same and len(epochs) == 1 and not self.is_replicated:
            self.order = self._make_order()
            for sequence, value in await self._index_records(self.log.index_partition):
                self.order.table.restore(self.log, sequence, value)
            stored = await self.storage.partitions("orders")
            ends = {partition: info.end_sequence for partition, info in stored.items()}
            assert self.order.table.finish_restoring(ends, await self._earliest()) == []
        else:
            if is_same:
                self.order = self._make_order()
            log, table = self.log, self.order.table
            table.begin_epoch(log, epochs[-1][0])
            epochs = [*epochs[:-1], (*epochs[-1][:2], log.leader_partition, log.index_partition)]
            log.epochs = [(epoch, Offset(start)) for epoch, start, _, _ in epochs]
            log.epoch_count = len(epochs)
            for number, (_, _, leader, index) in enumerate(epochs):
                is_last = number == len(epochs) - 1
                end = None if is_last else Offset(epochs[number + 1][1])
                address = "" if is_last else leader.address
                log.index_end = FIRST_SEQUENCE
                for sequence, value in await self._index_records(index):
                    log.restore(
                        sequence,
                        value,
                        leader_address=address,
                        end_offset=end,
                    )
            info = await self.storage.find_partition(log.leader_partition)
            own_end = {} if info is None else {log.leader_partition: info.end_sequence}
            table.finish_epoch(log, own_end, {})
            self.epochs = epochs
            self.producers = defaultdict(
                list,
                {
                    producer: [each for each in found if self._is_in_log(producer, each)]
                    for producer, found in self.producers.items()
                },
            )
        self.log.high_watermark = Offset(self.high_watermark)
        self._skip(await self._earliest())

    def _is_in_log(self, producer: int, batch: tuple[int, int, int, int]) -> bool:
        _, _, first, epoch = batch
        return (producer, epoch, first) in {(each.producer_id, each.epoch, each.sequence) for each in self.items}

    async def _index_records(self, partition: Partition) -> list[tuple[RecordSequence, bytes]]:
        info = await self.storage.find_partition(partition)
        found: list[tuple[RecordSequence, bytes]] = []
        sequence = 0 if info is None else info.earliest_sequence
        while info is not None and sequence < info.end_sequence:
            batch = await self.storage.read(partition, sequence, info.end_sequence - sequence)
            assert batch is not None
            found += [(RecordSequence(at), value or b"") for at, value in enumerate(batch.values, sequence)]
            sequence = batch.end_sequence
        return found

    async def _earliest(self) -> dict[Partition, int]:
        stored = await self.storage.partitions("orders")
        return {partition: info.earliest_sequence for partition, info in stored.items()}

    # What readers get

    async def check(self) -> None:
        log = self.log
        assert (log.index.start_offset, log.index.end_offset) == (self.start, len(self.items))
        assert log.high_watermark == self.high_watermark
        assert [log.epoch_at(Offset(each)) for each in range(self.start, len(self.items))] == [
            each.epoch for each in self.items[self.start :]
        ]
        self._check_aborted()
        self._check_producers()
        await self._check_read(self.start, 2**20)
        if self.high_watermark > self.start:
            await self._check_read(
                self.draw.randint(self.start, self.high_watermark - 1), self.draw.choice([1, 200, 900])
            )
        await self._check_times()

    def _check_aborted(self) -> None:
        """Exactly the aborted transactions with remaining records in a range are named, each from its first one on."""
        stable = self.last_stable()
        if stable <= self.start:
            return
        first = self.draw.randint(self.start, stable)
        end = self.draw.randint(first, stable)
        found = self.log.aborted_between(Offset(first), Offset(end))
        assert [begun for _, begun in found] == sorted(begun for _, begun in found)
        unnamed = list(found)
        for producer, begun, marker, is_commit in self.transactions():
            left = [at for at in range(max(begun, self.start), marker) if self._is_of(at, producer)]
            named = [each for each in unnamed if each[0] == producer and begun <= each[1] <= min(left, default=marker)]
            if named and not is_commit and marker >= first:
                unnamed.remove(named[0])
            elif left and not is_commit:
                assert left[0] >= end or marker < first, (
                    f"{producer} has aborted a transaction from {begun} to {marker}"
                )
        assert not unnamed

    def _is_of(self, offset: int, producer: int) -> bool:
        item = self.items[offset]
        return item.producer_id == producer and item.is_transactional

    def _check_producers(self) -> None:
        """Each of the last five batches of a producer is recognized, and the next one is expected."""
        for producer, batches in self.producers.items():
            is_known = producer in self.log.producers.producers
            for base, count, first, epoch in batches[-5:]:
                places = [at for at, each in enumerate(self.items) if (each.epoch, each.sequence) == (epoch, first)]
                own = [at for at in places if self.items[at].producer_id == producer]
                if own[0] < self.start and epoch != self.epochs[-1][0]:
                    is_known = False
                    continue  # later leaders may forget what is deleted
                found = self._check_batch(producer, base, count)
                assert found.error_code is ErrorCode.NONE
                assert found.duplicate_of is not None
                assert found.duplicate_of.position is not None
                offset = self.log.find_offset(found.duplicate_of.position)
                assert offset == own[0] or own[0] < self.start
            if batches and is_known:
                following = (batches[-1][0] + batches[-1][1]) % 2**31
                assert self._check_batch(producer, following, 1).duplicate_of is None
                assert self._check_batch(producer, following, 1).error_code is ErrorCode.NONE
                assert self._check_batch(producer, (following + 1) % 2**31, 1).error_code is not ErrorCode.NONE

    def _check_batch(self, producer: int, base: int, count: int) -> Any:
        header = read_header(
            encode_batch(
                0,
                [b""] * count,
                timestamps=0,
                producer_id=producer,
                producer_epoch=0,
                base_sequence=ProducerSequence(base),
                is_transactional=True,
            )
        )
        return self.log.producers.check_batch(header)

    async def _check_read(self, first: int, bytes_max: int) -> None:
        """Read the log from an offset on, in reads of limited size, as a reader of committed records does, too."""
        found: dict[int, tuple[bytes | None, bytes | None, int]] = {}
        committed: set[int] = set()
        offset, stable = first, self.last_stable()
        aborting: set[int] = set()
        while offset < self.high_watermark:
            batches = await self._read(offset, bytes_max)
            if not batches:
                rest = self.items[offset : self.high_watermark]
                assert not any(each.is_held or each.is_marker for each in rest)
                break
            assert sum(map(len, batches[1:])) <= max(bytes_max - len(batches[0]), 0)
            end = read_header(batches[-1]).end_offset
            aborted = self.log.aborted_between(Offset(offset), Offset(min(end, stable)))
            for data in batches:
                header = read_header(data)
                assert header.base_offset >= offset or data is batches[0]
                aborting |= {producer for producer, begun in aborted if begun < header.end_offset}
                aborted = [each for each in aborted if each[1] >= header.end_offset]
                records = self._check_batch_read(data)
                if header.is_control:
                    aborting.discard(header.producer_id)
                elif not (header.is_transactional and header.producer_id in aborting):
                    committed |= records.keys()
                found |= records
                offset = header.end_offset
        held = {at for at in range(first, self.high_watermark) if self.items[at].is_held}
        for at in held:
            item = self.items[at]
            assert found.get(at) == (item.key, item.value, item.timestamp), f"the record at {at}"
        assert not [at for at in found if at >= first and not self.items[at].is_held]
        wanted = {at for at in held if at < stable and self.outcome(at)}
        assert {at for at in committed if first <= at < stable} == wanted

    async def _read(self, offset: int, bytes_max: int) -> list[bytes]:
        """Read record batches in one of two ways, which must return the same records."""
        end = Offset(self.high_watermark)
        if (offset + bytes_max) % 2:
            return await self.reader.read(self.log, Offset(offset), end, bytes_max)
        joined = await self.reader.read_joined(self.log, Offset(offset), end, bytes_max)
        fitting = await self.reader.read_joined(self.log, Offset(offset), end, bytes_max, at_least_one=False)
        found = [bytes(joined.data[at : at + header.size]) for at, header in iter_batches(joined.data)]
        assert joined.end_offset == (read_header(found[-1]).end_offset if found else max(offset, self.start))
        assert fitting.data == (joined.data if found and len(found[0]) <= bytes_max else b"")
        return found

    def _check_batch_read(self, data: bytes) -> dict[int, tuple[bytes | None, bytes | None, int]]:
        """Return the records of a batch by offset; none if it is the end of a transaction."""
        header = read_header(data)
        item = self.items[max(header.base_offset, self.start)]
        assert header.leader_epoch == item.epoch
        assert header.is_control == item.is_marker
        if item.is_marker:
            assert header.producer_id == item.producer_id
            return {}
        records = dict(columns_of(data))
        for at in records:
            if not header.is_transactional and self.items[at].is_transactional:  # compaction has joined it with others
                assert at < self.last_stable()
                assert self.outcome(at)
                continue
            assert header.is_transactional == self.items[at].is_transactional
            assert not header.is_transactional or header.producer_id == self.items[at].producer_id
        return records

    async def _check_times(self) -> None:
        visible = [
            (at, each.timestamp)
            for at, each in enumerate(self.items[: self.high_watermark])
            if at >= self.start and each.is_held
        ]
        times = [time for _, time in visible]
        for wanted in {0, *times, *(time + 1 for time in times)} if len(times) < 8 else self.draw.sample(times, 6):
            expected = next(((at, time) for at, time in visible if time >= wanted), None)
            assert await self.reader.find_offset_by_time(self.log, wanted) == expected, f"by time {wanted}"
        latest = max(visible, key=lambda each: (each[1], -each[0]), default=None)
        assert await self.reader.find_latest_time(self.log) == latest
        assert await self.reader.find_last_timestamp(self.log) == (times[-1] if times else None)


def columns_of(data: bytes) -> Iterator[tuple[int, tuple[bytes | None, bytes | None, int]]]:
    """Yield the offset of each record in a batch, with its key, value and timestamp."""
    header = read_header(data)
    whole = None if header.is_compacted else decode_batch(data, bytes_max=2**20)
    parts = decode_held(header, data) if whole is None else [(header.base_offset, whole)]
    for offset, columns in parts:
        for number, value in enumerate(columns.values):
            key = None if columns.keys is None else columns.keys[number]
            times: Any = columns.timestamps
            yield offset + number, (key, value, times if isinstance(times, int) else times[number])


def find_failure(operations: Iterable[Operation], play: Callable[[list[Operation]], None]) -> str:
    """Return the shortest part of a history that still fails, and how; empty if it does not fail."""

    def failure_of(tried: list[Operation]) -> str:
        try:
            play(tried)
        except Exception as error:
            at = traceback.extract_tb(error.__traceback__)[-1]
            return f"{type(error).__name__}: {error}\n{at.name}, line {at.lineno}: {at.line}"
        return ""

    left = list(operations)
    failure = failure_of(left)
    number = 0
    while failure and number < len(left):
        fewer = left[:number] + left[number + 1 :]
        if found := failure_of(fewer):
            left, failure = fewer, found
        else:
            number += 1
    return failure and f"{failure}\nafter\n" + "\n".join(map(str, left))


def play_on(open_storage: Callable[[], Any], seed: int) -> Callable[[list[Operation]], None]:
    """Return a function that plays a history on a new storage, and checks every step."""

    async def run(operations: list[Operation]) -> None:
        async with open_storage() as storage:
            world = World(storage, seed)
            for each in operations:
                await world.play(each)
                await world.check()

    def play(operations: list[Operation]) -> None:
        with quickly():
            trio.run(run, operations, clock=MockClock(autojump_threshold=0))

    return play
