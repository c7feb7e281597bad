"""The log of a record."""

from __future__ import annotations

import pytest
from aiokafka.partitioner import murmur2 as murmur2_of_aiokafka

from dafka.broker.core.log.entries import (
    DroppedEntry,
    Entry,
    IndexRewriteEntry,
    LogStartEntry,
    decode_entries,
    encode_entries,
)
from dafka.broker.core.log.partitioner import log_of_key, murmur2, place_records
from dafka.broker.core.positions import Offset, RecordSequence
from dafka.errors import StorageFormatError
from dafka.records import Partition, RecordBatch
from tests.broker.core.entries import batch_entry, marker_entry, run_entry


def test_hash_is_that_of_kafka() -> None:
    for size in range(40):
        data = bytes((each * 37 + 200) % 256 for each in range(size))
        assert murmur2(data) & 0x7FFFFFFF == murmur2_of_aiokafka(data) & 0x7FFFFFFF
        assert log_of_key(data, 7) == (murmur2_of_aiokafka(data) & 0x7FFFFFFF) % 7


def test_records_of_a_key_have_one_log() -> None:
    batch = RecordBatch(Partition("t", "A"), 3, [b""] * 6, keys=[b"a", b"a", None, b"b", None, b"a"])
    runs = list(place_records(batch, 7))
    assert sum(count for _, _, count in runs) == 6
    by_sequence = {first + each: log for log, first, count in runs for each in range(count)}
    assert by_sequence[3] == by_sequence[4] == by_sequence[8] == log_of_key(b"a", 7)
    assert by_sequence[6] == log_of_key(b"b", 7)
    assert by_sequence[5] == by_sequence[7]


def test_entries_come_back() -> None:
    entries: list[Entry] = [
        run_entry(5, "A", 3, 0),
        batch_entry(3, 2, 9, 1, 2**31 - 1, 1, 10**12),
        LogStartEntry(Offset(4)),
        marker_entry(9, 5, 2**40, 3, 1, 10**12, None),
        IndexRewriteEntry(),
        DroppedEntry("A", RecordSequence(7)),
        run_entry(10, "", 0, 7),
    ]
    assert decode_entries(encode_entries(entries)) == entries


@pytest.mark.parametrize("value", [b"", b"\x04", b"\x02\x12", b"\x02\x02\x02\x7e"])
def test_malformed_entries_are_refused(value: bytes) -> None:
    with pytest.raises(StorageFormatError):
        decode_entries(value)
