"""Encodes the records of queues as JSON."""

from __future__ import annotations

from collections.abc import Iterator

from dafka.broker.connections.memory import MemoryPool
from dafka.http.logs.records import record_objects
from dafka.http.logs.unpacking import unpack
from dafka.http.queues.queue_access import LockedRecords
from dafka.http.server.documents import encode_document
from dafka.http.websocket.shared_reads import LARGE_BYTES, UNPACKING_FACTOR, RecordLine


async def encode_locked(locked: LockedRecords, lock_ms: int, memory: MemoryPool, source: str) -> list[RecordLine]:
    """Return each locked record as a JSON object. Raises `WebError` if a batch cannot be unpacked.

    The memory for unpacking is taken for the source: a user, or the address of a client.
    """
    return await unpack(
        locked.read,
        locked.log,
        lambda: list(_encode(locked, lock_ms)),
        memory=memory,
        source=source,
        copies=UNPACKING_FACTOR,
    )


def _encode(locked: LockedRecords, lock_ms: int) -> Iterator[RecordLine]:
    """Yield the locked records, without encoding the others of their batches."""
    until_ms = locked.locked_at_ms + lock_ms
    for base_offset, columns in locked.read.columns():
        for first, end, count in locked.ranges:
            begins, ends = max(first - base_offset, 0), min(end - base_offset, len(columns))
            if begins >= ends:
                continue
            for each in record_objects(columns[begins:ends], base_offset + begins):
                document = {"delivery_count": count, "locked_until": until_ms, "log": locked.log, **each}
                is_large = len(each.get("value") or each.get("value_base64") or "") > LARGE_BYTES
                yield RecordLine(each["offset"], document if is_large else encode_document(document))
