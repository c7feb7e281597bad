"""FETCHes waiting to be answered, a chunk at a time.

Who listens to what is sent comes before those of whom it is not known, and takes their place where there is no more
room; of those who listen, each has a share.

A FETCH may ask for four billion records and many nodes may ask at once: a reply is never built, it is a range that
shrinks as its sender finds time. Requestors take turns. A node that asks again for what it is being sent extends or
rewinds its range; only for records elsewhere it gets another one.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import TypeAlias

import attrs

from dafka import wire
from dafka.records import Partition


@attrs.define
class Reply:
    """What is left to send to one requestor of one partition; is it known to listen?"""

    partition: Partition
    requestor: str
    next_sequence: int
    end_sequence: int
    is_listening: bool = attrs.field(default=True, eq=False)


RECORDS_MAX = 1_000_000
"""Records that one FETCH may have; libdafka asks for a tenth of it, ours for less."""

RANGES_MAX = 256
"""Separate ranges that one requestor may have of one partition; a further one takes the place of the last."""


SHARE_MAX = 1024
"""Partitions that one requestor may be sent at the same time; ours ask for a few dozen."""

UNVERIFIED_MAX = 256
"""Partitions and requestors that are answered though it is not known whether anybody listens."""

_Line: TypeAlias = OrderedDict[tuple[str, Partition], list[Reply]]


class ReplyQueue:
    """Holds at most `replies_max` ranges; `offer` says whether there was room."""

    def __init__(self, replies_max: int, records_max: int = RECORDS_MAX) -> None:
        self._replies_max = replies_max
        self._records_max = records_max
        self._listeners: _Line = OrderedDict()
        self._strangers: _Line = OrderedDict()
        self._shares: Counter[str] = Counter()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def ranges(self) -> dict[tuple[str, Partition], list[Reply]]:
        """What is being answered, by requestor and partition; those who listen first."""
        return {**self._listeners, **self._strangers}

    def offer(self, fetch: wire.Fetch, *, is_listening: bool = True) -> bool:
        """Takes a FETCH; False where the queue is full and it was let go."""
        partition = Partition(fetch.subject, fetch.partition)
        key = (fetch.address, partition)
        line = self._listeners if is_listening or key in self._listeners else self._strangers
        if line is self._listeners and key in self._strangers:
            self._drop(self._strangers, key)
        ranges = line.get(key, [])
        end_sequence = fetch.sequence + min(fetch.count, self._records_max)
        if not fetch.count or self._joins(ranges, fetch.sequence, end_sequence):
            return True
        reply = Reply(partition, fetch.address, fetch.sequence, end_sequence, is_listening)
        if len(ranges) == RANGES_MAX:
            ranges[-1] = reply
            return True
        if not self._has_room(line, ranges, fetch.address):
            return False
        self._shares[fetch.address] += key not in line
        line[key] = ranges
        ranges.append(reply)
        self._count += 1
        return True

    def _joins(self, ranges: list[Reply], sequence: int, end_sequence: int) -> bool:
        """Is a range extended or rewound by this? Then it need not be another one."""
        for index, reply in enumerate(ranges):
            if reply.next_sequence <= sequence <= reply.end_sequence:
                reply.end_sequence = max(reply.end_sequence, end_sequence)
                return True
            if sequence < reply.next_sequence <= end_sequence:
                # A new range, so that what is being sent of the old one is not taken for a part of it.
                end = max(reply.end_sequence, end_sequence)
                ranges[index] = attrs.evolve(reply, next_sequence=sequence, end_sequence=end)
                return True
        return False

    def _has_room(self, line: _Line, ranges: list[Reply], requestor: str) -> bool:
        """May one more range be kept? Makes room for who listens, at the cost of a stranger."""
        if not ranges and self._shares[requestor] >= SHARE_MAX:
            return False
        if line is self._strangers and len(line) >= UNVERIFIED_MAX:
            return False
        if self._count < self._replies_max:
            return True
        if line is self._strangers or not self._strangers:
            return False
        self._drop(self._strangers, next(iter(self._strangers)))
        return True

    def next(self) -> Reply | None:
        """The range whose turn it is, or None. Follow up with `advance`."""
        line = self._listeners or self._strangers
        if not line:
            return None
        key, ranges = line.popitem(last=False)
        line[key] = ranges
        return ranges[0]

    def advance(self, reply: Reply, next_sequence: int | None) -> None:
        """Records of this range are on their way up to `next_sequence`; None: there are no more of them here."""
        key = (reply.requestor, reply.partition)
        line = self._listeners if key in self._listeners else self._strangers
        ranges = line.get(key, [])
        if not any(each is reply for each in ranges):
            return
        if next_sequence is not None and next_sequence < reply.end_sequence:
            reply.next_sequence = next_sequence
            return
        ranges[:] = [each for each in ranges if each is not reply]
        self._count -= 1
        if not ranges:
            self._drop(line, key)

    def _drop(self, line: _Line, key: tuple[str, Partition]) -> None:
        self._count -= len(line.pop(key))
        self._shares[key[0]] -= 1
        if not self._shares[key[0]]:
            del self._shares[key[0]]
