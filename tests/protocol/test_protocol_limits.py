"""The limits of the protocol's parts at their edges, and the room that is free again after they were reached."""

from __future__ import annotations

import math
from fractions import Fraction
from random import Random

import pytest

from dafka import wire
from dafka.config import FetchConfig
from dafka.protocol import polling
from dafka.protocol.ordering import buffers, gap_resolver
from dafka.protocol.ordering.buffers import BatchBuffer, RetransmitBuffer
from dafka.protocol.ordering.gap_resolver import HOLDS_NOTHING, PATIENCE_ATTEMPTS, GapResolver
from dafka.protocol.ordering.reassembler import IDLE_S, Reassembler
from dafka.protocol.polling import LASTING_INTERVAL_S, LastingQuestion, PendingPeers, RetrySchedule
from dafka.protocol.token_bucket import TokenBucket
from dafka.records import SEQUENCE_MAX, Partition, RecordBatch
from dafka.wire import Command
from tests.protocol.helpers import HELLO, contents, run
from tests.seeds import each_seed

A, B, C, D = (Partition("hello", address) for address in "ABCD")


def store(address: str, *, active: bool = True) -> wire.Subscription:
    return wire.Subscription(Command.CONSUMER_HELLO, address, active)


def answer(sender: str, sequence: int, end: int = 5, partition: Partition = A) -> wire.DirectEarliest:
    return wire.DirectEarliest("ME", sender, partition.address, partition.topic, sequence, end)


def resolver(*stores: str) -> GapResolver:
    made = GapResolver()
    made.node_settled()
    for address in stores:
        made.record_subscription(store(address), "ME")
    return made


# Nodes that may hold missing records


@pytest.mark.parametrize(
    ("sequence", "counts"),
    [(0, False), (1, False), (2, True), (SEQUENCE_MAX, True), (SEQUENCE_MAX + 1, False), (HOLDS_NOTHING, True)],
)
def test_an_answer_must_lie_after_the_missing_record(sequence: int, counts: bool) -> None:
    made = resolver("S")
    made.add_answer(answer("S", sequence, end=2), 1)
    assert made.answered_partitions() == ([A] if counts else [])
    expected = sequence if counts and sequence != HOLDS_NOTHING else None
    assert made.resume_sequence(A, 1, 0) == expected


def test_answers_count_until_the_position_moves() -> None:
    made = resolver("S", "T")
    made.add_answer(answer("S", 5), 0)
    assert made.take_newly_answered() == [A]
    assert made.take_newly_answered() == []
    made.add_answer(answer("T", 6), 2)
    assert made.resume_sequence(A, 2, PATIENCE_ATTEMPTS - 1) is None, "the answer of S was about another record"
    assert made.take_newly_answered() == [A]
    assert made.resume_sequence(A, 3, PATIENCE_ATTEMPTS) is None
    assert made.answered_partitions() == []


@pytest.mark.parametrize("topic", ["", "ME"])
def test_neither_the_own_address_nor_an_empty_one_is_a_store(topic: str) -> None:
    assert resolver(topic).stores == set()
    other = wire.Subscription(Command.RECORD, "S")
    made = resolver()
    made.record_subscription(other, "ME")
    assert made.stores == set()


def test_a_node_that_leaves_and_returns_counts_as_a_store_again() -> None:
    made = resolver("S")
    made.add_node("S")
    made.remove_node("S")
    assert made.stores == set()
    made.add_node("S")
    assert made.stores == {"S"}
    made.record_subscription(store("S", active=False), "ME")
    made.add_node("S")
    assert made.stores == set()


def test_stores_answers_and_nodes_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gap_resolver, "STORES_MAX", 2)
    assert resolver("S", "T", "U").stores == {"S", "T"}
    monkeypatch.setattr(gap_resolver, "NODES_MAX", 1)
    made = resolver("S")
    made.add_node("X")
    made.add_node("A")
    made.add_answer(answer("S", 5), 0)
    assert made.resume_sequence(A, 0, 0) == 5, "the producer was not remembered"


