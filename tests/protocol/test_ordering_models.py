"""Records in order, fetched and buffered, against lists in memory, whatever the network loses, repeats and reorders."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, deque
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from dafka import wire
from dafka.config import FetchConfig
from dafka.protocol.ordering.buffers import RUN_RECORDS_MAX, BatchBuffer, RetransmitBuffer
from dafka.protocol.ordering.cursor import RUNS_MAX, Cursor
from dafka.protocol.ordering.gap_resolver import HOLDS_NOTHING, PATIENCE_ATTEMPTS, GapResolver
from dafka.protocol.ordering.reassembler import Reassembler
from dafka.records import Partition, RecordBatch
from dafka.wire import Command
from tests.protocol.helpers import contents, run, sequences
from tests.seeds import each_seed

ME = "ME"
PARTITIONS = [Partition("hello", address) for address in "ABCD"]
RECORDS = 60


class Sender:
    """A node that has all records of all partitions, and a network between it and the one that puts them in order.

    Attributes:
        received: By partition, the sequences that came out.
        fetched: How often each record was fetched.
    """

    def __init__(self, seed: int, *, loss: float) -> None:
        self.draw = Random(seed)
        self.loss = loss
        self.now = 0.0
        settings = {"page_records_first": 7, "page_records_max": 20, "partitions_max": self.draw.choice((1, 2, 8))}
        self.config = FetchConfig(**settings, ahead_bytes_max=self.draw.choice((200, 10**6)) if loss else 10**6)
        self.reassembler = Reassembler(ME, self.config)
        self.received: dict[Partition, list[int]] = {partition: [] for partition in PARTITIONS}
        self.fetched: Counter[tuple[str, int]] = Counter()
        self._arriving: list[tuple[float, int, RecordBatch]] = []
        self._numbers = itertools.count()
        for partition in PARTITIONS:
            self.reassembler.follow_partition(partition, 0, since=0.0)

    def send(self, batch: RecordBatch) -> None:
        """Send records, which may be lost, repeated or overtaken."""
        for _ in range(self.draw.choice((1, 1, 2)) if self.loss else 1):
            if self.draw.random() >= self.loss:
                delay_s = self.draw.uniform(0.01, 0.3 if self.loss else 0.02)
                heapq.heappush(self._arriving, (self.now + delay_s, next(self._numbers), batch))

    def answer(self) -> None:
        """Answer the FETCHes that are due, in chunks."""
        for fetch in self.reassembler.due_fetches(self.now):
            partition = Partition(fetch.subject, fetch.partition)
            cursor = self.reassembler.cursors[partition]
            assert cursor.next_sequence <= fetch.sequence < fetch.sequence + fetch.count <= cursor.known_end
            assert 1 <= fetch.count <= self.config.page_records_max
            assert fetch.address == ME
            self.fetched.update((partition.address, fetch.sequence + number) for number in range(fetch.count))
            for first in range(fetch.sequence, fetch.sequence + fetch.count, 5):
                self.send(run(first, min(first + 5, fetch.sequence + fetch.count), partition))

    def step(self, until: float) -> bool:
        """Run the next thing that happens; return whether there is one before a time."""
        self.answer()
        due = min(self.reassembler.deadline(), self._arriving[0][0] if self._arriving else float("inf"))
        if due > until:
            return False
        self.now = max(due, self.now)
        while self._arriving and self._arriving[0][0] <= self.now:
            _, _, batch = heapq.heappop(self._arriving)
            self.reassembler.record_answer(self.now)
            if self.draw.random() < self.loss / 2:
                self.reassembler.drop_batch(batch)
            else:
                self.received[batch.partition] += sequences(self.reassembler.add_batch(batch))
            assert 0 <= self.reassembler.ahead_bytes <= self.config.ahead_bytes_max
        self.reassembler.tick(self.now)
        return True

    def is_complete(self) -> bool:
        return all(len(each) == RECORDS for each in self.received.values())


@each_seed(20)
def test_every_record_comes_once_and_in_order_although_many_are_lost(seed: int) -> None:
    sender = Sender(seed, loss=0.4)
    for first in range(0, RECORDS, 4):
        for partition in PARTITIONS:
            if sender.draw.random() < 0.5:
                sender.send(run(first, first + 4, partition))
            else:
                sender.reassembler.record_known_end(partition, first + 4)
        while sender.step(first * 0.1):
            pass
        sender.now = first * 0.1
    for partition in PARTITIONS:
        sender.reassembler.record_known_end(partition, RECORDS)
    while not sender.is_complete():
        assert sender.step(2000.0), "it stalls"
    assert sender.received == {partition: [*range(RECORDS)] for partition in PARTITIONS}
    fetched = sender.fetched.total()
    while sender.step(3000.0):
        pass
    assert sender.fetched.total() == fetched, "a complete partition is not fetched"
    assert sender.reassembler.ahead_bytes == 0
    assert sender.reassembler.deadline() == float("inf")
    assert (sender.reassembler.has_capacity(), sender.reassembler.unproven_partitions()) == (True, [])


@each_seed(10)
def test_without_losses_each_record_is_fetched_once(seed: int) -> None:
    sender = Sender(seed, loss=0.0)
    for partition in PARTITIONS:
        sender.reassembler.record_known_end(partition, RECORDS)
    while not sender.is_complete():
        assert sender.step(20.0)
    assert set(sender.fetched.values()) == {1}
    assert sender.now < 2.0


@each_seed(10)
def test_while_nothing_answers_each_partition_is_asked_for_at_growing_waits(seed: int) -> None:
    sender = Sender(seed, loss=1.0)
    for partition in PARTITIONS:
        sender.reassembler.record_known_end(partition, 5)
    while sender.step(100.0):
        pass
    asked = [sender.fetched[partition.address, 0] for partition in PARTITIONS]
    share = min(len(PARTITIONS) / sender.config.partitions_max, 1.0)
    assert all(4 <= count <= 26 for count in asked), asked
    assert sum(asked) <= 4 * 26 / share


# Unrecoverable records


def resume(asked: set[str], answers: dict[str, tuple[int, int]], next_sequence: int, attempts: int) -> int | None:
    """Return where a partition should continue, by the rules of erratum 26."""
    if all(lost_end <= next_sequence for _, lost_end in answers.values()):
        return None
    if not asked <= answers.keys() and attempts < PATIENCE_ATTEMPTS:
        return None
    return min((sequence for sequence, _ in answers.values() if sequence != HOLDS_NOTHING), default=None)


def test_records_are_given_up_when_all_that_could_hold_them_have_answered() -> None:
    """All small cases: which of two stores and the producer are there, and what each has answered."""
    options = (None, (9, 5), (7, 0), (HOLDS_NOTHING, 0), (HOLDS_NOTHING, 6), (6, 3))
    for stores, has_producer, attempts in itertools.product(("", "S", "ST"), (False, True), (0, 4, 5)):
        for told in itertools.product(options, repeat=3):
            resolver = GapResolver()
            resolver.node_settled()
            for store in stores:
                resolver.record_subscription(wire.Subscription(Command.CONSUMER_HELLO, store), ME)
            if has_producer:
                resolver.add_node("A")
            counted = {}
            for sender, answer in zip("STA", told, strict=True):
                if answer is not None:
                    resolver.add_answer(wire.DirectEarliest(ME, sender, "A", "hello", *answer), 3)
                    if sender in stores or sender == "A":
                        counted[sender] = answer
            asked = {*stores, *("A" * has_producer)}
            assert resolver.answered_partitions() == [PARTITIONS[0]] * bool(counted)
            assert resolver.resume_sequence(PARTITIONS[0], 3, attempts) == resume(asked, counted, 3, attempts)


# Buffers


@each_seed(20)
def test_a_batch_buffer_is_a_queue_for_each_partition(seed: int) -> None:
    draw, buffer = Random(seed), BatchBuffer()
    waiting: dict[Partition, deque[int]] = {partition: deque() for partition in PARTITIONS[:3]}
    ends = dict.fromkeys(waiting, 0)
    for _ in range(150):
        partition, event = draw.choice(list(waiting)), draw.randrange(7)
        queue = waiting[partition]
        if event < 3:
            first = ends[partition] + draw.choice((0, 0, 0, 2))
            ends[partition] = first + draw.randrange(1, 6)
            buffer.add_batch(run(first, ends[partition], partition))
            queue.extend(range(first, ends[partition]))
        elif event == 3 and buffer:
            batch = buffer.take_batch()
            assert sequences([batch]) == [waiting[batch.partition].popleft() for _ in range(len(batch))]
            if draw.random() < 0.3:
                buffer.put_back(batch)
                waiting[batch.partition].extendleft(reversed(range(batch.first_sequence, batch.end_sequence)))
        elif event == 4:
            limits = {each: draw.randrange(ends[each] + 3) for each in draw.sample(list(waiting), 2)}
            taken = buffer.take_batch_before(limits)
            has_some = [each for each, end in limits.items() if waiting[each] and waiting[each][0] < end]
            assert (taken is not None) == bool(has_some)
            if taken is not None:
                assert taken.end_sequence <= limits[taken.partition]
                assert sequences([taken]) == [waiting[taken.partition].popleft() for _ in range(len(taken))]
        elif event == 5 and draw.random() < 0.3:
            freed = sum(run(each, each + 1).memory_bytes for each in queue)
            assert buffer.drop_partition(partition) == freed
            queue.clear()
        held = [each for queue in waiting.values() for each in queue]
        assert buffer.memory_bytes == sum(run(each, each + 1).memory_bytes for each in held)
        assert buffer.first_sequences() == {each: queue[0] for each, queue in waiting.items() if queue}
        assert bool(buffer) == bool(held)


@each_seed(20)
def test_a_retransmit_buffer_holds_what_is_not_released(seed: int) -> None:
    draw = Random(seed)
    first = draw.choice((0, 5))
    buffer, held = RetransmitBuffer(first), deque[int]()
    end = first
    for _ in range(100):
        event = draw.randrange(6)
        if event < 3:
            count = draw.choice((1, 3, RUN_RECORDS_MAX + 3 if end < 20 else 2))
            buffer.push(RecordBatch(PARTITIONS[0], end, contents(end, end + count)))
            held.extend(range(end, end + count))
            end += count
        elif event == 3:
            released = draw.randrange(first, end + 3)
            buffer.release(released)
            while held and held[0] < released:
                held.popleft()
        elif event == 4:
            buffer.trim(draw.choice((4, 10, 10**6)), draw.choice((30, 10**6)))
            assert not held or buffer.first_sequence < end, "the latest batch stays"
            while held and held[0] < buffer.first_sequence:
                held.popleft()
        begin = held[0] if held else end
        assert (buffer.first_sequence, buffer.end_sequence, len(buffer)) == (begin, end, len(held))
        assert sum(map(len, buffer.batches_from(begin))) == len(held)
        held_bytes = sum(len(b"%d" % each) for each in held)
        assert held_bytes <= buffer.content_bytes <= held_bytes + 5 * RUN_RECORDS_MAX, "memory is released by the run"
        wanted, bytes_max = draw.randrange(max(begin - 2, 0), end + 2), draw.choice((1, 6, 100))
        found = buffer.read(wanted, 4, bytes_max)
        assert (found is not None) == (begin <= wanted < end)
        if found is not None:
            assert found.first_sequence == wanted
            assert sequences([found]) == [*range(wanted, wanted + len(found))]
            assert 1 <= len(found) <= 4
            assert len(found) == 1 or found.content_bytes <= bytes_max


# One partition


ROOM = 2**20

Interval = tuple[int, int]
intervals = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 12)).map(lambda pair: (pair[0], pair[0] + pair[1])), max_size=30
)


def take(cursor: Cursor, first: int, end: int, room: int = ROOM) -> list[int]:
    return sequences(cursor.add_batch(run(first, end), room))


def test_every_second_record_does_not_grow_the_list_without_limit() -> None:
    cursor = Cursor(0)
    for sequence in range(1, 2 * RUNS_MAX + 20, 2):
        take(cursor, sequence, sequence + 1)
    for sequence in range(0, 2 * RUNS_MAX + 20, 2):
        take(cursor, sequence, sequence + 1)
    assert cursor.next_sequence == 2 * RUNS_MAX + 1
    assert cursor.first_gap() == (2 * RUNS_MAX + 1, 2 * RUNS_MAX + 2)


@given(runs=intervals, begin=st.integers(0, 5), heads=st.lists(st.integers(0, 60), max_size=30))
def test_in_any_order_each_record_is_ready_once_and_gaps_are_known(
    runs: list[Interval], begin: int, heads: list[int]
) -> None:
    cursor = Cursor(begin)
    received: set[int] = set()
    ready: list[int] = []
    known_end = begin
    for index, (first, end) in enumerate(runs):
        ready += take(cursor, first, end)
        received |= set(range(first, end))
        known_end = max(known_end, end)
        if index < len(heads):
            cursor.record_known_end(heads[index])
            known_end = max(known_end, heads[index])
        next_sequence = begin
        while next_sequence in received:
            next_sequence += 1
        ahead = sorted(sequence for sequence in received if sequence > next_sequence)
        assert ready == list(range(begin, next_sequence))
        assert cursor.next_sequence == next_sequence
        assert cursor.ahead_bytes == sum(run(sequence, sequence + 1).memory_bytes for sequence in ahead)
        gap_end = ahead[0] if ahead else known_end
        assert cursor.first_gap() == ((next_sequence, gap_end) if next_sequence < known_end else None)


@given(runs=intervals, room=st.integers(0, 30))
def test_with_little_room_fetching_each_gap_still_yields_each_record_once(runs: list[Interval], room: int) -> None:
    cursor = Cursor(0)
    ready: list[int] = []
    for first, end in runs:
        ready += take(cursor, first, end, room - cursor.ahead_bytes)
        assert cursor.ahead_bytes <= room
    while (gap := cursor.first_gap()) is not None:
        ready += take(cursor, *gap, room=room - cursor.ahead_bytes)
    assert ready == list(range(max((end for _, end in runs), default=0)))
    assert cursor.ahead_bytes == 0
