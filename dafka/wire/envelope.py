"""The envelope: a record with a key, headers or a null value as the content of a RECORD.

The content of a RECORD is only bytes. A record that has only a value is sent as that value. Any other record is wrapped
in an envelope: a magic number, and a record batch with this one record. Nodes that do not know envelopes, such as those
of libdafka, store and forward them unchanged. A value that begins with the magic number is wrapped, too, so that every
value is received as it was sent.

See docs/spec/record-batches.md, "The Envelope".
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import cast

from dafka.batches import decode_batch, encode_batch
from dafka.errors import BatchError
from dafka.packed_bytes import PackedContents
from dafka.records import NO_TIMESTAMP, Partition, Record, RecordBatch

ENVELOPE_MAGIC = b"\xda\xfc\xa5\x01"
"""The first bytes of an envelope. They are not valid UTF-8."""


def wrap_records(batch: RecordBatch) -> Sequence[bytes]:
    """Return the content for each record: its value, or an envelope; empty if compaction has removed the record."""
    if batch.compacted is not None:
        records = iter(batch)
        return [b"" if is_removed else _wrap(next(records)) for is_removed in batch.compacted]
    if batch.has_only_values:
        values = cast(Sequence[bytes], batch.values)
        if not _may_hold_envelope(values):
            return values
    return [_wrap(record) for record in batch]


def unwrap_records(partition: Partition, first_sequence: int, contents: Sequence[bytes]) -> RecordBatch:
    """Return the records that the contents of consecutive RECORDs carry.

    A content that begins with the magic number but is not an envelope is a value: its sender does not know envelopes.
    """
    if not _may_hold_envelope(contents):
        return RecordBatch(partition, first_sequence, contents)
    records = [_unwrap(partition, sequence, content) for sequence, content in enumerate(contents, first_sequence)]
    return RecordBatch.from_records(partition, first_sequence, records, NO_TIMESTAMP)


def _may_hold_envelope(contents: Sequence[bytes]) -> bool:
    return ENVELOPE_MAGIC in (contents.data if isinstance(contents, PackedContents) else b"".join(contents))


def _wrap(record: Record) -> bytes:
    value = record.value
    if value is not None and record.key is None and not record.headers and not value.startswith(ENVELOPE_MAGIC):
        return value
    timestamp = NO_TIMESTAMP if record.timestamp is None else record.timestamp
    return ENVELOPE_MAGIC + encode_batch(
        record.sequence, [value], keys=[record.key], headers=[record.headers], timestamps=timestamp
    )


def _unwrap(partition: Partition, sequence: int, content: bytes) -> Record:
    decoded = None
    if content.startswith(ENVELOPE_MAGIC):
        with suppress(BatchError):
            decoded = decode_batch(content[len(ENVELOPE_MAGIC) :], bytes_max=len(content))
    if decoded is None or len(decoded.values) != 1:
        return Record(partition, sequence, content)
    timestamp = decoded.timestamps[0]
    return Record(
        partition,
        sequence,
        decoded.values[0],
        decoded.keys[0] if decoded.keys else None,
        decoded.headers[0] if decoded.headers else (),
        None if timestamp == NO_TIMESTAMP else timestamp,
    )
