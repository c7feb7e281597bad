"""The object of a segment, whatever its row groups consist of."""

from __future__ import annotations

import json
from itertools import product

import pyarrow as pa
import pytest
from crc32c import crc32c

from dafka.records import Partition, RecordBatch
from dafka.storage.arrow import ARROW_TYPES, to_arrow, to_records
from dafka.storage.cold import parquet
from dafka.storage.cold.parquet import RECORD_COLUMNS, SegmentIndex, SegmentWriter

PARTITION = Partition("orders", "A")
GROUP = 3
STARTS = range(7, 7 + 3 * GROUP, GROUP)
"""The first sequences of the row groups."""


def make_group(first: int, made_at: int | None, header: str | None) -> RecordBatch:
    """Return records whose timestamps or names of headers may be ones that columns for other programs cannot have."""
    return RecordBatch(
        PARTITION,
        first,
        [b"%d" % each * (each % 4) for each in range(first, first + GROUP)],
        headers=None if header is None else [((header, b"%d" % each),) for each in range(GROUP)],
        timestamps=None if made_at is None else [made_at + each for each in range(GROUP)],
        stored_at=[10 * first, 10 * first, 10 * first + 5],
    )


def test_any_row_groups_are_read_as_they_were_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "GROUP_RECORDS", GROUP)
    kinds = [(None, None), (5, "name"), (2**60, None), (5, "\udcff")]
    for chosen in product(kinds, repeat=len(STARTS)):
        groups = [make_group(first, *kind) for first, kind in zip(STARTS, chosen, strict=True)]
        writer = SegmentWriter(PARTITION)
        for each in groups:
            writer.add(each)
        segment, data = writer.finish()
        size = sum(each.content_bytes for each in groups)
        assert (segment.start, segment.first, segment.end, segment.content_bytes) == (7, 7, 16, size)
        assert (segment.first_at, segment.last_at, segment.object_bytes) == (70, 135, len(data))
        tail = data[-segment.tail_bytes :]
        assert crc32c(tail) == segment.tail_crc
        footer_bytes = int.from_bytes(tail[-8:-4], "little") + 8
        document, length = tail[: -footer_bytes - 4], tail[-footer_bytes - 4 : -footer_bytes]
        assert len(document) == int.from_bytes(length, "little")
        assert json.loads(document)["groups"][0][0] == 7
        index = SegmentIndex(segment, tail)
        columns = RECORD_COLUMNS & index.columns
        for number, group in enumerate(groups):
            chunks = index.chunks(number, columns)
            pieces = {each.start: data[each.start : each.end] for each in chunks}
            assert [crc32c(pieces[each.start]) for each in chunks] == [each.crc for each in chunks]
            assert [*index.to_records(number, index.read_table(number, pieces, columns))] == [*group], chosen
            first, at = group.first_sequence, group.first_sequence * 10
            assert {index.find(sequence) for sequence in range(first, first + GROUP)} == {number}
            assert [index.find_by_time(at + by) for by in (-24, 0, 5, 6)] == [number, number, number, number + 1]
            assert (index.groups[number].first_at, index.groups[number].content_bytes) == (at, group.content_bytes)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_table_of_any_number_of_chunks_is_read_whole(count: int) -> None:
    groups = [make_group(first, 5, "name") for first in STARTS[:count]]
    table = pa.Table.from_batches([to_arrow(each, [*ARROW_TYPES]) for each in groups])
    assert [*to_records(PARTITION, STARTS[0], table, with_times=True)] == [each for group in groups for each in group]
