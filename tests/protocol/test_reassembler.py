from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

import pytest

from dafka import wire
from dafka.config import Config, FetchConfig
from dafka.protocol import FetchUnanswered
from dafka.protocol.ordering import fetch_planner
from dafka.protocol.ordering.cursor import Cursor
from dafka.protocol.ordering.fetch_planner import FetchPlanner
from dafka.protocol.ordering.reassembler import MissingRecords, Reassembler
from dafka.records import Partition, RecordBatch
from dafka.wire import Command
from tests.protocol.helpers import HELLO, run, sequences, subscription
from tests.protocol.scripts import Player, play, scripts_of

ME = "CONSUMER"


def make_reassembler(end: int = 0, **settings: int) -> Reassembler:
    reassembler = Reassembler(ME, FetchConfig(**settings))
    reassembler.follow_partition(HELLO, 0)
    reassembler.record_known_end(HELLO, end)
    return reassembler


class Responder:
    """A node that holds `end` records, and answers FETCHes in chunks 10 ms later."""

    def __init__(self, reassembler: Reassembler, end: int) -> None:
        self.now = 0.0
        self.asked: list[tuple[int, int]] = []
        self.received: list[RecordBatch] = []
        self.unanswered: list[FetchUnanswered] = []
        self._reassembler = reassembler
        self._end = end
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
                heapq.heappush(self._arriving, (self.now + 0.01 + index / 1000, first, min(first + 2000, end)))


def test_catching_up_takes_few_fetches_erratum_17() -> None:
    end = 100_000
    responder = Responder(make_reassembler(end), end)
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


@pytest.mark.parametrize("known", [4, 6])
def test_a_record_that_may_not_exist_is_never_missing_and_is_given_up_when_no_node_sends_it(known: int) -> None:
    reassembler = make_reassembler()
    reassembler.add_batch(run(0, 4))
    reassembler.expect_more(HELLO)
    reassembler.record_known_end(HELLO, known)
    missing = MissingRecords(reassembler)
    sent, reported = [], []
    for second in range(100):
        reported += reassembler.tick(float(second))
        sent.append(bool(reassembler.due_fetches(float(second))))
        assert missing.count() in {0, known - 4}
    assert sent[0]
    assert any(sent[50:]) == bool(reported) == bool(missing.count()) == (known > 4)
    reassembler.expect_more(HELLO)
    assert bool(reassembler.due_fetches(100.0)) == (known == 4), "it is asked for again"


# Pages


class Planner(Player, kinds=("planner",)):
    """A planner that repeats FETCHes after 0.5, 1, 2, 4 and then every 5 seconds, and a cursor for each partition."""

    config = Config().with_fetch(page_records_first=10, page_records_max=100, page_bytes_max=1000)

    def make(self, kind: str, config: Config, named: dict[str, Any], ranges: dict[Partition, range]) -> FetchPlanner:
        self.cursors = {partition: Cursor(each.start) for partition, each in ranges.items()}
        for partition, each in ranges.items():
            self.cursors[partition].record_known_end(each.stop)
        return FetchPlanner(config.fetch)

    def plan(self, partition: Partition) -> str | None:
        page = self.machine.plan_fetch(partition, self.cursors[partition], self.now)
        return None if page is None else f"FETCH {page[0]}:{sum(page)}"

    def arrive(self, batch: RecordBatch) -> None:
        self.cursors[batch.partition].add_batch(batch, 2**20)

    def known_end(self, partition: Partition, end: int) -> None:
        self.cursors[partition].record_known_end(end)

    def limit(self, partition: Partition, bytes_per_s: int) -> None:
        self.machine.limit_rate(partition.__eq__, bytes_per_s)

    def refetch(self, partition: Partition) -> None:
        self.machine.allow_refetch(partition, self.cursors[partition], self.now)


