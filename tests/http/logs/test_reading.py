"""Reading logs from positions, for HTTP and WebSocket."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from dafka.batches import check_crc, encode_batch
from dafka.broker.broker import Broker
from dafka.broker.core.groups.coordinator import CommitRequest, OffsetToCommit
from dafka.broker.core.log.log import Log
from dafka.broker.core.log.producer_state import Marker
from dafka.broker.core.positions import Offset
from dafka.broker.core.topic_partition import TopicPartition
from dafka.http.api.records import delete_records
from dafka.http.logs.group_access import GroupAccess
from dafka.http.logs.local_logs import LocalLogs
from dafka.http.logs.log_access import find_logs
from dafka.http.logs.positions import (
    FromGroup,
    FromOffset,
    FromOffsets,
    FromTime,
    Position,
    find_offsets,
    parse_position,
    parse_position_text,
)
from dafka.http.logs.publishing import Publisher
from dafka.http.logs.records import parse_records
from dafka.http.server.errors import WebError
from dafka.storage.plugin_helpers import now_ms
from tests.http.brokers import STORAGES, open_broker_service

BYTES_MAX = 2**20
DEADLINE_S = 60


@pytest.fixture(params=STORAGES, ids=["memory", "sqlite", "filelog"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(request.param).format(tmp_path)


async def publish(broker: Broker, *values: str, topic: str = "orders", time_ms: int = 1000) -> Log:
    records = parse_records([{"value": value} for value in values], time_ms)
    await Publisher(broker, LocalLogs(broker)).publish(topic, records, log=0)
    return find_logs(broker, topic)[0]


def append_in_transaction(broker: Broker, log: Log, producer_id: int, sequence: int, *values: str) -> None:
    data = encode_batch(
        0,
        [value.encode() for value in values],
        timestamps=1000,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
        is_transactional=True,
    )
    header = check_crc(data)
    at = broker.node.writer.next_sequence(log)
    broker.node.writer.append(log, [(header, data)])
    log.producers.add_batch(header, at, now_ms())


async def end(broker: Broker, log: Log, producer_id: int, *, is_commit: bool) -> None:
    await broker.node.writer.append_marker(log, Marker(producer_id, 0, is_commit)).wait()


async def read_all(broker: Broker, log: Log, offset: int = 0, bytes_max: int = BYTES_MAX) -> list[tuple[int, str]]:
    found = []
    while (read := await LocalLogs(broker).read(log, offset, bytes_max=bytes_max)).next_offset > offset:
        found += [(each["offset"], each["value"]) for each in read.objects()]
        offset = read.next_offset
    return found


@pytest.mark.parametrize("bytes_max", [1, BYTES_MAX])
async def test_only_committed_records_are_read(storage: str, bytes_max: int) -> None:
    async with open_broker_service(storage) as broker:
        log = await publish(broker, "before")
        append_in_transaction(broker, log, 1, 0, "aborted", "aborted")
        append_in_transaction(broker, log, 2, 0, "committed")
        await publish(broker, "between")
        assert await read_all(broker, log, bytes_max=bytes_max) == [(0, "before")]
        found = (await LocalLogs(broker).bounds([log]))[log]
        assert (found.end_offset, found.high_watermark) == (1, 5), "readers that begin at the end miss nothing"
        await end(broker, log, 1, is_commit=False)
        assert await read_all(broker, log, bytes_max=bytes_max) == [(0, "before")]
        append_in_transaction(broker, log, 1, 2, "second try")
        await end(broker, log, 2, is_commit=True)
        expected = [(0, "before"), (3, "committed"), (4, "between")]
        assert await read_all(broker, log, bytes_max=bytes_max) == expected
        await end(broker, log, 1, is_commit=True)
        append_in_transaction(broker, log, 1, 3, "aborted")
        await end(broker, log, 1, is_commit=False)
        expected += [(6, "second try")]
        assert await read_all(broker, log, bytes_max=bytes_max) == expected
        for offset in range(log.high_watermark + 1):
            assert await read_all(broker, log, offset, bytes_max) == [each for each in expected if each[0] >= offset]


async def test_everything_is_deleted_up_to_the_end_also_behind_an_open_transaction() -> None:
    async with open_broker_service() as broker:
        log = await publish(broker, "before")
        append_in_transaction(broker, log, 1, 0, "open")
        await publish(broker, "after")
        query = {"log": None, "before": "latest"}
        request: Any = SimpleNamespace(
            broker=broker, logs=LocalLogs(broker), groups=None, arguments={"topic": "orders"}, query=query
        )
        assert (await delete_records(request)).start_offset == log.index.start_offset == 3


async def test_reading_is_bounded_by_a_size_and_an_end() -> None:
    async with open_broker_service() as broker:
        for number in range(10):
            log = await publish(broker, f"{number}" * 1000)
        read = await LocalLogs(broker).read(log, 2, bytes_max=5000)
        assert (read.offset, read.next_offset, read.record_count) == (2, 2 + len(read.batches), len(read.batches))
        assert 1 < read.record_count < 8
        assert (await LocalLogs(broker).read(log, 2, end_offset=4)).next_offset == 4


async def test_dropped_records_are_passed_over() -> None:
    async with open_broker_service() as broker:
        log = await publish(broker, *"abcdef")
        await broker.node.deletion.delete_before(log, Offset(4))
        read = await LocalLogs(broker).read(log, 1)
        assert (read.offset, read.next_offset) == (4, 6)
        assert [each["offset"] for each in read.objects()] == [4, 5]


async def test_further_records_end_the_wait() -> None:
    async with open_broker_service() as broker:
        log = await publish(broker, "a")
        await LocalLogs(broker).wait_records({log: 0})
        ended = trio.Event()

        async def wait() -> None:
            await LocalLogs(broker).wait_records({log: 1})
            ended.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            assert not ended.is_set()
            await publish(broker, "b")
            with trio.fail_after(DEADLINE_S):
                await ended.wait()


async def test_deleting_the_topic_ends_the_wait() -> None:
    async with open_broker_service() as broker:
        log = await publish(broker, "a")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(LocalLogs(broker).wait_records, {log: 1})
            await trio.testing.wait_all_tasks_blocked()
            with trio.fail_after(DEADLINE_S):
                await broker.node.delete_topic("orders")
        with pytest.raises(WebError, match="there is no topic 'orders'"):
            await LocalLogs(broker).read(log, 0)


async def test_positions() -> None:
    """The tests of routes have more about those of one log."""
    async with open_broker_service() as broker:
        broker.node.create_topic("orders", 2)
        for time_ms in (1000, 2000, 3000):
            log = await publish(broker, f"{time_ms}", time_ms=time_ms)
        await broker.node.deletion.delete_before(log, Offset(1))
        logs = find_logs(broker, "orders")

        async def found(position: Position) -> list[int]:
            offsets = await find_offsets(LocalLogs(broker), GroupAccess(broker), logs, position)
            return [offsets[each] for each in logs]

        positions: list[tuple[Position, list[int]]] = [
            ("earliest", [1, 0]),
            ("latest", [3, 0]),
            (FromTime(0), [1, 0]),
            (FromTime(2001), [2, 0]),
            (FromTime(3001), [3, 0]),
            (FromOffsets({0: 2}), [2, 0]),
            (FromOffsets({0: 0, 1: 0}), [1, 0]),
            (FromGroup("g", "latest"), [3, 0]),
            (FromGroup("g", "earliest"), [1, 0]),
        ]
        assert [await found(position) for position, _ in positions] == [offsets for _, offsets in positions]
        for committed, expected in ((2, 2), (0, 1), (3, 3), (4, 3)):  # the log begins at 1 and ends at 3
            offsets = {TopicPartition("orders", 0): OffsetToCommit(committed, -1, "")}
            await broker.groups.commit_offsets(CommitRequest(group_id="g", offsets=offsets))
            assert await found(FromGroup("g", "latest")) == [expected, 0]
        wrong: list[tuple[Position, str]] = [
            (FromOffset(2), "bad_request"),
            (FromOffsets({0: 4}), "offset_out_of_range"),
            (FromOffsets({2: 0}), "log_not_found"),
        ]
        for position, code in wrong:
            with pytest.raises(WebError) as caught:
                await found(position)
            assert caught.value.code == code


PARSED: list[tuple[object, str, Position]] = [
    ("earliest", "earliest", "earliest"),
    ("latest", "latest", "latest"),
    ({"offset": 5}, "5", FromOffset(5)),
    ({"time": 5}, "time:5", FromTime(5)),
    ({"time": "1970-01-01T00:00:01Z"}, "time:1970-01-01T00:00:01Z", FromTime(1000)),
    ({"time": "1970-01-01T01:00:01+01:00"}, "time:1970-01-01T01:00:01+01:00", FromTime(1000)),
    ({"time": "1970-01-01"}, "time:1970-01-01", FromTime(0)),
    ({"group": "a:b"}, "group:a:b", FromGroup("a:b", "earliest")),
]


def test_positions_are_parsed() -> None:
    for value, text, position in PARSED:
        assert parse_position(value) == parse_position_text(text) == position
    assert parse_position({"offsets": {"0": 5, "12": 0}}) == FromOffsets({0: 5, 12: 0})
    assert parse_position({"group": "g", "otherwise": "latest"}) == FromGroup("g", "latest")


NO_OFFSETS: list[object] = [[], {"a": 1}, {"²": 1}, {"0": "1"}, {"9" * 5000: 1}]
NO_TIMES: list[object] = ["yesterday", -1, None, "0001-01-01T00:00:00+23:59"]
NO_POSITIONS: list[object] = [
    *(None, 5, "5", "first", [], {}),
    *({"offset": each} for each in (-1, 1.0, True, 2**53)),
    *({"offsets": each} for each in NO_OFFSETS),
    *({"time": each} for each in NO_TIMES),
    {"offset": 1, "time": 1},
    {"group": 5},
    {"group": "g", "otherwise": "now"},
    {"group": "g", "otherwise": []},
]
NO_TEXTS = ["", "first", "-1", "1.5", "²", "9" * 5000, "time:", "time:x", "group:", "offset:5"]


@pytest.mark.parametrize(
    ("parse", "values"), [(parse_position, NO_POSITIONS), (parse_position_text, NO_TEXTS)], ids=["JSON", "text"]
)
def test_what_is_no_position_is_refused(parse: Callable[[Any], Position], values: list[object]) -> None:
    for value in values:
        with pytest.raises(WebError) as caught:
            parse(value)
        assert caught.value.code == "bad_request", value
