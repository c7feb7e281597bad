"""Answers FETCHes: selects the records to read and send next, for each requestor (RFC 46, "The FETCH Command").

A FETCH may ask for four billion records, and many nodes may ask at once. An answer is therefore never built as a whole:
it is a range of sequences that shrinks as chunks of it are read and sent. Requestors take turns, a chunk each.
Requestors that subscribe to their DIRECT-RECORDs are served before unverified ones, and replace them when there is no
room for both. A repeated FETCH for records that are being sent extends or rewinds their range. Other records of the
same partition get a separate range.

The owner of a responder does the I/O: it calls `next_read`, reads those records, and publishes what `complete_read`
returns.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import TypeAlias

import attrs

from dafka import wire
from dafka.records import Partition, RecordBatch

CHUNK_RECORDS_MAX = 10_000
"""Records sent before other requestors and incoming messages get their turn: a few milliseconds of work."""

FETCH_RECORDS_MAX = 1_000_000
"""The maximum number of records sent for one FETCH. libdafka asks for a tenth of it, this project's nodes for less."""

RANGES_MAX = 256
"""Separate ranges that one requestor can have in one partition; another one replaces the last."""

REQUESTOR_PARTITIONS_MAX = 1024
"""Partitions that one requestor can receive at the same time; this project's nodes ask for a few dozen."""

UNVERIFIED_MAX = 256
"""Pairs of an unverified requestor and a partition that are answered at the same time."""

UNVERIFIED_CHUNK_RECORDS_MAX = 1000
"""Records sent at a time to an unverified requestor."""

UNVERIFIED_DELAY_S = 0.02
"""Seconds to wait before each chunk for an unverified requestor."""


@attrs.define(eq=False)
class _Range:
    """The records that are still to be sent to one requestor."""

    partition: Partition
    requestor: str
    next_sequence: int
    end_sequence: int
    is_verified: bool


_Queue: TypeAlias = OrderedDict[tuple[str, Partition], list[_Range]]


@attrs.frozen
class ReadRequest:
    """Records to read for one chunk of an answer: at most `count`, at least one, after a delay."""

    partition: Partition
    first_sequence: int
    count: int
    requestor: str
    delay_s: float = attrs.field(default=0.0, eq=False)
    _range: _Range | None = attrs.field(default=None, eq=False, repr=False, alias="range")


