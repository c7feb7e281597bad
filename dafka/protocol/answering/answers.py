"""The answers to FETCHes, a chunk at a time, requestors taking turns: what to read next, and what to send of it."""

from __future__ import annotations

from typing import Protocol

import attrs

from dafka import wire
from dafka.protocol.answering.replies import Reply, ReplyQueue
from dafka.records import RecordBatch

CHUNK_RECORDS_MAX = 10_000
"""Records sent before others, and what came in meanwhile, get their turn: a few milliseconds' worth."""


class Answerer(Protocol):
    """A machine that answers FETCHes.

    Attributes:
        replies: the FETCHes to answer.
    """

    replies: ReplyQueue

    def readable(self, reply: Reply) -> range:
        """The sequences of this answer that are held, and may be sent."""


UNVERIFIED_CHUNK_RECORDS_MAX = 1000
"""Records sent at a time to who may not listen at all."""


@attrs.frozen
class Chunk:
    """What is to be read for one answer: `count` records, at least one, from `first_sequence` on, or fewer."""

    reply: Reply
    first_sequence: int
    count: int


class Answers:
    """Attributes:
    records_sent: DIRECT-RECORDs so far.
    bytes_sent: their contents.
    """

    def __init__(self, machine: Answerer, chunk_records_max: int = CHUNK_RECORDS_MAX) -> None:
        self.records_sent = 0
        self.bytes_sent = 0
        self._machine = machine
        self._chunk_records_max = chunk_records_max

    def __bool__(self) -> bool:
        """Is there anything to answer?"""
        return len(self._machine.replies) > 0

    def next(self) -> Chunk | None:
        """What to read now, followed up with `read`; None where there is nothing to answer (any more)."""
        while (reply := self._machine.replies.next()) is not None:
            count_max = self._chunk_records_max
            if not reply.is_listening:
                count_max = min(count_max, UNVERIFIED_CHUNK_RECORDS_MAX)
            held = self._machine.readable(reply)[:count_max]
            if held:
                return Chunk(reply, held.start, len(held))
            self._machine.replies.advance(reply, None)
        return None

    def read(self, chunk: Chunk, batch: RecordBatch | None) -> wire.RecordRun | None:
        """What is to be sent of what was read; None where nothing was to be had."""
        self._machine.replies.advance(chunk.reply, None if batch is None else batch.end_sequence)
        if batch is None:
            return None
        self.records_sent += len(batch)
        self.bytes_sent += batch.content_bytes
        return wire.RecordRun(batch, chunk.reply.requestor)
