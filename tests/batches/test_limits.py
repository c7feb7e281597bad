"""No batch is decompressed beyond one limit. A larger one is refused, and what is beside it is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dafka.batches import (
    Compression,
    compression,
    decode_batch,
    decode_records,
    decode_run,
    encode_batch,
    encoding,
    read_header,
    unpacked_bytes_max,
)
from dafka.batches.decoding import decode_batches
from dafka.batches.message_sets import encode_message_set
from dafka.errors import BatchTooLargeError, EncodingError, StorageCorruptError
from dafka.records import Partition
from dafka.storage.filelog import open_filelog

LIMIT = 100_000
PARTITION = Partition("orders", "A")
COMPRESSED = [kind for kind in Compression if kind is not Compression.NONE]
READERS: dict[str, Callable[[bytes], object]] = {
    "decode_batch": decode_batch,
    "decode_batches": lambda data: decode_batches([(read_header(data), data)]),
    "decode_records": lambda data: decode_records(PARTITION, data),
    "decode_run": lambda data: decode_run(PARTITION, [(read_header(data), data)]),
    "with a larger limit": lambda data: decode_batch(data, bytes_max=2**40),
    "encode_message_set": lambda data: encode_message_set(data, 1),
}


@pytest.mark.parametrize("kind", COMPRESSED)
@pytest.mark.parametrize("reader", READERS)
def test_no_reader_takes_more_than_the_limit(reader: str, kind: Compression, monkeypatch: pytest.MonkeyPatch) -> None:
    fits = encode_batch(0, [bytes(LIMIT - 1000)], timestamps=1, compression=kind)
    larger = encode_batch(0, [bytes(LIMIT + 1)], timestamps=1, compression=kind)
    monkeypatch.setattr(compression, "BATCH_BYTES_LIMIT", LIMIT)
    READERS[reader](fits)
    with pytest.raises(BatchTooLargeError, match=f"data of at most {LIMIT} bytes when decompressed"):
        READERS[reader](larger)
    assert unpacked_bytes_max(read_header(larger), larger) <= LIMIT


@pytest.mark.parametrize("kind", list(Compression))
def test_no_batch_is_made_that_nobody_reads(kind: Compression, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "BATCH_BYTES_LIMIT", LIMIT)
    for values in ([bytes(LIMIT + 1)], [b""] * (LIMIT // 6)):
        with pytest.raises(EncodingError, match=f"at most {LIMIT} bytes"):
            encode_batch(0, values, timestamps=1, compression=kind)


async def test_a_file_log_reads_what_is_beside_larger_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_filelog(str(tmp_path / "log")) as storage:
        for number, size in enumerate((1000, 2 * LIMIT, 1000)):
            data = encode_batch(number, [bytes(size)], timestamps=1, compression=Compression.ZSTD)
            await storage.append([decode_records(PARTITION, data)])
        monkeypatch.setattr(compression, "BATCH_BYTES_LIMIT", LIMIT)
        for number in (0, 2):
            assert await storage.read(PARTITION, number, 1, 1000) is not None
        with pytest.raises(StorageCorruptError) as failed:
            await storage.read(PARTITION, 1, 1, 1000)
        assert failed.value.end_sequence == 2
