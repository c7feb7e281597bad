"""Plans FETCHes: chooses the records to request, and when to repeat a request.

Missing records of a partition are fetched page by page. The next page is fetched when half of the last one has arrived,
so that the sender never idles; no record is fetched twice while its page makes progress. A page without progress is
fetched again after a wait that doubles each time. A limited number of partitions is fetched at once; the others wait in
a queue. A partition whose FETCH no node answers goes to the end of the queue.

Partitions share the limit on records in flight: pages get smaller as more partitions are fetched. While any answers
arrive, a page without progress does not count as unanswered, because its answer may be queued behind them; fetching it
again would only make that queue longer.

A partition that no node answers makes room for a waiting one, so that records that only absent nodes hold do not block
others. A partition that waits because of its rate limit does the same.
"""

from __future__ import annotations

import heapq
import itertools
from collections import OrderedDict
from collections.abc import Callable

import attrs

from dafka.config import FetchConfig
from dafka.protocol.ordering.cursor import Cursor
from dafka.protocol.token_bucket import TokenBucket
from dafka.records import Partition

RENEWALS_MAX = 256
"""The maximum number of FETCHes per second that are repeated because a peer has just connected."""

LIMITED_PAGE_S = 0.25
"""The size of the pages of a rate-limited partition, in seconds at that rate."""


@attrs.define(eq=False)
class _Page:
    """The last fetched records of one partition, and the time without progress."""

    partition: Partition
    progress: int
    asked_first: int
    asked_end: int
    attempts: int
    deadline: float
    ticket: int = 0
    is_held_back: bool = False
    asked_at: float = 0.0