def test_room_for_answers_is_free_again_when_a_partition_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gap_resolver, "ANSWERS_MAX", 3)
    made = resolver("S", "T")
    for _ in range(3):
        for partition in (A, B, C, D):
            made.add_answer(answer("S", 5, partition=partition), 0)
            made.add_answer(answer("S", 6, partition=partition), 0)
        assert made.answered_partitions() == [A, B, C]
        assert made.resume_sequence(A, 0, PATIENCE_ATTEMPTS) == 6, "a repeated answer replaces the first"
        made.add_answer(answer("T", 5, partition=B), 0)
        assert made.resume_sequence(B, 0, 0) is None
        for partition in (A, B, C):
            made.forget_partition(partition)


# Fetching


def test_idle_partitions_are_forgotten_only_if_there_are_many() -> None:
    made = Reassembler("ME", FetchConfig(), unproven_max=4)
    for number, partition in enumerate((A, B, C)):
        made.follow_partition(partition, 0, since=float(number))
    assert made.has_capacity()
    assert made.idle_partitions(IDLE_S - 0.1) == []
    assert made.idle_partitions(IDLE_S) == [A], "half of the room is kept"
    made.follow_partition(D, 0, since=3.0)
    assert not made.has_capacity()
    assert made.idle_partitions(IDLE_S) == [A]
    assert made.idle_partitions(IDLE_S + 9) == [A, B]
    made.add_batch(run(0, 1, A))
    assert made.has_capacity(), "a partition with records is proven"
    assert made.idle_partitions(IDLE_S + 9) == [B]
    made.reset_to(B, 5)
    made.follow_partition(Partition(D.topic, "E"), 0, since=3.0)
    assert made.idle_partitions(IDLE_S + 9) == [C], "a partition whose position was reset is kept"


def test_partitions_that_are_held_or_limited_are_not_fetched() -> None:
    made = Reassembler("ME", FetchConfig())
    for partition in (A, B):
        made.follow_partition(partition, 0)
        made.record_known_end(partition, 5)
    made.hold(A.__eq__)
    assert (made.is_held(A), made.is_held(B)) == (True, False)
    assert [each.partition for each in made.due_fetches(0.0)] == ["B"]
    made.hold(None)
    assert (made.is_held(A), made.is_held(B)) == (False, False)
    assert [each.partition for each in made.due_fetches(0.1)] == ["A"]
    made.hold(A.__eq__)
    made.limit_rate(B.__eq__, 1)
    made.add_batch(run(0, 5, B))
    for partition in (A, B, C):
        if partition == C:
            made.follow_partition(C, 0)
        made.record_known_end(partition, 9)
    assert {each.partition for each in made.due_fetches(0.2)} == {"C", "B"}
    made.add_batch(run(5, 9, B))
    made.record_known_end(B, 20)
    assert "B" not in [each.partition for each in made.due_fetches(0.3)]
    while made.deadline() < 100:
        now = made.deadline()
        made.tick(now)
        assert "A" not in [each.partition for each in made.due_fetches(now)]


# Buffers


@pytest.mark.parametrize(
    ("records_max", "bytes_max", "first"), [(6, 99, 10), (5, 99, 12), (4, 99, 12), (3, 99, 14), (0, 99, 14)]
)
def test_trimming_a_retransmit_buffer_keeps_what_both_limits_allow(
    records_max: int, bytes_max: int, first: int
) -> None:
    for limits in ((records_max, bytes_max), (99, 2 * records_max)):
        buffer = RetransmitBuffer(10)
        for start in (10, 12, 14):
            buffer.push(RecordBatch(HELLO, buffer.end_sequence, contents(start, start + 2)))
        buffer.trim(*limits)
        assert buffer.first_sequence == first


def test_a_batch_buffer_joins_up_to_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "TAKE_RECORDS_MAX", 4)
    buffer = BatchBuffer()
    for first, end in ((0, 2), (2, 4), (4, 5), (5, 15), (15, 16), (17, 18)):
        buffer.add_batch(run(first, end))
    taken = []
    while buffer:
        first_sequences = buffer.first_sequences()
        taken.append(buffer.take_batch())
        assert first_sequences == {HELLO: taken[-1].first_sequence}
    assert taken == [run(0, 4), run(4, 5), run(5, 15), run(15, 16), run(17, 18)]


