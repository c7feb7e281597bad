"""Reads that subscribers share: each part of a log is read and encoded once."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
import trio.testing

from dafka.batches import Compression, check_crc, encode_batch
from dafka.broker.broker import Broker
from dafka.broker.connections.memory import Memory
from dafka.broker.core.log.log import Log
from dafka.broker.core.metadata.leader_and_isr import LeaderAndIsr
from dafka.broker.core.positions import Offset
from dafka.http.logs.local_logs import UNPACKED_BYTES, LocalLogs
from dafka.http.logs.log_access import ReadRecords, find_logs
from dafka.http.logs.unpacking import INLINE_BYTES_MAX, unpack
from dafka.http.server.errors import WebError
from dafka.http.websocket import shared_reads
from dafka.http.websocket.shared_reads import JOIN_BYTES, KEPT_S, RECORD_BYTES, SharedRead, SharedReads, join_lines
from tests.http.running import make_log, open_broker_service, open_web


async def test_text_of_large_records_is_made_in_pieces() -> None:
    async with open_broker_service() as broker:
        await broker.node.admin.create_topic("large")
        (log,) = find_logs(broker, "large")
        contents = [*SHAPES.values(), b"small"]
        for value in contents:
            await append(broker, log, value, key=value[:100_000])
        reads = SharedReads(broker.memory.make_pool(256 * MIB))
        found, offset = [], 0
        while offset < len(contents):
            read = await reads.read(LocalLogs(broker), log, offset)
            pieces = list(join_lines(await read.lines(HOST), lambda _: b"", b"\n"))
            assert max(map(len, pieces)) <= PIECE_BYTES_MAX
            found += [json.loads(line) for line in b"".join(pieces).splitlines()]
            events = list(await read.events(HOST))
            assert max(map(len, events)) <= PIECE_BYTES_MAX
            data = [line[6:] for line in b"".join(events).split(b"\n") if line.startswith(b"data: ")]
            assert [json.loads(each) for each in data] == found[offset:]
            texts = await read.texts(HOST)
            assert all(each.record_count for each in texts)
            assert [each["offset"] for text in texts for each in json.loads(b"{" + text.data[1:])["records"]] == [
                *range(offset, read.read.next_offset)
            ]
            offset = read.read.next_offset
        assert [each.get("value") for each in found] == [
            SHAPES["zeros"].decode(),
            SHAPES["text"].decode(),
            None,
            "small",
        ]
        assert "key_base64" in found[2]
        assert broker.memory.used_bytes > 0
        del reads, read
        assert broker.memory.used_bytes == 0


async def test_a_text_has_records_up_to_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_reads, "TEXT_CONTENT_BYTES", 3 * (100 + RECORD_BYTES))
    batches = [encode_batch(offset, [b"x" * 100], timestamps=5) for offset in range(7)]

    class Access:
        async def read(self, *_: object, **__: object) -> ReadRecords:
            await trio.lowlevel.checkpoint()
            return ReadRecords(0, 7, [(check_crc(each), each) for each in batches])

    access: Any = Access()
    read = await SharedReads(Memory(2**30).make_pool(2**29)).read(access, make_log(), 0)
    assert [each.record_count for each in await read.texts(HOST)] == [3, 3, 1]


async def test_records_are_unpacked_with_memory_for_all_copies_and_damage_is_told() -> None:
    pool = Memory(2**30).make_pool(2**29)
    for size, taken in ((INLINE_BYTES_MAX, 0), (INLINE_BYTES_MAX + 1, 3 * (INLINE_BYTES_MAX + 1))):
        read = ReadRecords(0, 1, (), size)
        found = await unpack(read, 0, lambda: pool.taken_bytes, memory=pool, source=HOST, copies=3)
        assert (found, pool.taken_bytes) == (taken, 0)
    data = encode_batch(0, [bytes(1000)], timestamps=5, compression=Compression.ZSTD)
    damaged = SharedRead(7, ReadRecords(0, 1, [(check_crc(data), data[:-9] + bytes(9))]), pool)
    with pytest.raises(WebError, match="records of log 7 cannot be unpacked") as refused:
        await damaged.texts(HOST)
    assert refused.value.code == "storage_failed"


class CountedReads:
    """Stands for the access to a log, and counts its reads. Each takes a second."""

    def __init__(self) -> None:
        self.count = 0
        self.failure: Exception | None = None

    async def read(self, _log: Log, offset: int, *, bytes_max: int) -> ReadRecords:
        assert bytes_max > 0
        self.count += 1
        await trio.sleep(1)
        if self.failure is not None:
            raise self.failure
        data = encode_batch(offset, [b"x" * 1000], timestamps=5)
        return ReadRecords(offset, offset + 1, [(check_crc(data), data)] if offset < 100 else [])


async def test_a_part_is_read_once_for_all_who_want_it_at_a_time(autojump_clock: trio.testing.MockClock) -> None:
    counted, log = CountedReads(), make_log()
    access: Any = counted
    pool = Memory(2**30).make_pool(2**29)
    kept = [SharedReads(pool)]
    found: list[Any] = []

    async def read(offset: int) -> None:
        found.append(await kept[0].read(access, log, offset))

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(read, 0)
    assert (counted.count, len({id(each) for each in found})) == (1, 1)
    await read(0)
    assert counted.count == 1
    await trio.sleep(KEPT_S)
    await read(0)
    assert counted.count == 2, "compaction can have removed records meanwhile"
    log.leadership = LeaderAndIsr("a" * 32, 2, is_led=True)
    await read(0)
    assert counted.count == 3, "another epoch can have other records"
    log.leadership = LeaderAndIsr("b" * 32, 2, is_led=True)
    await read(0)
    await read(1)
    assert counted.count == 5
    log.index.start_offset = Offset(1)
    await read(1)
    assert counted.count == 5
    log.index.start_offset = Offset(2)
    await read(1)
    assert counted.count == 6, "the record was deleted meanwhile"
    log.index.start_offset = Offset(1)
    log.is_gone = True
    await read(1)
    assert counted.count == 7
    assert pool.taken_bytes > 0
    found.clear()
    kept.clear()
    assert pool.taken_bytes == 0


async def test_reads_that_are_kept_take_limited_memory(autojump_clock: trio.testing.MockClock) -> None:
    counted: Any = CountedReads()
    pool = Memory(2**30).make_pool(2**29)
    reads = SharedReads(pool, kept_bytes=10_000)
    log = make_log()
    for offset in range(20):
        read = await reads.read(counted, log, offset)
        await read.texts(HOST)
        del read
        assert pool.taken_bytes <= 10_000 + 5000
    read = await reads.read(counted, log, 19)
    for encode in (read.lines, read.events):
        await encode(HOST)
    await reads.read(counted, log, 19)
    del read, encode
    assert pool.taken_bytes <= 10_000, "it has grown since it was read"
    assert counted.count == 20


async def test_each_form_of_the_records_counts_once_as_memory(autojump_clock: trio.testing.MockClock) -> None:
    counted: Any = CountedReads()
    pool = Memory(2**30).make_pool(2**29)
    read = await SharedReads(pool).read(counted, make_log(), 0)
    for encode in (read.texts, read.lines, read.events):
        before = pool.taken_bytes
        for _ in range(2):
            await encode(HOST)
            assert 1000 < pool.taken_bytes - before < 1500


async def test_a_read_that_fails_fails_for_none_but_those_who_wait(autojump_clock: trio.testing.MockClock) -> None:
    counted, log = CountedReads(), make_log()
    access: Any = counted
    reads = SharedReads(Memory(2**30).make_pool(2**29))
    counted.failure = RuntimeError("a mistake")
    with pytest.raises(RuntimeError):
        await reads.read(access, log, 0)
    counted.failure = None
    assert (await reads.read(access, log, 0)).read.next_offset == 1
    assert counted.count == 2


# Large records, and small batches that contain much: they come whole, and take little memory on their way


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