class FetchPlanner:
    """The pages that one node is fetching, and the partitions that wait for their turn."""

    def __init__(self, config: FetchConfig) -> None:
        self._config = config
        self._active: dict[Partition, _Page] = {}
        self._waiting: OrderedDict[Partition, None] = OrderedDict()
        self._unanswered: OrderedDict[Partition, int] = OrderedDict()
        self._deadlines: list[tuple[float, int, _Page]] = []
        self._ticket = itertools.count()
        self._record_bytes: dict[Partition, int] = {}
        self._open: set[Partition] = set()
        self._is_limited: Callable[[Partition], bool] = lambda _partition: False
        self._limit = TokenBucket(0.0, 0.0, 0.0)
        self._limit_bytes_per_s = 0
        self._answered_at = float("-inf")
        self._renewals = 0
        self._renewed_at = float("-inf")

    def limit_rate(self, is_limited: Callable[[Partition], bool], bytes_per_s: int) -> None:
        """Limit the rate at which all partitions for which `is_limited` returns True are fetched together."""
        self._is_limited, self._limit_bytes_per_s = is_limited, bytes_per_s
        self._limit = TokenBucket(bytes_per_s, bytes_per_s * LIMITED_PAGE_S, 0.0)

    def deadline(self) -> float:
        """Return when to call `expire_pages`."""
        return self._deadlines[0][0] if self._deadlines else float("inf")

    def expire_pages(self, now: float) -> list[Partition]:
        """Return the partitions whose page made no progress in time; plan each of them again."""
        expired = []
        while self._deadlines and self._deadlines[0][0] <= now:
            _, ticket, page = heapq.heappop(self._deadlines)
            if self._active.get(page.partition) is not page or page.ticket != ticket:
                continue
            page.deadline = max(page.deadline, self._patient_until(page))
            if page.deadline <= now:
                if page.asked_end > page.progress:
                    page.attempts += 1
                page.asked_end = page.progress
                page.deadline = now + self._wait(page.attempts)
                expired.append(page.partition)
                if self._waiting or self._unanswered:
                    self._give_place(page)
                    continue
            self._watch(page)
        return expired

    def attempts(self, partition: Partition) -> int:
        """Return how many consecutive FETCHes of a partition's page went unanswered."""
        page = self._active.get(partition)
        return page.attempts if page is not None else self._unanswered.get(partition, 0)

    def record_size(self, partition: Partition, content_bytes: int, count: int) -> None:
        """Record the size of a partition's records, which determines the size of its pages."""
        self._record_bytes[partition] = max(content_bytes // count, 1)

    def open_end(self, partition: Partition) -> None:
        """Fetch whole pages of a partition until no record is missing: it has more records than are known."""
        self._open.add(partition)

    def plan_fetch(self, partition: Partition, cursor: Cursor, now: float) -> tuple[int, int] | None:
        """Return the first sequence and the count to fetch now, or None."""
        gap = cursor.first_gap()
        if gap is None:
            self.mark_complete(partition)
            return None
        page = self._active.get(partition) or self._admit(partition, cursor, now)
        if page is None:
            return None
        if cursor.next_sequence > page.progress:
            page.progress = cursor.next_sequence
            page.attempts = 0
            self._delay(page, now)
        first = max(gap[0], page.asked_end)
        size = self._page_size(partition)
        if first >= gap[1] or page.asked_end - cursor.next_sequence > size // 2:
            return None
        count = size if partition in self._open else min(size, gap[1] - first)
        if self._limit_bytes_per_s and self._is_limited(partition):
            count = self._take_limited(page, cursor, count, now)
            if not count:
                return None
        if first == page.progress:
            page.asked_at = now
            self._delay(page, now)
        page.asked_first, page.asked_end = first, first + count
        return first, count

    def allow_refetch(self, partition: Partition, cursor: Cursor, now: float) -> None:
        """Fetch the page of a partition again at the next plan: the last FETCH may not have reached any node.

        A page that is arriving is not fetched again.
        """
        page = self._active.get(partition)
        if page is None or cursor.next_sequence > page.asked_first:
            return
        if now - self._renewed_at >= 1.0:
            self._renewals, self._renewed_at = 0, now
        if self._renewals < RENEWALS_MAX:
            self._renewals += page.asked_end > page.progress
            page.asked_end = page.progress

    def record_answer(self, now: float) -> None:
        """Record that fetched records of any partition arrived, new or not."""
        self._answered_at = now

    def record_dropped(self, partition: Partition, first_sequence: int) -> None:
        """Fetch the records from this sequence on again at the next plan: they arrived and were dropped."""
        page = self._active.get(partition)
        if page is not None:
            page.asked_end = min(page.asked_end, first_sequence)

    def mark_complete(self, partition: Partition) -> None:
        """Record that no records of a partition are missing."""
        self._active.pop(partition, None)
        self._waiting.pop(partition, None)
        self._unanswered.pop(partition, None)
        self._open.discard(partition)

    def forget_partition(self, partition: Partition) -> None:
        """Forget a partition."""
        self.mark_complete(partition)
        self._record_bytes.pop(partition, None)

    def next_waiting(self) -> Partition | None:
        """Return the first partition in the queue if there is room to fetch it, or None."""
        return self._first_waiting() if len(self._active) < self._config.partitions_max else None

    def _first_waiting(self) -> Partition | None:
        return next(iter(self._waiting or self._unanswered), None)

    def unanswered_partitions(self, attempts_min: int) -> list[Partition]:
        """Return the partitions with at least this many consecutive FETCHes that no node has answered."""
        active = [partition for partition, page in self._active.items() if page.attempts >= attempts_min]
        return active + [partition for partition, attempts in self._unanswered.items() if attempts >= attempts_min]

    def active_partitions(self) -> list[Partition]:
        """Return the partitions that are being fetched."""
        return list(self._active)

    def _admit(self, partition: Partition, cursor: Cursor, now: float) -> _Page | None:
        """Return a new page for a partition, or None if it has to wait.

        Because peers can invent names of partitions, there is a reserve for partitions whose records have arrived
        before. It never delays the first partition in the queue, which would otherwise wait until they are answered.
        """
        attempts = self._unanswered.get(partition, 0)
        is_first = self._first_waiting() in {None, partition}
        is_full = len(self._active) >= self._config.partitions_max
        is_reserve_free = len(self._active) < 2 * self._config.partitions_max
        has_reserve = is_full and cursor.is_proven and self._waiting and is_reserve_free and not attempts
        if is_full and is_first and not attempts:
            idle = next((page for page in self._active.values() if page.attempts or page.is_held_back), None)
            if idle is not None:
                self._give_place(idle)
                is_full = False
        if not has_reserve and (is_full or not is_first):
            if not attempts:
                self._waiting[partition] = None
            return None
        self._waiting.pop(partition, None)
        self._unanswered.pop(partition, None)
        first = cursor.next_sequence
        page = self._active[partition] = _Page(partition, first, first, first, attempts, now + self._wait(attempts))
        self._watch(page)
        return page

    def _take_limited(self, page: _Page, cursor: Cursor, count: int, now: float) -> int:
        """Return how many records of a page may be fetched at the limited rate; 0 if it has to wait."""
        if page.asked_end > cursor.next_sequence:
            return 0  # the requested records arrive first
        record_bytes = self._record_bytes.get(page.partition, 1)
        wait_s = -self._limit.spend(now, 0.0) / self._limit_bytes_per_s
        page.is_held_back = wait_s > 0
        if page.is_held_back:
            page.deadline = now + wait_s
            self._watch(page)
            return 0
        found = max(min(count, int(self._limit_bytes_per_s * LIMITED_PAGE_S / record_bytes)), 1)
        self._limit.spend(now, found * record_bytes)
        return found

    def _give_place(self, page: _Page) -> None:
        """Move an unanswered or rate-limited partition to the end of the queue."""
        del self._active[page.partition]
        self._unanswered[page.partition] = page.attempts

    def _patient_until(self, page: _Page) -> float:
        """Return until when to wait for a page: for a limited time, its answer may be queued after others."""
        patience_max = self._config.retry_max_ms / 1000
        return min(self._answered_at + self._wait(page.attempts), page.asked_at + patience_max)

    def _delay(self, page: _Page, now: float) -> None:
        """Restart the wait of a page. Only an earlier deadline needs a new entry in the heap."""
        before, page.deadline = page.deadline, now + self._wait(page.attempts)
        if page.deadline < before:
            self._watch(page)

    def _watch(self, page: _Page) -> None:
        page.ticket = next(self._ticket)
        heapq.heappush(self._deadlines, (page.deadline, page.ticket, page))

    def _wait(self, attempts: int) -> float:
        return min(self._config.retry_ms << min(attempts, 16), self._config.retry_max_ms) / 1000

    def _page_size(self, partition: Partition) -> int:
        """Return an even share of the records in flight, given the size of this partition's records."""
        config = self._config
        record_bytes = self._record_bytes.get(partition)
        if record_bytes is None:
            return config.page_records_first
        share = len(self._active)
        return max(min(config.page_bytes_max // record_bytes, config.page_records_max) // share, 1)