def test_partitions_take_turns_when_one_has_many_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "TAKE_RECORDS_MAX", 4)
    buffer = BatchBuffer()
    for first in range(0, 9, 3):
        buffer.add_batch(run(first, first + 3, A))
    buffer.add_batch(run(0, 9, B))
    taken = []
    while buffer:
        taken.append(buffer.take_batch())
    assert taken == [run(0, 3, A), run(0, 9, B), run(3, 6, A), run(6, 9, A)]


# Polls, schedules, rates


def test_a_schedule_beyond_its_limit_drops_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polling, "KEYS_MAX", 2)
    schedule = RetrySchedule[str]()
    for now, key in enumerate("aba"):
        schedule.schedule(key, float(now))
    assert schedule.deadline() == 6.0
    schedule.schedule("c", 3.0)
    assert schedule.take_due(100.0) == ["a", "c"]
    assert schedule.deadline() == 130.0
    assert schedule.take_due(129.9) == []
    assert schedule.take_due(130.0) == ["a", "c"]
    assert schedule.deadline() == float("inf")


def test_a_node_is_pending_until_it_connects() -> None:
    pending = PendingPeers(1)
    for address in ("", "A", "B"):
        pending.add_node(address)
    assert pending.addresses == {"A", "B"}
    pending.record_subscription("A")
    pending.record_subscription("B")
    assert pending.addresses == set()
    for address in ("A", "B"):
        pending.add_node(address)
    assert pending.addresses == {"B"}, "one connected node is remembered"
    pending.remove_node("A")
    pending.add_node("A")
    assert pending.addresses == {"A", "B"}


# Questions that last


def test_a_question_that_is_asked_anew_is_soon_repeated_again() -> None:
    question = LastingQuestion("ME", (1.0, 4.0))
    for begin in (0.0, 1000.0):
        question.record_asked(begin)
        waits, now = [], begin
        for _ in range(4):
            waits.append(question.deadline() - now)
            assert not question.take_due(question.deadline() - 0.001)
            now = question.deadline()
            assert question.take_due(now)
        assert all(
            0.75 * wait <= found <= 1.25 * wait
            for found, wait in zip(waits, (1.0, 4.0, LASTING_INTERVAL_S, LASTING_INTERVAL_S), strict=True)
        )
    question.stop()
    assert (question.is_asked, question.deadline()) == (False, math.inf)


# Rates


class Model:
    """A bucket with exact numbers."""

    def __init__(self, per_second: float, burst: float) -> None:
        self.per_second, self.burst = Fraction(per_second), Fraction(burst)
        self.level, self.at = Fraction(burst), Fraction(0)

    def at_time(self, now: float) -> Fraction:
        return min(self.level + self.per_second * (Fraction(now) - self.at), self.burst)

    def take(self, now: float, tokens: float) -> None:
        self.level, self.at = self.at_time(now) - Fraction(tokens), Fraction(now)


@each_seed(30)
def test_a_bucket_gives_what_it_gained_and_no_more(seed: int) -> None:
    draw = Random(seed)
    per_second, burst = draw.choice((0.25, 2.0, 64.0)), draw.choice((0.5, 1.0, 3.0, 100.0))
    bucket, model, now = TokenBucket(per_second, burst, 0.0), Model(per_second, burst), 0.0
    for _ in range(200):
        now += draw.choice((0.0, 0.0, 0.125, 0.5, 4.0))
        tokens = draw.choice((0.0, 0.25, 1.0, 1.0, 3.0, burst))
        if draw.random() < 0.1:
            model.take(now, tokens)
            assert bucket.spend(now, tokens) == model.level, "spending may overdraw"
        elif model.at_time(now) >= tokens:
            model.take(now, tokens)
            assert bucket.try_take(now, tokens)
        else:
            assert not bucket.try_take(now, tokens)
    assert bucket.spend(now + 1e6, 0.0) == burst, "it never holds more than the burst"


def test_failed_attempts_cost_nothing_and_add_no_rounding_errors() -> None:
    bucket = TokenBucket(per_second=1 / 60, burst=1, now=0.0)
    assert bucket.try_take(0.0)
    assert not any(bucket.try_take(float(second)) for second in range(1, 60))
    assert bucket.try_take(60.0)