SCRIPTS = """
# A page without a known end is whole
planner A=8:9
open_end A
plan A => = FETCH 8:18
arrive A 8:12
0.1 plan A
known_end A 14
plan A => = FETCH 12:14
# Partitions that nobody answers give their places to others
planner partitions_max=2 A=0:20 B=0:20 C=0:5
arrive A 0:1
arrive B 0:1
plan A => = FETCH 1:11
plan B => = FETCH 1:11
10 expire_pages => = A B
plan A => = FETCH 1:11
plan B => = FETCH 1:11
10.1 plan C => = FETCH 0:5
mark_complete C
next_waiting => = A
# The rate of some partitions is limited
planner A=0:1000 B=0:1000
limit A 1000
record_size A 10 1
plan A => = FETCH 0:25
plan A
arrive A 0:25
plan A => = FETCH 25:50
arrive A 25:50
0.1 plan A
0.6 expire_pages => = A
attempts A => = 0
plan A => = FETCH 50:75
record_size B 10 1
plan B => = FETCH 0:50
# A partition that is held back gives its place to another one
planner partitions_max=1 A=0:1000 B=0:5
limit A 100
record_size A 10 1
plan A => = FETCH 0:2
arrive A 0:2
plan A => = FETCH 2:4
arrive A 2:4
plan A
plan B => = FETCH 0:5
mark_complete B
next_waiting => = A
1 plan A => = FETCH 4:6
# Later pages have as many records as fit
planner A=0:1000 B=0:1000 C=0:1000 D=0:1000
record_size A 7 7
plan A => = FETCH 0:100
forget_partition A
record_size B 140 7
plan B => = FETCH 0:50
forget_partition B
record_size C 2100 7
plan C => = FETCH 0:3
forget_partition C
record_size D 35000 7
plan D => = FETCH 0:1
# Progress resets attempts and moves the deadline
planner A=0:1000
plan A => = FETCH 0:10
0.5 expire_pages => = A
plan A => = FETCH 0:10
1.5 expire_pages => = A
plan A => = FETCH 0:10
attempts A => = 2
arrive A 0:2
2 plan A
attempts A => = 0
deadline => = 2.5
arrive A 2:3
2.25 plan A
2.7 expire_pages
2.75 expire_pages => = A
plan A => = FETCH 3:13
3.7 expire_pages
3.75 expire_pages => = A
# A page that was not fetched again does not count as unanswered
planner A=0:1000
plan A => = FETCH 0:10
0.5 expire_pages => = A
1.5 expire_pages => = A
2.5 expire_pages => = A
attempts A => = 1
3 plan A => = FETCH 0:10
3.4 expire_pages
4 expire_pages => = A
# An unanswered partition goes to the end of the queue
planner partitions_max=1 A=0:5 B=0:5 C=0:5
plan A => = FETCH 0:5
plan B
plan C
0.5 expire_pages => = A
plan A
next_waiting => = B
plan B => = FETCH 0:5
active_partitions => = B
1 expire_pages => = B
plan B
next_waiting => = C
plan C => = FETCH 0:5
1.5 expire_pages => = C
plan C
plan A => = FETCH 0:5
active_partitions => = A
attempts A => = 1
# A partition with records does not take the turn of the first in the queue
planner partitions_max=1 A=0:5 B=0:5
arrive A 0:2
plan A => = FETCH 2:5
plan B
0.5 expire_pages => = A
plan A
next_waiting => = B
# A partition with records is fetched beside one without
planner partitions_max=1 A=0:5 B=0:5 C=0:5
arrive A 0:2
plan B => = FETCH 0:5
plan C
plan A => = FETCH 2:5
active_partitions => = B A
# An arriving page is not fetched again for a new peer
planner A=0:1000
plan A => = FETCH 0:10
arrive A 0:1
refetch A
0.1 plan A
# A page is not repeated while other answers arrive, for a limited time
planner retry_ms=500 retry_max_ms=2000 A=0:100
plan A => = FETCH 0:10
0.4 record_answer
0.5 expire_pages
deadline => = 0.9
0.8 record_answer
expire_pages
1.2 record_answer
expire_pages
1.6 record_answer
expire_pages
1.9 record_answer
1.99 expire_pages
2 expire_pages => = A
attempts A => = 1
# Pages of all partitions share the records and bytes in flight
planner page_records_max=60 A=0:500 B=0:500 C=0:500
record_size A 20 2
record_size B 20 2
plan A => = FETCH 0:60
plan B => = FETCH 0:30
record_size C 50 1
plan C => = FETCH 0:6
forget_partition C
forget_partition A
plan A => = FETCH 0:10
"""


@scripts_of(SCRIPTS)
def test_pages(script: Sequence[str]) -> None:
    play(script)


def test_repeated_fetches_for_new_peers_are_limited_each_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_planner, "RENEWALS_MAX", 2)
    planner = Planner("planner A=0:5 B=0:5 C=0:5")

    def refetched(now: float) -> str:
        planner.now = now
        for partition in planner.cursors:
            planner.refetch(partition)
        return "".join(partition.address for partition in planner.cursors if planner.plan(partition))

    assert [refetched(now) for now in (0.0, 0.1, 1.0, 1.1, 2.0, 2.1)] == ["ABC", "AB", "", "AB", "", "AB"]
