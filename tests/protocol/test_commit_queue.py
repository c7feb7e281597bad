"""The ACKs of a store: exactly for the records that its storage has made durable, and not earlier."""

from __future__ import annotations

from random import Random

import attrs
from hypothesis import given, settings
from hypothesis import strategies as st

from dafka import wire
from dafka.config import Config
from dafka.protocol import StoreMachine
from dafka.protocol.actions import Action, Append, Publish, ResetPosition
from dafka.protocol.machines.commit_queue import DELETED_TOGETHER, CommitQueue, DeletePartitions
from dafka.protocol.machines.store import OWN_PARTITION
from dafka.records import Partition
from tests.protocol.helpers import HELLO, direct, live, run

OTHER = Partition("hello", "OTHER")
ME = "STORE"


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


def test_transactions_are_counted_with_their_records_and_bytes() -> None:
    store = Store()
    store.receive(9, 12)
    assert (store.queue.records, store.queue.bytes, store.queue.commits) == (0, 0, 0)
    store = Store(HELLO, end=9)
    store.receive(9, 12)
    store.receive(0, 1, OTHER)
    store.queue.begin_work()
    assert (store.queue.records, store.queue.bytes, store.queue.commits) == (0, 0, 0)
    store.queue.work_done(0.2)
    assert (store.queue.records, store.queue.bytes, store.queue.commits) == (4, len("91011") + len("0"), 1)
    store.receive(12, 13)
    store.queue.begin_work()
    store.queue.work_done(0.3)
    assert (store.queue.records, store.queue.commits) == (5, 2)


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


def test_a_queue_with_nothing_but_a_reset_has_work() -> None:
    store = Store(HELLO)
    store.queue.put_reset(ResetPosition(HELLO, 10))
    assert store.queue
    store.queue.begin_work()
    assert store.queue, "a commit that has begun is not done"
    store.queue.work_done(0.1)
    assert not store.queue


def test_own_records_are_not_acknowledged() -> None:
    machine = StoreMachine(ME, Config(), {}, is_own=HELLO.__eq__)
    machine.append_own(run(0, 3), 0.0)
    assert machine.receive([live(3, 5), direct(3, 5, ME)], 0.1) == [], "and no other node adds records"
    assert machine.discarded == {OWN_PARTITION: 4}
    assert machine.records_committed({HELLO: 3}, 0.1) == []
    assert machine.stored.durable_end(HELLO) == 3


def test_what_waits_is_appended_between_the_deletions_of_many_partitions() -> None:
    store = Store()
    partitions = [Partition("hello", f"P{number}") for number in range(DELETED_TOGETHER + 1)]
    store.queue.put_deleted([*partitions, OTHER])
    store.receive(0, 3)
    store.receive(0, 2, OTHER)
    assert store.queue.begin_work() == DeletePartitions(tuple(partitions[:DELETED_TOGETHER]))
    assert not store.queue.lets_others_write
    store.queue.work_done(0.2)
    assert store.queue.begin_work() == [run(0, 3)], "nothing is appended to a partition that is to be deleted"
    store.queue.work_done(0.3)
    assert store.queue.is_deleting
    assert store.queue.begin_work() == DeletePartitions((partitions[-1], OTHER))
    store.queue.work_done(0.4)
    assert store.queue.lets_others_write
    store.queue.others_written()
    assert not store.queue.lets_others_write
    assert not store.queue.is_deleting
    assert not store.queue
    assert store.machine.pending_bytes == 0


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
