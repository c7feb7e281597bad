"""The log of a record."""

from __future__ import annotations

import pytest
from aiokafka.partitioner import murmur2 as murmur2_of_aiokafka

from dafka.broker.core.log.entries import (
    DroppedEntry,
    Entry,
    IndexRewriteEntry,
    LogStartEntry,
    MergedEntry,
    decode_entries,
    encode_entries,
)
from dafka.broker.core.log.partitioner import log_of_key, murmur2
from dafka.broker.core.positions import Offset, RecordSequence
from dafka.errors import StorageFormatError
from tests.broker.core.entries import batch_entry, marker_entry, run_entry


def test_hash_is_that_of_kafka() -> None:
    for size in range(40):
        data = bytes((each * 37 + 200) % 256 for each in range(size))
        assert murmur2(data) & 0x7FFFFFFF == murmur2_of_aiokafka(data) & 0x7FFFFFFF
        assert log_of_key(data, 7) == (murmur2_of_aiokafka(data) & 0x7FFFFFFF) % 7


def test_entries_come_back() -> None:
    entries: list[Entry] = [
        run_entry(5, "A", 3, 0),
        batch_entry(3, 2, 9, 1, 2**31 - 1, 1, 10**12),
        LogStartEntry(Offset(4)),
        marker_entry(9, 5, 2**40, 3, 1, 10**12, None),
        IndexRewriteEntry(),
        DroppedEntry("A", RecordSequence(7)),
        MergedEntry(Offset(4), "B", RecordSequence(7)),
        run_entry(10, "", 0, 7),
    ]
    assert decode_entries(encode_entries(entries)) == entries


@pytest.mark.parametrize("value", [b"", b"\x04", b"\x02\x12", b"\x02\x02\x02\x7e"])
def test_malformed_entries_are_refused(value: bytes) -> None:
    with pytest.raises(StorageFormatError):
        decode_entries(value)
