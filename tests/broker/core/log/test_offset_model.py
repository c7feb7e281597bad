"""The order of logs against a naive model: lists of (address, sequence), with failed appends and restarts."""

from __future__ import annotations

import random

import pytest

from dafka.batches import encode_batch
from dafka.broker.core.log.entries import (
    CONTROL,
    IndexRewriteEntry,
    ProducerEntry,
    decode_entries,
)
from dafka.broker.core.log.log_index import LogIndex
from dafka.broker.core.log.log_table import LogTable
from dafka.broker.core.log.offset_assigner import OffsetAssigner
from dafka.broker.core.log.partitioner import log_of_address, log_of_key
from dafka.broker.core.metadata.topics import Topic
from dafka.broker.core.positions import Offset, RecordSequence
from dafka.records import Partition, RecordBatch
from tests.broker.core.entries import batch_entry, marker_entry

IDENTITY = "BROKER"


class Storage:
    """What is durable: the ends and starts of partitions, and index records."""

    def __init__(self) -> None:
        self.ends: dict[Partition, int] = {}
        self.earliest: dict[Partition, int] = {}
        self.index: dict[Partition, dict[int, bytes]] = {}

    def append(self, batches: list[RecordBatch]) -> None:
        for batch in batches:
            assert batch.first_sequence == self.ends.get(batch.partition, 0)
            self.ends[batch.partition] = batch.end_sequence
            if batch.partition.topic == "$logs":
                for sequence, value in enumerate(batch.values, batch.first_sequence):
                    assert value is not None
                    self.index.setdefault(batch.partition, {})[sequence] = value

    def record_ends(self) -> dict[Partition, int]:
        return {partition: end for partition, end in self.ends.items() if partition.topic != "$logs"}


class Model:
    """A broker with one topic, and what it must be like."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.storage = Storage()
        self.topic = Topic("orders", "1D", self.random.choice([1, 1, 3]))
        self.order = self.make_order()
        self.order.table.add_topic(self.topic)
        self.expected: list[list[tuple[Partition | None, int]]] = [[] for _ in range(self.topic.log_count)]
        self.transactions = 0

    def make_order(self) -> OffsetAssigner:
        return OffsetAssigner(LogTable(IDENTITY), rewrite_entries=self.random.choice([0, 5, 1000]))

    def restart(self) -> None:
        self.order = self.make_order()
        self.order.table.add_topic(self.topic)
        for log in self.order.table.logs("orders"):
            for sequence, value in sorted(self.storage.index.get(log.index_partition, {}).items()):
                self.order.table.restore(log, RecordSequence(sequence), value)
        assert self.order.table.finish_restoring(self.storage.record_ends(), self.storage.earliest) == []

    def append(self) -> None:
        batches = []
        placed: list[tuple[int, Partition | None, int]] = []
        partitions = [Partition("orders", name) for name in "PQ"] + [
            log.leader_partition for log in self.order.table.logs("orders")
        ]
        for partition in self.random.sample(partitions, self.random.randint(1, 3) % len(partitions) + 1):
            count, first = self.random.randint(1, 6), self.storage.ends.get(partition, 0)
            keys = [self.random.choice([None, b"a", b"b", b"c", b"d"]) for _ in range(count)]
            batches.append(RecordBatch(partition, first, [b"value"] * count, keys=keys))
            for sequence, key in enumerate(keys, first):
                if self.order.table.is_leader_partition(partition):
                    log = int(partition.address.rpartition("/")[2])
                elif key is None:
                    log = log_of_address(partition.address, self.topic.log_count)
                else:
                    log = log_of_key(key, self.topic.log_count)
                placed.append((log, partition, sequence))
        if self.random.random() < 0.5:
            self.end_transaction(batches, placed)
        plan = self.order.plan(batches, 1000)
        while self.random.random() < 0.3:
            self.order.undo(plan)
            plan = self.order.plan(batches, 1000)
        self.storage.append(batches + plan.index_records)
        self.order.commit(plan)
        for log, where, sequence in placed:
            self.expected[log].append((where, sequence))

    def end_transaction(self, batches: list[RecordBatch], placed: list[tuple[int, Partition | None, int]]) -> None:
        log = self.random.choice(self.order.table.logs("orders"))
        first = end = self.storage.ends.get(log.leader_partition, 0)
        for batch in batches:
            end = batch.end_sequence if batch.partition == log.leader_partition else end
        position = self.random.randint(first, end)
        self.transactions += 1
        self.order.table.append_marker(log, marker_entry(0, position, self.transactions, 0, 1, 1000, None))
        numbers = [
            number
            for number, (where, partition, sequence) in enumerate(placed)
            if where == log.number and partition == log.leader_partition and sequence >= position
        ]
        others = [number for number, (where, partition, _) in enumerate(placed) if partition == log.leader_partition]
        place = 0 if position == first else numbers[0] if numbers else others[-1] + 1
        placed.insert(place, (log.number, None, self.transactions))

    def add_logs(self) -> None:
        self.topic = Topic("orders", "1D", self.topic.log_count + 1)
        self.order.table.add_topic(self.topic)
        self.expected.append([])

    def drop_records(self) -> None:
        for partition, end in self.storage.record_ends().items():
            before = self.storage.earliest.get(partition, 0)
            self.storage.earliest[partition] = min(before + self.random.randint(0, 10), end)
        for log in self.order.table.logs("orders"):
            self.order.table.skip_dropped(log, self.storage.earliest)
            index = self.storage.index.get(log.index_partition, {})
            for sequence in [each for each in index if each < log.index_first]:
                del index[sequence]

    def check(self) -> None:
        for log, expected in zip(self.order.table.logs("orders"), self.expected, strict=True):
            assert log.high_watermark == log.index.end_offset == len(expected)
            for offset, (partition, sequence) in enumerate(expected):
                location = log.index.locate(Offset(offset))
                if offset < log.index.start_offset:
                    assert location is None
                    assert partition is None or sequence < self.storage.earliest.get(partition, 0)
                    continue
                assert location is not None
                if partition is None:
                    assert location.address == CONTROL
                    (marker,) = log.index.markers(location, 1)
                    assert (marker.producer_id, marker.offset) == (sequence, offset)
                    continue
                assert log.partition_of(location.address) == partition
                assert location.sequence == sequence
                assert log.index.find(location.address, RecordSequence(sequence)) == offset
                assert log.index.sequence_from(location.address, Offset(offset)) == sequence
                run = expected[offset : offset + location.record_count]
                assert run == [(partition, sequence + number) for number in range(location.record_count)]


@pytest.mark.parametrize("first", range(0, 20, 5))
def test_every_record_keeps_its_offset(first: int) -> None:
    for seed in range(first, first + 5):
        model = Model(seed)
        for _ in range(60):
            steps = [model.append, model.restart, model.add_logs, model.drop_records]
            model.random.choices(steps, [12, 3, 1, 4])[0]()
            model.check()


def test_unbroken_run_is_one_entry() -> None:
    order = OffsetAssigner(LogTable(IDENTITY))
    order.table.add_topic(Topic("orders", "1D"))
    (log,) = order.table.logs("orders")
    for number in range(100):
        plan = order.plan([RecordBatch(log.leader_partition, number * 5, [b""] * 5)], 0)
        assert len(plan.index_records) == (number == 0)
        order.commit(plan)
    assert len(log.index) == 1
    assert log.high_watermark == 500


@pytest.mark.parametrize("count", [10, 100])
def test_a_restart_looks_at_one_log_for_each_partition_of_a_broker(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The work of a restart grows with the number of logs, not with its square."""
    order = OffsetAssigner(LogTable(IDENTITY))
    order.table.add_topic(Topic("orders", "1D", count))
    looked_up: list[str] = []
    end_sequence = LogIndex.end_sequence

    def look_up(self: LogIndex, address: str) -> int:
        looked_up.append(address)
        return end_sequence(self, address)

    monkeypatch.setattr(LogIndex, "end_sequence", look_up)
    partitions = [log.leader_partition for log in order.table.logs("orders")]
    other = [Partition("orders", f"OTHER/1D/{number}/7") for number in range(count)]
    rest = order.table.finish_restoring(dict.fromkeys(partitions + other, 5), {})
    assert rest == [(each, 0) for each in partitions]
    assert [order.table.first_needed(each) for each in other] == [0] * count
    assert len(looked_up) == 2 * count


