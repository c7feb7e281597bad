from __future__ import annotations

import heapq
from collections.abc import Callable

import pytest

from dafka import wire
from dafka.config import FetchConfig
from dafka.protocol import FetchUnanswered
from dafka.protocol.ordering.reassembler import Reassembler
from dafka.records import Partition, RecordBatch
from dafka.wire import Command
from tests.protocol.helpers import HELLO, run, sequences, subscription

ME = "CONSUMER"


def make_reassembler(end: int = 0, **settings: int) -> Reassembler:
    reassembler = Reassembler(ME, FetchConfig(**settings))
    reassembler.follow_partition(HELLO, 0)
    reassembler.record_known_end(HELLO, end)
    return reassembler


class Responder:
    """A node that holds `end` records, and answers FETCHes in chunks 10 ms later, unless `is_lost` drops one."""

    def __init__(self, reassembler: Reassembler, end: int, is_lost: Callable[[float, int], bool]) -> None:
        self.now = 0.0
        self.asked: list[tuple[int, int]] = []
        self.received: list[RecordBatch] = []
        self.unanswered: list[FetchUnanswered] = []
        self._reassembler = reassembler
        self._end = end
        self._is_lost = is_lost
        self._arriving: list[tuple[float, int, int]] = []

    def serve(self, until: float) -> None:
        reassembler = self._reassembler
        while reassembler.cursors[HELLO].next_sequence < self._end:
            self._answer(reassembler.due_fetches(self.now))
            self.now = min(reassembler.deadline(), self._arriving[0][0] if self._arriving else float("inf"))
            assert self.now <= until, "stalled"
            while self._arriving and self._arriving[0][0] <= self.now:
                _, first, end = heapq.heappop(self._arriving)
                self.received += reassembler.add_batch(run(first, end))
            self.unanswered += reassembler.tick(self.now)

    def _answer(self, fetches: list[wire.Fetch]) -> None:
        for fetch in fetches:
            self.asked.append((fetch.sequence, fetch.count))
            end = min(fetch.sequence + fetch.count, self._end)
            for index, first in enumerate(range(fetch.sequence, end, 2000)):
                if not self._is_lost(self.now, first):
                    heapq.heappush(self._arriving, (self.now + 0.01 + index / 1000, first, min(first + 2000, end)))


def test_catching_up_takes_few_fetches_erratum_17() -> None:
    end = 100_000
    responder = Responder(make_reassembler(end), end, lambda _now, _first: False)
    responder.serve(until=10.0)
    assert sequences(responder.received) == list(range(end))
    assert len(responder.asked) <= 9
    assert responder.asked[0] == (0, 1000)
    position = 0
    for first, count in responder.asked:
        assert first == position
        position = first + count
    assert position == end
    assert responder.unanswered == []


@pytest.mark.parametrize("silence", [0.3, 4.0, 60.0])
def test_a_page_that_stalls_is_never_lost(silence: float) -> None:
    end = 20_000
    reassembler = make_reassembler(end, page_records_max=3000)
    responder = Responder(reassembler, end, lambda now, _first: 0.005 < now < silence)
    responder.serve(until=silence + 5.5)
    assert sequences(responder.received) == list(range(end))
    assert len(responder.asked) <= end / 1500 + 5 + silence / 2
    assert len(responder.unanswered) == (1 if silence >= 4.0 else 0)


def test_every_partition_gets_its_turn_when_no_node_answers() -> None:
    partitions = [Partition("hello", f"P{index}") for index in range(7)]
    reassembler = Reassembler(ME, FetchConfig(partitions_max=2))
    for partition in partitions:
        reassembler.follow_partition(partition, 0)
        reassembler.record_known_end(partition, 3)
    asked = [fetch.partition for fetch in reassembler.due_fetches(0.0)]
    assert len(asked) == 2
    for _ in range(4):
        now = reassembler.deadline()
        reassembler.tick(now)
        asked += [fetch.partition for fetch in reassembler.due_fetches(now)]
    assert set(asked) == {partition.address for partition in partitions}


@pytest.mark.parametrize(("topic", "count"), [("", 1), ("PRODUCER", 1), ("OTHER", 0)])
def test_a_new_peer_that_answers_fetches_is_asked_at_once(topic: str, count: int) -> None:
    reassembler = make_reassembler(5)
    reassembler.due_fetches(0.0)
    (subscribed,) = subscription(Command.FETCH, topic)
    reassembler.refetch_unanswered(subscribed, 0.0)
    assert len(reassembler.due_fetches(0.1)) == count


def test_dropped_duplicates_are_not_fetched() -> None:
    reassembler = make_reassembler(100)
    reassembler.due_fetches(0.0)
    reassembler.add_batch(run(0, 40))
    reassembler.drop_batch(run(0, 40))
    assert reassembler.due_fetches(0.1) == []


def test_a_partition_that_is_known_to_have_more_is_fetched_by_whole_pages() -> None:
    reassembler = make_reassembler(page_records_first=10)
    reassembler.expect_more(HELLO)
    assert [(fetch.sequence, fetch.count) for fetch in reassembler.due_fetches(0.0)] == [(0, 10)]
    reassembler.expect_more(HELLO)
    reassembler.add_batch(run(0, 4))
    assert reassembler.due_fetches(0.1) == [], "the rest may not exist"
    assert reassembler.cursors[HELLO].known_end == 4
