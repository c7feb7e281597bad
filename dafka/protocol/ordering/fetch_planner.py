"""Which FETCH to send, and when asking again is too soon.

A partition that lacks records is fetched page by page: the next page is asked for when half of the last one has
arrived, so that the sender never idles, and no sequence is asked for twice while its page makes progress. Without
progress the page is asked for again, after a wait that doubles each time. Only so many partitions are fetched at
once; the others wait in line, and one that nobody answers goes to the end of it.

Partitions share what is under way: pages get smaller as more are fetched, and while any answers come in, a page that
waits is not taken for unanswered, because its answer may stand in the same queue behind them. Asking again would only
make that queue longer.
"""

from __future__ import annotations

import heapq
import itertools
from collections import OrderedDict

from dafka.config import FetchConfig
from dafka.protocol.ordering.cursor import Cursor
from dafka.records import Partition

RENEWALS_MAX = 256
"""FETCHes a second that are sent again because somebody has only now connected."""


class _Page:
    """What has been asked for of one partition, and for how long nothing came of it."""

    __slots__ = ("asked_at", "asked_end", "asked_first", "attempts", "deadline", "partition", "progress", "ticket")

    def __init__(self, partition: Partition, progress: int, attempts: int, deadline: float) -> None:
        self.partition = partition
        self.progress = progress
        self.attempts = attempts
        self.deadline = deadline
        self.ticket = 0
        self.asked_at = 0.0
        self.asked_first = progress
        self.asked_end = progress


class FetchPlanner:
    """Plans the FETCHes of one node."""

    def __init__(self, config: FetchConfig) -> None:
        self._config = config
        self._active: dict[Partition, _Page] = {}
        self._waiting: OrderedDict[Partition, int] = OrderedDict()
        self._deadlines: list[tuple[float, int, _Page]] = []
        self._ticket = itertools.count()
        self._record_bytes: dict[Partition, int] = {}
        self._answered_at = float("-inf")
        self._renewals = 0
        self._renewed_at = float("-inf")

    def deadline(self) -> float:
        """When `expire` next has something to do."""
        return self._deadlines[0][0] if self._deadlines else float("inf")

    def expire_pages(self, now: float) -> list[Partition]:
        """The partitions whose page made no progress in time; each is to be planned again."""
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
                if self._waiting:
                    del self._active[page.partition]
                    self._waiting[page.partition] = page.attempts
                    continue
            self._watch(page)
        return expired

    def attempts(self, partition: Partition) -> int:
        """How often in a row this partition's page went unanswered."""
        page = self._active.get(partition)
        return page.attempts if page is not None else self._waiting.get(partition, 0)

    def note_record_size(self, partition: Partition, content_bytes: int, count: int) -> None:
        """Takes note of how large this partition's records are, to choose the size of its pages."""
        self._record_bytes[partition] = max(content_bytes // count, 1)

    def plan_fetch(self, partition: Partition, cursor: Cursor, now: float) -> tuple[int, int] | None:
        """What to FETCH now, as (first sequence, count), given where the cursor stands; or nothing."""
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
        count = min(size, gap[1] - first)
        if first == page.progress:
            page.asked_at = now
            self._delay(page, now)
        page.asked_first, page.asked_end = first, first + count
        return first, count

    def allow_refetch(self, partition: Partition, cursor: Cursor, now: float) -> None:
        """What was asked for may not have been heard: ask again at the next plan.

        A page that is arriving is left alone.
        """
        page = self._active.get(partition)
        if page is None or cursor.next_sequence > page.asked_first:
            return
        if now - self._renewed_at >= 1.0:
            self._renewals, self._renewed_at = 0, now
        if self._renewals < RENEWALS_MAX:
            self._renewals += page.asked_end > page.progress
            page.asked_end = page.progress

    def note_answer(self, now: float) -> None:
        """Records that had been asked for came in, of whichever partition, new or not."""
        self._answered_at = now

    def note_dropped(self, partition: Partition, first_sequence: int) -> None:
        """Records from here on came and were let go: ask for them again at the next plan."""
        page = self._active.get(partition)
        if page is not None:
            page.asked_end = min(page.asked_end, first_sequence)

    def mark_complete(self, partition: Partition) -> None:
        """Nothing is missing of this partition (any more)."""
        self._active.pop(partition, None)
        self._waiting.pop(partition, None)

    def forget_partition(self, partition: Partition) -> None:
        """Nothing of this partition is wanted any more."""
        self.mark_complete(partition)
        self._record_bytes.pop(partition, None)

    def next_waiting(self) -> Partition | None:
        """A partition that waits, and for which there is room now."""
        if not self._waiting or len(self._active) >= self._config.partitions_max:
            return None
        return next(iter(self._waiting))

    def active_partitions(self) -> list[Partition]:
        """The partitions being fetched."""
        return list(self._active)

    def _admit(self, partition: Partition, cursor: Cursor, now: float) -> _Page | None:
        """Where there is no room, a partition whose records have come before finds some: names may be invented.

        It never takes the place of who is next in line, whose turn would not come while it goes unanswered.
        """
        is_first_in_line = not self._waiting or next(iter(self._waiting)) == partition
        is_full = len(self._active) >= self._config.partitions_max
        is_reserve_free = len(self._active) < 2 * self._config.partitions_max
        has_reserve = is_full and cursor.is_proven and self._waiting and is_reserve_free
        if not has_reserve and (is_full or not is_first_in_line):
            self._waiting.setdefault(partition, 0)
            return None
        attempts = self._waiting.pop(partition, 0)
        page = _Page(partition, cursor.next_sequence, attempts, now + self._wait(attempts))
        self._active[partition] = page
        self._watch(page)
        return page

    def _patient_until(self, page: _Page) -> float:
        """Answers to others may be in front of this page's, but not for ever."""
        patience_max = self._config.retry_max_ms / 1000
        return min(self._answered_at + self._wait(page.attempts), page.asked_at + patience_max)

    def _delay(self, page: _Page, now: float) -> None:
        """Counts the page's wait from now on. Only a deadline that comes sooner needs to be watched anew."""
        before, page.deadline = page.deadline, now + self._wait(page.attempts)
        if page.deadline < before:
            self._watch(page)

    def _watch(self, page: _Page) -> None:
        page.ticket = next(self._ticket)
        heapq.heappush(self._deadlines, (page.deadline, page.ticket, page))

    def _wait(self, attempts: int) -> float:
        return min(self._config.retry_ms << min(attempts, 16), self._config.retry_max_ms) / 1000

    def _page_size(self, partition: Partition) -> int:
        """An even share of what may be under way, in records of this partition's size."""
        config = self._config
        record_bytes = self._record_bytes.get(partition)
        if record_bytes is None:
            return config.page_records_first
        share = len(self._active)
        return max(min(config.page_bytes_max // record_bytes, config.page_records_max) // share, 1)