class FetchResponder:
    """The FETCHes that one node is answering, in fair turns.

    `held` returns the range of sequences of a partition that can be sent now. At most `ranges_max` ranges of all
    requestors together are answered. `records_sent` and `bytes_sent` count the DIRECT-RECORDs sent so far.
    """

    def __init__(
        self, held: Callable[[Partition], range], ranges_max: int, *, fetch_records_max: int = FETCH_RECORDS_MAX
    ) -> None:
        self.records_sent = 0
        self.bytes_sent = 0
        self._held = held
        self._ranges_max = ranges_max
        self._fetch_records_max = fetch_records_max
        self._verified: _Queue = OrderedDict()
        self._unverified: _Queue = OrderedDict()
        self._partitions_of: Counter[str] = Counter()
        self._count = 0

    def __len__(self) -> int:
        """Return how many ranges are still to be sent."""
        return self._count

    def pending_ranges(self) -> dict[tuple[str, Partition], list[range]]:
        """Return the sequences still to be sent, by requestor and partition; verified requestors come first."""
        queues = {**self._verified, **self._unverified}
        return {key: [range(each.next_sequence, each.end_sequence) for each in queues[key]] for key in queues}

    def add_fetch(self, fetch: wire.Fetch, *, is_verified: bool = True) -> bool:
        """Queue the answer to a FETCH. Return False if the queue is full, so that the FETCH was dropped.

        A verified requestor is known to subscribe to its DIRECT-RECORDs.
        """
        partition = Partition(fetch.subject, fetch.partition)
        key = (fetch.address, partition)
        queue = self._verified if is_verified or key in self._verified else self._unverified
        if queue is self._verified and key in self._unverified:
            self._drop_key(self._unverified, key)
        ranges = queue.get(key, [])
        end_sequence = fetch.sequence + min(fetch.count, self._fetch_records_max)
        if not fetch.count or self._extend_range(ranges, fetch.sequence, end_sequence):
            return True
        new = _Range(partition, fetch.address, fetch.sequence, end_sequence, is_verified)
        if len(ranges) == RANGES_MAX:
            ranges[-1] = new
            return True
        if not self._has_capacity(queue, ranges, fetch.address):
            return False
        self._partitions_of[fetch.address] += key not in queue
        queue[key] = ranges
        ranges.append(new)
        self._count += 1
        return True

    def next_read(
        self, chunk_records_max: int = CHUNK_RECORDS_MAX, is_wanted: Callable[[ReadRequest], bool] | None = None
    ) -> ReadRequest | None:
        """Return what to read now; None if no read can begin. Call `complete_read` with the result.

        Requestors are skipped if `is_wanted` returns that their read cannot begin now.
        """
        for queue in (self._verified, self._unverified):
            passed_over = 0
            while passed_over < len(queue):
                key = next(iter(queue))
                queue.move_to_end(key)
                each = queue[key][0]
                held = self._held(each.partition)
                first = max(each.next_sequence, held.start)
                count = min(min(each.end_sequence, held.stop) - first, chunk_records_max)
                if count <= 0:
                    self._advance(each, None)
                    continue
                delay_s = 0.0
                if not each.is_verified:
                    count, delay_s = min(count, UNVERIFIED_CHUNK_RECORDS_MAX), UNVERIFIED_DELAY_S
                request = ReadRequest(each.partition, first, count, each.requestor, delay_s, range=each)
                if is_wanted is None or is_wanted(request):
                    return request
                passed_over += 1
        return None

    def complete_read(self, request: ReadRequest, batch: RecordBatch | None) -> wire.RecordRun | None:
        """Return the records read, addressed to the requestor; None if none were read.

        The records may begin later or be fewer than requested.
        """
        if request._range is not None:
            self._advance(request._range, None if batch is None else batch.end_sequence)
        if batch is None:
            return None
        self.records_sent += len(batch)
        self.bytes_sent += batch.content_bytes
        return wire.RecordRun(batch, request.requestor)

    def _extend_range(self, ranges: list[_Range], sequence: int, end_sequence: int) -> bool:
        """Return whether a range could be extended or rewound instead of adding another."""
        for index, each in enumerate(ranges):
            if each.next_sequence <= sequence <= each.end_sequence:
                each.end_sequence = max(each.end_sequence, end_sequence)
                return True
            if sequence < each.next_sequence <= end_sequence:
                # A new object, so that a chunk of the old range that is being read does not advance this one.
                end = max(each.end_sequence, end_sequence)
                ranges[index] = attrs.evolve(each, next_sequence=sequence, end_sequence=end)
                return True
        return False

    def _has_capacity(self, queue: _Queue, ranges: list[_Range], requestor: str) -> bool:
        """Return whether one more range fits; an unverified requestor is dropped in favor of a verified one."""
        if not ranges and self._partitions_of[requestor] >= REQUESTOR_PARTITIONS_MAX:
            return False
        if queue is self._unverified and len(queue) >= UNVERIFIED_MAX:
            return False
        if self._count < self._ranges_max:
            return True
        if queue is self._unverified or not self._unverified:
            return False
        self._drop_key(self._unverified, next(iter(self._unverified)))
        return True

    def _advance(self, each: _Range, next_sequence: int | None) -> None:
        """Move a range forward to `next_sequence`, or end it if that is None or its end. Ignore a replaced range."""
        key = (each.requestor, each.partition)
        queue = self._verified if key in self._verified else self._unverified
        ranges = queue.get(key, [])
        if each not in ranges:
            return
        if next_sequence is not None and next_sequence < each.end_sequence:
            each.next_sequence = next_sequence
            return
        ranges.remove(each)
        self._count -= 1
        if not ranges:
            self._drop_key(queue, key)

    def _drop_key(self, queue: _Queue, key: tuple[str, Partition]) -> None:
        self._count -= len(queue.pop(key))
        self._partitions_of[key[0]] -= 1
        if not self._partitions_of[key[0]]:
            del self._partitions_of[key[0]]
