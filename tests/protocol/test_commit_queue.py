"""The ACKs of a store: exactly for the records that its storage has made durable, and not earlier."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import add
from random import Random
from typing import Any

import attrs
from hypothesis import given, settings
from hypothesis import strategies as st

from dafka import wire
from dafka.config import Config
from dafka.protocol import StoreMachine
from dafka.protocol.actions import Action, Append, Publish, ResetPosition
from dafka.protocol.machines.commit_queue import (
    DELETED_TOGETHER,
    CommitQueue,
    DeletePartitions,
    ForgetPartitions,
    StorageWork,
)
from dafka.protocol.machines.store import OWN_PARTITION
from dafka.records import Partition, RecordBatch
from tests.protocol.helpers import HELLO, direct, live, run
from tests.seeds import each_seed

OTHER = Partition("hello", "OTHER")
ME = "STORE"
OWN = [Partition("own", f"O{number}") for number in range(6)]
PARTITIONS = [HELLO, OTHER, *OWN]


class Store:
    """A store's machine and its queue, wired as `dafka.roles` wires them."""

    def __init__(self, *ends: Partition, end: int = 1) -> None:
        self.machine = StoreMachine(ME, Config(), dict.fromkeys(ends, end))
        self.machine.start(0.0)
        self.queue = CommitQueue(self.machine)

    def receive(self, first: int, end: int, partition: Partition = HELLO) -> list[Action]:
        """Receive records, queue those to be appended, and return the other actions."""
        others: list[Action] = []
        for action in self.machine.receive([live(first, end, partition)], 0.1):
            if isinstance(action, Append):
                self.queue.put_records(action.batch)
            else:
                others.append(action)
        return others


def ack(end: int, partition: Partition = HELLO) -> Publish:
    return Publish(wire.Ack(partition.address, partition.topic, end - 1, ME))


def memory(*runs: tuple[int, int]) -> int:
    return sum(run(first, end).memory_bytes for first, end in runs)


def test_records_that_are_joined_without_their_record_batches_leave_nothing_pending() -> None:
    store = Store(HELLO)
    store.queue.put_records(attrs.evolve(run(1, 3), encoded=(b"a stored record batch",)))
    store.queue.put_records(run(3, 4))
    assert store.machine.pending_bytes == memory((1, 4)) + len(b"a stored record batch")
    assert store.queue.begin_work() == [run(1, 4)]
    store.queue.work_done(0.1)
    assert store.machine.pending_bytes == 0


def test_a_reset_comes_first_and_drops_the_records_that_wait_for_it() -> None:
    store = Store(HELLO, OTHER)
    store.receive(1, 2, OTHER)
    store.receive(1, 4)
    store.queue.put_reset(ResetPosition(HELLO, 10))
    store.queue.put_records(run(10, 12))
    assert store.machine.pending_bytes == run(1, 2, OTHER).memory_bytes + memory((10, 12))
    assert store.queue.begin_work() == ResetPosition(HELLO, 10)
    assert store.queue.begin_work() == ResetPosition(HELLO, 10), "the same until it is done"
    assert store.queue.work_done(0.2) == [ack(10)]
    assert store.machine.stored.earliest[HELLO] == 10
    assert store.queue.begin_work() == [run(1, 2, OTHER), run(10, 12)]


def test_own_records_are_not_acknowledged() -> None:
    machine = StoreMachine(ME, Config(), {}, is_own=HELLO.__eq__)
    machine.append_own(run(0, 3), 0.0)
    assert machine.receive([live(3, 5), direct(3, 5, ME)], 0.1) == [], "and no other node adds records"
    assert machine.discarded == {OWN_PARTITION: 4}
    assert machine.records_committed({HELLO: 3}, 0.1) == []
    assert machine.stored.durable_end(HELLO) == 3


