"""Large records, and small batches that contain much: they come whole, and take little memory on their way."""

from __future__ import annotations

from dafka.batches import Compression, check_crc, encode_batch
from dafka.broker.broker import Broker
from dafka.broker.core.log.log import Log
from dafka.http.logs.local_logs import UNPACKED_BYTES, LocalLogs
from dafka.http.logs.log_access import find_logs
from dafka.http.websocket.shared_reads import JOIN_BYTES
from tests.http.brokers import open_broker_service
from tests.http.running import open_web

MIB = 2**20
HOST = "127.0.0.1"
PIECE_BYTES_MAX = JOIN_BYTES + 6 * 2**14 + 1000
SHAPES = {
    "zeros": bytes(3 * MIB),
    "text": ("a line \u00e4\u20ac\U0001f600\n" * 200_000).encode(),
    "binary": bytes(range(256)) * 5000,
}


async def append(broker: Broker, log: Log, *values: bytes, key: bytes | None = None) -> None:
    data = encode_batch(
        0, values, keys=[key] * len(values) if key else None, timestamps=1, compression=Compression.ZSTD
    )
    await broker.appender.append(log, [(check_crc(data), data)]).wait_offset()


async def test_read_has_limited_records_whatever_their_batches_take() -> None:
    """A hundred batches of some bytes each contain a hundred MiB: reads have a MiB each, and go on."""
    async with open_broker_service() as broker:
        await broker.node.admin.create_topic("zeros")
        (log,) = find_logs(broker, "zeros")
        for _ in range(10):
            await append(broker, log, bytes(MIB))
        await append(broker, log, *[bytes(1000)] * 5000)
        offset, count = 0, 0
        while (read := await LocalLogs(broker).read(log, offset)).next_offset > offset:
            assert 0 < read.unpacked_bytes <= UNPACKED_BYTES + MIB
            sizes = [len(value or b"") for _, part in read.columns() for value in part.values]
            assert sum(sizes) <= read.unpacked_bytes
            count += len(sizes)
            offset = read.next_offset
        assert count == 5010


async def test_topic_has_a_limit_of_what_its_batches_contain() -> None:
    async with open_web() as web:
        settings = {"max.decompressed.message.bytes": "100000"}
        assert (await web.request("POST", "/topics", document={"name": "small", "settings": settings})).status == 201
        refused = await web.request("POST", "/topics/small/records", bytes(100_001))
        assert (refused.status, refused.code) == (413, "too_large")
        assert "max.decompressed.message.bytes" in refused.body.decode()
        assert (await web.request("POST", "/topics/small/records", bytes(99_000))).status == 200
