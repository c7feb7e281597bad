"""Records are read with the leader epoch in which they got their offsets."""

from __future__ import annotations

import pytest

from dafka.batches import read_header
from dafka.broker.core.log.log import Log
from dafka.broker.core.positions import Offset, RecordSequence
from dafka.broker.log.reader import LogReader
from dafka.records import Partition, RecordBatch
from dafka.storage import open_storage
from tests.broker.core.entries import marker_entry

EPOCHS = [(epoch, Offset(start)) for epoch, start in ((0, 0), (1024, 4), (1025, 4), (2048, 9))]
"""Epochs and their first offsets. The second one has no records, and the third one begins within a stored batch."""


@pytest.mark.parametrize("bytes_max", [1, 10_000])
async def test_batches_have_the_epochs_of_their_offsets(bytes_max: int) -> None:
    native = Partition("orders", "f" * 32)
    log = Log("orders", 0, Partition("orders", "own"), Partition("$logs", "own"), epochs=EPOCHS)
    log.index.append(native.address, RecordSequence(0), 8, is_open=False)
    log.index.append_marker(marker_entry(0, 0, 1, 0, 1, 1000, None))
    log.index.append(native.address, RecordSequence(8), 4, is_open=False)
    log.high_watermark = Offset(13)
    async with open_storage("memory:") as opened:
        await opened.append([RecordBatch(native, 0, [b"%d" % n for n in range(12)], timestamps=[1000] * 12)])
        reader = LogReader(opened)
        found: list[tuple[int, int]] = []
        offset = 0
        while offset < 13:
            batches = await reader.read(log, Offset(offset), Offset(13), bytes_max)
            assert batches
            for data in batches:
                header = read_header(data)
                assert header.base_offset == offset
                epoch = int.from_bytes(data[12:16], "big")
                found += [(each, epoch) for each in range(offset, offset + header.count)]
                offset += header.count
    assert found == [(n, 0 if n < 4 else 1025 if n < 9 else 2048) for n in range(13)]
    assert found == [(n, log.epoch_at(Offset(n))) for n in range(13)]
