"""Large records, and small batches that contain much: they come whole, and take little memory on their way."""

from __future__ import annotations

import json

import pytest
import trio
import trio.testing

from dafka import Config
from dafka.batches import Compression, check_crc, encode_batch
from dafka.broker.broker import Broker
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.log.log import Log
from dafka.broker.log.appending import AppendRefusedError
from dafka.http.logs.local_logs import UNPACKED_BYTES, LocalLogs
from dafka.http.logs.log_access import find_logs
from dafka.http.websocket.shared_reads import JOIN_BYTES
from tests.http.brokers import open_broker_service
from tests.http.running import DEADLINE_S, open_web

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
        broker.node.create_topic("zeros")
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


async def test_batch_that_contains_too_much_is_refused_and_named() -> None:
    config = Config().with_kafka(batch_bytes_max=MIB)
    async with open_broker_service("memory:", config) as broker:
        broker.node.create_topic("zeros")
        (log,) = find_logs(broker, "zeros")
        half = encode_batch(0, [bytes(600_000)], timestamps=1, compression=Compression.ZSTD)
        whole = encode_batch(0, [bytes(MIB)], timestamps=1, compression=Compression.ZSTD)
        for batches in ([whole], [half, half]):
            with pytest.raises(AppendRefusedError, match="bytes when decompressed") as refused:
                broker.appender.append(log, [(check_crc(each), each) for each in batches])
            assert refused.value.error_code is ErrorCode.MESSAGE_TOO_LARGE
        await broker.appender.append(log, [(check_crc(half), half)]).wait_offset()


async def test_sources_take_turns_when_much_of_what_they_send_is_unpacked() -> None:
    config = Config().with_broker(memory=32 * MIB)
    async with open_broker_service("memory:", config) as broker:
        broker.node.create_topic("zeros")
        (log,) = find_logs(broker, "zeros")
        data = encode_batch(0, [bytes(3 * MIB)], timestamps=1, compression=Compression.GZIP)
        batches = [(check_crc(data), data)]
        log_table: list[str] = []

        async def publish(source: str) -> None:
            async with broker.appender.unpacked(log, batches, source) as records:
                assert records is not None
                assert 0 < broker.memory.used_bytes <= broker.memory.bytes_max
                log_table.append(source)
                appended = broker.appender.append(log, batches, records=records)
            await appended.wait_offset()

        with trio.fail_after(DEADLINE_S):
            async with trio.open_nursery() as nursery:
                for _ in range(6):
                    nursery.start_soon(publish, "mallory")
                await trio.testing.wait_all_tasks_blocked()
                before = len(log_table)
                nursery.start_soon(publish, "alice")
        assert len(log_table) == 7
        assert log_table.index("alice") <= before + 2
        assert broker.memory.used_bytes == 0
        read = await LocalLogs(broker).read(log, 0)
        assert [len(value or b"") for _, part in read.columns() for value in part.values] == [3 * MIB]


async def test_topic_has_a_limit_of_what_its_batches_contain() -> None:
    """Every door refuses larger ones, which may be small while they are compressed."""
    async with open_web() as web:
        broker = web.broker.broker
        document = {"name": "small", "settings": {"max.decompressed.message.bytes": "100000"}}
        assert (await web.request("POST", "/topics", document=document)).status == 201
        broker.node.create_topic("large")
        sentence = r"at most 100000 bytes.* \(max.decompressed.message.bytes\)"
        for compression in Compression:
            data = encode_batch(0, [bytes(100_001)], timestamps=1, compression=compression)
            for name, is_taken in (("small", False), ("large", True)):
                (log,) = find_logs(broker, name)
                if is_taken:
                    await broker.appender.append(log, [(check_crc(data), data)]).wait_offset()
                    continue
                with pytest.raises(AppendRefusedError, match=sentence) as refused:
                    broker.appender.append(log, [(check_crc(data), data)])
                assert refused.value.error_code is ErrorCode.MESSAGE_TOO_LARGE
        refused_post = await web.request("POST", "/topics/small/records", bytes(100_001))
        assert (refused_post.status, refused_post.code) == (413, "too_large")
        assert "max.decompressed.message.bytes" in refused_post.body.decode()
        assert (await web.request("POST", "/topics/small/records", bytes(99_000))).status == 200
        document = {"settings": {"max.decompressed.message.bytes": "0"}}
        assert (
            "expected a number from 1 to"
            in (await web.request("PATCH", "/topics/small", document=document)).body.decode()
        )


async def test_http_answers_have_large_records_whole_and_others_are_served_meanwhile() -> None:
    async with open_web() as web:
        broker = web.broker.broker
        broker.node.create_topic("zeros")
        (log,) = find_logs(broker, "zeros")
        for _ in range(4):
            await append(broker, log, SHAPES["zeros"])
        counts: list[int] = []

        async def read() -> None:
            answer = await web.request("GET", "/topics/zeros/records")
            lines = [json.loads(line) for line in answer.body.splitlines()]
            counts.append(sum(each["value"] == SHAPES["zeros"].decode() for each in lines))

        with trio.fail_after(DEADLINE_S):
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(read)
                for _ in range(5):
                    assert (await web.request("GET", "/topics")).status == 200
        assert counts == [4, 4, 4]
