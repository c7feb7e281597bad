"""Encodes the records of queues as JSON."""

from __future__ import annotations

from dafka.broker.connections.memory import MemoryPool
from dafka.http.logs.records import JsonRecord
from dafka.http.queues.queue_access import LockedRecords
from dafka.http.websocket.shared_reads import RecordLine, SharedRead


async def encode_locked(locked: LockedRecords, lock_ms: int, memory: MemoryPool, source: str) -> list[RecordLine]:
    """Return each locked record as a JSON object. Raises `WebError` if a batch cannot be unpacked.

    The memory for unpacking is taken for the source: a user, or the address of a client.
    """
    counts, until_ms = locked.delivery_counts(), locked.locked_at_ms + lock_ms
    lines = await SharedRead(locked.log, locked.read, memory).lines(source)
    return [
        RecordLine(line.offset, _add_lock(line.document, counts[line.offset], until_ms))
        for line in lines
        if line.offset in counts
    ]


def _add_lock(document: bytes | JsonRecord, count: int, until_ms: int) -> bytes | JsonRecord:
    if isinstance(document, bytes):
        return b'{"delivery_count":%d,"locked_until":%d,%b' % (count, until_ms, document[1:])
    return {"delivery_count": count, "locked_until": until_ms, **document}
