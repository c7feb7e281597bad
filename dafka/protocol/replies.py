"""FETCHes waiting to be answered, a chunk at a time.

A FETCH may ask for four billion records and many nodes may ask at once: a reply is never built, it is a range that
shrinks as its sender finds time. Requestors take turns. A node that asks again for what it is being sent extends or
rewinds its range, it does not get a second one.
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


class ReplyQueue:
    """Holds at most `replies_max` ranges; `offer` says whether there was room."""

    def __init__(self, replies_max: int) -> None:
        self._replies_max = replies_max
        self._replies: OrderedDict[tuple[str, Partition], Reply] = OrderedDict()

    def __len__(self) -> int:
        return len(self._replies)

    def offer(self, fetch: wire.Fetch) -> bool:
        """Takes a FETCH; False where the queue is full and it was let go."""
        partition = Partition(fetch.subject, fetch.partition)
        if fetch.count == 0:
            return True
        end_sequence = fetch.sequence + fetch.count
        key = (fetch.address, partition)
        reply = self._replies.get(key)
        if reply is not None and reply.next_sequence <= fetch.sequence <= reply.end_sequence:
            reply.end_sequence = max(reply.end_sequence, end_sequence)
            return True
        if reply is None and len(self._replies) >= self._replies_max:
            return False
        self._replies[key] = Reply(partition, fetch.address, fetch.sequence, end_sequence)
        return True

    def next(self) -> Reply | None:
        """The range whose turn it is, or None. Follow up with `sent`."""
        if not self._replies:
            return None
        key, reply = self._replies.popitem(last=False)
        self._replies[key] = reply
        return reply

    def sent(self, reply: Reply, next_sequence: int | None) -> None:
        """Records of this range were sent up to `next_sequence`; None: there are no more of them here."""
        key = (reply.requestor, reply.partition)
        if self._replies.get(key) is not reply:
            return
        if next_sequence is None or next_sequence >= reply.end_sequence:
            del self._replies[key]
        else:
            reply.next_sequence = next_sequence
