"""Planning an append to one partition: the record batches to write, and the segment and position to write them to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise

import attrs

from dafka.batches import encode_records, iter_batches
from dafka.errors import BatchError, EncodingError, StorageError
from dafka.records import Partition, RecordBatch, join
from dafka.storage.filelog.index import OFFSET_MAX, Block
from dafka.storage.filelog.partition import Head, PartitionLog
from dafka.storage.filelog.segment import SEQUENCE_END_MAX
from dafka.storage.filelog.stored import ROW_BYTES, StoredRow
from dafka.storage.plugin_helpers import split_by_time

TIME_MIN, TIME_MAX = -(2**63), 2**63 - 1


@attrs.define
class PlannedAppend:
    """The changes that an append will make to one partition, whose state will then be `head`.

    `is_prepared` and `is_created` say how far the append has come: whether the segment can be written to, and whether
    a new segment was created.
    """

    log: PartitionLog
    is_new: bool
    head: Head
    begins_segment: bool
    position: int = 0
    blocks: Sequence[Block] = ()
    buffers: Sequence[bytes] = ()
    rows: Sequence[StoredRow] = ()
    is_prepared: bool = attrs.field(default=False, init=False)
    is_created: bool = attrs.field(default=False, init=False)

    @property
    def path(self) -> str:
        """The path of the segment."""
        return self.log.log_path(self.head.base)

    @property
    def stored_path(self) -> str:
        """The path of the file with the times of storing."""
        return self.log.stored_path(self.head.base)

    @property
    def stored_position(self) -> int:
        """The position in that file to write to."""
        return 0 if self.begins_segment else self.log.stored_length

    @property
    def encoded_rows(self) -> bytes:
        """The bytes to write there."""
        seed = self.log.segment_seed(self.head.base)
        return b"".join([row.encode(seed) for row in self.rows])


def plan_append(
    log: PartitionLog, batches: list[RecordBatch], time_ms: int, segment_bytes: int, segment_ms: int, *, is_new: bool
) -> PlannedAppend:
    """Plan to append batches that continue a partition. Raise `StorageError` if the records cannot be stored."""
    head = log.head
    first_sequence, end_sequence = batches[0].first_sequence, batches[-1].end_sequence
    check_sequences(log.partition, first_sequence, end_sequence)
    made = list(_make_rows(log.partition, batches, time_ms, head.latest_at if head.end else None))
    rows = [row for row, after in pairwise(made) if row.stored_at != after.stored_at] + made[-1:]
    buffers = [data for part in _join_unencoded(batches) for data in _encode(part)]
    size = sum(map(len, buffers))
    if size > OFFSET_MAX:
        raise StorageError(f"{log.partition}: expected at most {OFFSET_MAX} bytes of records at once, not {size}")
    is_full = head.length > 0 and (
        head.length + size > min(segment_bytes, OFFSET_MAX)
        or end_sequence - head.base > OFFSET_MAX
        or rows[0].stored_at - head.base_at >= segment_ms
    )
    begins_segment = is_new or is_full or first_sequence != head.end
    base, position = (first_sequence, 0) if begins_segment else (head.base, head.length)
    blocks = list(_find_blocks(log.partition, buffers, first_sequence, position))
    if blocks[-1].end_sequence != end_sequence:
        raise StorageError(f"{log.partition}: record batches end at {blocks[-1].end_sequence}, not at {end_sequence}")
    content_bytes = rows[-1].content_bytes
    before = 0 if begins_segment else log.segment_content_bytes
    is_empty = head.earliest == head.end
    new_head = Head(
        earliest=first_sequence if is_empty else head.earliest,
        end=end_sequence,
        content_bytes=head.content_bytes + content_bytes,
        earliest_at=rows[0].stored_at if is_empty else head.earliest_at,
        latest_at=rows[-1].stored_at,
        base=base,
        length=position + size,
        base_at=head.base_at if position else rows[0].stored_at,
        closed_bytes=head.closed_bytes + (head.length if begins_segment else 0) + ROW_BYTES * len(rows),
    )
    rows = [row._replace(content_bytes=before + row.content_bytes) for row in rows]
    return PlannedAppend(log, is_new, new_head, begins_segment, position, blocks, buffers, rows)


def check_sequences(partition: Partition, first_sequence: int, end_sequence: int) -> None:
    """Raise `StorageError` if record batches cannot have these sequences."""
    if first_sequence < 0 or end_sequence > SEQUENCE_END_MAX:
        raise StorageError(
            f"{partition}: expected sequences from 0 to {SEQUENCE_END_MAX - 1}, "
            f"not {first_sequence} to {end_sequence - 1}"
        )


def _make_rows(
    partition: Partition, batches: list[RecordBatch], time_ms: int, latest_at: int | None
) -> Iterator[StoredRow]:
    """Yield rows; consecutive rows may have the same time. Sizes count from the beginning of the append."""
    total = 0
    for batch in batches:
        if batch.stored_at is None:
            latest_at = time_ms if latest_at is None else max(time_ms, latest_at)
            total += batch.content_bytes
            yield StoredRow(batch.end_sequence, latest_at, total)
            continue
        for part in split_by_time(batch, time_ms, latest_at if latest_at is not None else batch.stored_at[0]):
            assert part.stored_at is not None
            latest_at = part.stored_at[0]
            if not TIME_MIN <= latest_at <= TIME_MAX:
                raise StorageError(
                    f"{partition}: expected a time in milliseconds since 1970, within 64 bits, not {latest_at}"
                )
            total += part.content_bytes
            yield StoredRow(part.end_sequence, latest_at, total)


def _join_unencoded(batches: Sequence[RecordBatch]) -> Iterator[RecordBatch]:
    """Yield the batches; join consecutive ones that are not encoded yet."""
    for is_encoded, group in groupby(batches, key=lambda batch: bool(batch.encoded)):
        if is_encoded:
            yield from group
        else:
            yield join([each if each.stored_at is None else attrs.evolve(each, stored_at=None) for each in group])


def _encode(batch: RecordBatch) -> tuple[bytes, ...]:
    try:
        return encode_records(batch)
    except EncodingError as error:
        raise StorageError(f"{batch.partition}: sequences {batch.first_sequence} on: {error}") from None


def _find_blocks(partition: Partition, buffers: list[bytes], sequence: int, position: int) -> Iterator[Block]:
    """Yield the record batches to write. Raise `StorageError` if they do not continue the partition."""
    for data in buffers:
        try:
            for start, header in iter_batches(data):
                if header.base_offset != sequence:
                    raise StorageError(
                        f"{partition}: a record batch begins at {header.base_offset}, expected {sequence}"
                    )
                count = header.last_offset_delta + 1
                yield Block(position + start, header.size, sequence, count, header.crc, header.max_timestamp)
                sequence = header.end_offset
        except BatchError as error:
            raise StorageError(
                f"{partition}: a record batch from sequence {sequence} on is malformed: {error}"
            ) from None
        position += len(data)
