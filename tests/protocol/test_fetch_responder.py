from __future__ import annotations

import pytest

from dafka import wire
from dafka.protocol import Reply, ReplyQueue
from dafka.protocol.answering.replies import RANGES_MAX
from dafka.records import Partition

HELLO = Partition("hello", "PRODUCER")


def fetch(sequence: int, count: int, requestor: str = "A") -> wire.Fetch:
    return wire.Fetch(HELLO.address, requestor, HELLO.topic, sequence, count)


def take(queue: ReplyQueue) -> Reply:
    reply = queue.next()
    assert reply is not None
    return reply


def test_an_empty_queue_has_nothing_to_send() -> None:
    assert ReplyQueue(10).next() is None


def test_a_range_shrinks_until_it_is_sent() -> None:
    queue = ReplyQueue(10)
    assert queue.offer(fetch(5, 10))
    assert take(queue) == Reply(HELLO, "A", 5, 15)
    queue.advance(take(queue), 9)
    assert take(queue) == Reply(HELLO, "A", 9, 15)
    queue.advance(take(queue), 15)
    assert len(queue) == 0


def test_a_range_ends_where_there_are_no_more_records() -> None:
    queue = ReplyQueue(10)
    queue.offer(fetch(5, 10))
    queue.advance(take(queue), None)
    assert queue.next() is None


@pytest.mark.parametrize(("sequence", "count", "end"), [(10, 20, 30), (7, 3, 10), (4, 3, 10)])
def test_asking_on_extends_the_range(sequence: int, count: int, end: int) -> None:
    queue = ReplyQueue(10)
    queue.offer(fetch(0, 10))
    queue.advance(take(queue), 4)
    queue.offer(fetch(sequence, count))
    assert take(queue) == Reply(HELLO, "A", 4, end)
    assert len(queue) == 1


def test_asking_again_for_what_was_sent_rewinds_the_range() -> None:
    queue = ReplyQueue(10)
    queue.offer(fetch(0, 10))
    queue.advance(take(queue), 4)
    queue.offer(fetch(2, 5))
    assert take(queue) == Reply(HELLO, "A", 2, 10)
    assert len(queue) == 1


def test_asking_for_records_elsewhere_is_a_range_of_its_own() -> None:
    queue = ReplyQueue(10)
    for first in (0, 50, 20):
        queue.offer(fetch(first, 5))
    assert len(queue) == 3
    sent = []
    while (reply := queue.next()) is not None:
        sent.append((reply.next_sequence, reply.end_sequence))
        queue.advance(reply, reply.end_sequence)
    assert sent == [(0, 5), (50, 55), (20, 25)]
    assert len(queue) == 0


def test_ranges_of_one_requestor_are_bounded() -> None:
    queue = ReplyQueue(1000)
    for first in range(0, 10 * (RANGES_MAX + 5), 10):
        assert queue.offer(fetch(first, 5))
    assert len(queue) == RANGES_MAX


def test_what_was_sent_of_a_range_that_moved_meanwhile_does_not_count() -> None:
    queue = ReplyQueue(10)
    queue.offer(fetch(0, 10))
    being_sent = take(queue)
    queue.advance(being_sent, 4)
    queue.offer(fetch(2, 5))
    queue.advance(being_sent, 8)
    queue.advance(being_sent, None)
    assert take(queue) == Reply(HELLO, "A", 2, 10)


def test_four_billion_records_are_one_range_of_as_many_as_one_fetch_may_have() -> None:
    queue = ReplyQueue(10, records_max=1000)
    assert queue.offer(fetch(2**64 - 1, 2**32 - 1))
    assert take(queue).end_sequence == 2**64 + 999
    assert len(queue) == 1


def test_asking_for_nothing_is_answered_with_nothing() -> None:
    queue = ReplyQueue(1)
    assert queue.offer(fetch(0, 0))
    assert len(queue) == 0


def test_requestors_take_turns() -> None:
    queue = ReplyQueue(10)
    for requestor in "ABC":
        queue.offer(fetch(0, 10, requestor))
    turns = ""
    for sent in (3, 3, 3, 6, 6, 6):
        reply = take(queue)
        turns += reply.requestor
        queue.advance(reply, sent)
    assert turns == "ABCABC"


def test_a_full_queue_lets_newcomers_go_but_extends_what_it_has() -> None:
    queue = ReplyQueue(2)
    assert queue.offer(fetch(0, 10, "A"))
    assert queue.offer(fetch(0, 10, "B"))
    assert not queue.offer(fetch(0, 10, "C"))
    assert queue.offer(fetch(10, 10, "A"))
    queue.advance(take(queue), 20)
    assert queue.offer(fetch(0, 10, "C"))


def test_one_requestor_may_ask_for_two_partitions() -> None:
    queue = ReplyQueue(10)
    queue.offer(fetch(0, 10))
    queue.offer(wire.Fetch("OTHER", "A", "hello", 3, 4))
    assert {take(queue).partition for _ in range(2)} == {HELLO, Partition("hello", "OTHER")}
