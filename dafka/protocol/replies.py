"""FETCHes waiting to be answered, a chunk at a time.

A FETCH may ask for four billion records and many nodes may ask at once: a reply is never built, it is a range that
shrinks as its sender finds time. Requestors take turns. A node that asks again for what it is being sent extends or
rewinds its range; only for records elsewhere it gets another one.
"""

from __future__ import annotations

from collections import OrderedDict

import attrs

from dafka import wire
from dafka.records import Partition


@attrs.define
class Reply:
    """What is left to send to one requestor of one partition."""

    partition: Partition
    requestor: str
    next_sequence: int
    end_sequence: int


RANGES_MAX = 256
"""Separate ranges that one requestor may have of one partition; a further one takes the place of the last."""


class ReplyQueue:
    """Holds at most `replies_max` ranges; `offer` says whether there was room."""

    def __init__(self, replies_max: int) -> None:
        self._replies_max = replies_max
        self._replies: OrderedDict[tuple[str, Partition], list[Reply]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def offer(self, fetch: wire.Fetch) -> bool:
        """Takes a FETCH; False where the queue is full and it was let go."""
        if fetch.count == 0:
            return True
        partition = Partition(fetch.subject, fetch.partition)
        ranges = self._replies.get((fetch.address, partition), [])
        end_sequence = fetch.sequence + fetch.count
        for index, reply in enumerate(ranges):
            if reply.next_sequence <= fetch.sequence <= reply.end_sequence:
                reply.end_sequence = max(reply.end_sequence, end_sequence)
                return True
            if fetch.sequence < reply.next_sequence <= end_sequence:
                # A new range, so that what is being sent of the old one is not taken for a part of it.
                end = max(reply.end_sequence, end_sequence)
                ranges[index] = Reply(partition, fetch.address, fetch.sequence, end)
                return True
        if len(ranges) == RANGES_MAX:
            ranges[-1] = Reply(partition, fetch.address, fetch.sequence, end_sequence)
            return True
        if self._count >= self._replies_max:
            return False
        ranges.append(Reply(partition, fetch.address, fetch.sequence, end_sequence))
        self._replies[fetch.address, partition] = ranges
        self._count += 1
        return True

    def next(self) -> Reply | None:
        """The range whose turn it is, or None. Follow up with `advance`."""
        if not self._replies:
            return None
        key, ranges = self._replies.popitem(last=False)
        self._replies[key] = ranges
        return ranges[0]

    def advance(self, reply: Reply, next_sequence: int | None) -> None:
        """Records of this range are on their way up to `next_sequence`; None: there are no more of them here."""
        key = (reply.requestor, reply.partition)
        ranges = self._replies.get(key, [])
        if not any(each is reply for each in ranges):
            return
        if next_sequence is not None and next_sequence < reply.end_sequence:
            reply.next_sequence = next_sequence
            return
        ranges[:] = [each for each in ranges if each is not reply]
        self._count -= 1
        if not ranges:
            del self._replies[key]