def producer_entries(value: bytes) -> list[ProducerEntry]:
    return [each for each in decode_entries(value) if isinstance(each, ProducerEntry)]


def restore_all(order: OffsetAssigner, index: list[tuple[int, bytes]]) -> tuple[OffsetAssigner, list[ProducerEntry]]:
    restored = OffsetAssigner(LogTable(IDENTITY))
    restored.table.add_topic(order.table.topics["orders"])
    (log,) = restored.table.logs("orders")
    found: list[ProducerEntry] = []
    for sequence, value in index:
        restored.table.restore(log, RecordSequence(sequence), value)
        for entry in producer_entries(value):
            found = [] if isinstance(entry, IndexRewriteEntry) else [*found, entry]
    return restored, found


def test_rewritten_index_keeps_open_and_ended_transactions() -> None:
    order = OffsetAssigner(LogTable(IDENTITY), rewrite_entries=20)
    order.table.add_topic(Topic("orders", "1D"))
    (log,) = order.table.logs("orders")
    index: list[tuple[int, bytes]] = []
    for number in range(300):
        data = encode_batch(
            number,
            [b""],
            timestamps=5,
            producer_id=number > 0,
            producer_epoch=2,
            base_sequence=max(number - 1, 0),
            is_transactional=True,
        )
        if number == 150:
            order.table.append_marker(log, marker_entry(0, 150, 1, 2, 0, 77, 1))
        plan = order.plan([RecordBatch(log.leader_partition, number, [b""], encoded=(data,))], 77)
        order.commit(plan)
        for record in plan.index_records:
            index += [(each, value or b"") for each, value in enumerate(record.values, record.first_sequence)]
        index = [each for each in index if each[0] >= log.index_first]
        assert log.entry_count <= 60
    restored, found = restore_all(order, index)
    assert found[0] == batch_entry(0, 1, 0, 2, 0, 1, 77)  # producer 0 has never ended its transaction
    assert found[1] == marker_entry(150, 150, 1, 2, 0, 77, 1)
    assert found[2] == batch_entry(150, 1, 1, 2, 149, 1, 77)  # the first one of the transaction that is open
    assert restored.table.finish_restoring({log.leader_partition: 300}, {}) == []
    assert restored.table.logs("orders")[0].high_watermark == 301