class Disk:
    """A storage, and what a queue needs of a store's machine: nothing is acknowledged that is not durable.

    Attributes:
        ends: By partition, the sequence after the last record on the disk.
        next: By partition, the sequence after the last record that was queued.
        deleted: The partitions that are to be deleted.
        waiting: The records that are queued, and not being written.
    """

    def __init__(self, draw: Random) -> None:
        self.draw = draw
        self.ends: dict[Partition, int] = {}
        self.next: dict[Partition, int] = {}
        self.deleted: set[Partition] = set()
        self.waiting: dict[Partition, list[RecordBatch]] = {}
        self.written: list[RecordBatch] = []
        self.pending_bytes = 0
        self.forgotten: list[Partition] = []
        part: Any = self
        self.queue = CommitQueue(part)

    # What the queue calls

    def records_queued(self, memory_bytes: int) -> None:
        self.pending_bytes += memory_bytes

    def records_unqueued(self, memory_bytes: int) -> None:
        self.pending_bytes -= memory_bytes

    def records_committed(self, ends: Mapping[Partition, int], now: float) -> list[Action]:
        assert all(self.ends[partition] == end for partition, end in ends.items())
        return [ack(end, partition) for partition, end in ends.items()]

    def position_reset(self, partition: Partition, next_sequence: int) -> list[Action]:
        assert self.ends[partition] == next_sequence
        return [ack(next_sequence, partition)]

    def begin_forgetting(self, partitions: Iterable[Partition]) -> tuple[Partition, ...]:
        return tuple(each for each in partitions if each in self.ends and each not in self.waiting)

    def partitions_deleted(self) -> list[Action]:
        return []

    def forget_own(self, partition: Partition) -> None:
        assert partition not in self.ends
        self.deleted.remove(partition)
        self.next.pop(partition, None)

    # What is done

    def put(self, partition: Partition) -> None:
        """Queue records; some come although their partition is to be deleted."""
        first = self.next.get(partition, 0)
        batch = run(first, first + self.draw.randint(1, 3), partition)
        self.queue.put_records(batch)
        self.waiting.setdefault(partition, []).append(batch)
        self.next[partition] = batch.end_sequence

    def reset(self, partition: Partition) -> None:
        sequence = self.next.get(partition, 0) + self.draw.randint(1, 5)
        self.queue.put_reset(ResetPosition(partition, sequence))
        self.waiting.pop(partition, None)
        self.next[partition] = sequence

    def delete(self, partition: Partition) -> None:
        self.queue.put_deleted([partition])
        self.deleted.add(partition)

    def forget(self) -> None:
        self.queue.put_silent([each for each in (HELLO, OTHER) if each in self.ends and self.draw.random() < 0.7])

    def work(self, *, is_calm: bool = False) -> None:
        """Do the next work. Others go on meanwhile, and it can fail: then it is the next work again."""
        counts = self.queue.records, self.queue.bytes, self.queue.commits
        has_just_deleted = self.queue._has_just_deleted
        work = self.queue.begin_work()
        assert self.queue
        if isinstance(work, list):
            kept = [self.waiting[each] for each in self.waiting if each not in self.deleted]
            self.written, self.waiting = [batch for each in kept for batch in each], {}
            assert sum(map(len, work)) == sum(map(len, self.written))
        if isinstance(work, DeletePartitions):
            assert self.deleted.issuperset(work.partitions)
            assert len(work.partitions) <= DELETED_TOGETHER
            assert not (has_just_deleted and self.waiting), "waiting records are written between two deletions"
        while not is_calm and self.draw.random() < 0.4:
            self.change()
            self.queue.work_failed("the disk is full")
            assert self.queue.begin_work() is work
        self._carry_out(work)
        if not is_calm and self.draw.random() < 0.5:
            self.change()
        acknowledged = [each for each in self.queue.work_done(0.1) if isinstance(each, Publish)]
        done = (0, 0, 0)
        if isinstance(work, list):
            ends = {batch.partition: batch.end_sequence for batch in work}
            assert acknowledged == [ack(end, partition) for partition, end in ends.items()]
            done = sum(map(len, work)), sum(each.content_bytes for each in work), 1
        assert (self.queue.records, self.queue.bytes, self.queue.commits) == tuple(map(add, counts, done))
        if isinstance(work, DeletePartitions):
            for partition in work.partitions:
                self.waiting.pop(partition, None)
        self.written = []
        assert self.queue.lets_others_write is (isinstance(work, DeletePartitions) and not self.waiting)

    def _carry_out(self, work: StorageWork) -> None:
        if isinstance(work, ResetPosition):
            assert self.ends.get(work.partition, 0) <= work.next_sequence
            self.ends[work.partition] = work.next_sequence
        elif isinstance(work, list):
            for batch in work:
                expected = self.ends.get(batch.partition, batch.first_sequence)
                assert batch.first_sequence == expected, "no gap and no repeat"
                self.ends[batch.partition] = batch.end_sequence
        else:
            for partition in work.partitions:
                end = self.ends.pop(partition, None)
                if isinstance(work, ForgetPartitions) and self.next[partition] == end:
                    del self.next[partition]  # otherwise it continues

    def change(self) -> None:
        partition = self.draw.choice(PARTITIONS)
        act = self.draw.choice([self.put, self.put, self.put, self.put, self.reset, self.delete])
        if act == self.delete and partition not in OWN:
            act = self.put
        act(partition)

    def check(self) -> None:
        waiting = [*self.written, *(batch for each in self.waiting.values() for batch in each)]
        assert self.pending_bytes == sum(each.memory_bytes for each in waiting)
        assert self.queue.is_deleting is bool(self.deleted)


@each_seed(150)
def test_everything_queued_is_durable_before_its_ack_in_any_order_of_work_and_failures(seed: int) -> None:
    disk = Disk(Random(seed))
    for _ in range(60):
        if disk.queue and disk.draw.random() < 0.5:
            disk.work()
        elif disk.draw.random() < 0.05 and not disk.waiting:
            disk.forget()
        else:
            disk.change()
        disk.check()
    while disk.queue:
        disk.work(is_calm=True)
    disk.check()
    assert disk.pending_bytes == 0
    assert disk.ends == disk.next


@settings(max_examples=15)
@given(seed=st.integers(0, 2**32), part_count=st.integers(1, 20))
def test_memory_is_limited_while_the_storage_does_nothing(seed: int, part_count: int) -> None:
    """Whatever comes: in order or ahead of gaps, live or fetched, many runs at once or one by one."""
    random, limit = Random(seed), 5000
    config = Config().with_store(pending_bytes_max=limit).with_fetch(ahead_bytes_max=limit)
    machine = StoreMachine(ME, config, {})
    machine.start(0.0)
    queue = CommitQueue(machine)
    sent = dict.fromkeys((HELLO, OTHER), 0)
    largest = 0
    for _ in range(200):
        messages = []
        for _ in range(part_count):
            partition = random.choice(list(sent))
            first = max(sent[partition], machine.next_sequence(partition)) + random.choice((0, 0, 0, 3))
            end = first + random.randrange(1, 10)
            sent[partition] = end if random.random() < 0.9 else 0
            is_live = random.random() < 0.5
            messages.append(live(first, end, partition) if is_live else direct(first, end, ME, partition))
            largest = max(largest, messages[-1].batch.memory_bytes)
        for action in machine.receive(messages, 0.1):
            if isinstance(action, Append):
                queue.put_records(action.batch)
        # What arrives together is looked at before any of it is queued: transports limit how much that is.
        assert machine.pending_bytes <= 2 * limit + part_count * largest + limit
        assert machine.reassembler.ahead_bytes <= limit
