"""Reading logs from positions, for HTTP and WebSocket."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import attrs
import pytest
import trio

from dafka.batches import check_crc, encode_batch
from dafka.broker.broker import Broker
from dafka.broker.core.log.log import Log
from dafka.broker.core.log.log_table import LogTable
from dafka.broker.core.log.producer_state import Marker
from dafka.broker.core.metadata.leader_and_isr import LeaderAndIsr
from dafka.broker.core.metadata.topics import Topic
from dafka.broker.core.positions import Offset
from dafka.broker.core.replication.records import EpochStart
from dafka.errors import StorageError
from dafka.http.api.records import delete_records
from dafka.http.logs.local_logs import LocalLogs
from dafka.http.logs.log_access import LogOffsets, find_logs
from dafka.http.logs.positions import (
    DivergenceTracker,
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
from tests.broker.core.entries import epoch_end
from tests.broker.core.replication.test_epoch_tree import draw_logs, shared_length
from tests.http.running import STORAGES, make_log, open_broker_service, outcome

BYTES_MAX = 2**20


@pytest.fixture(params=STORAGES, ids=["memory", "sqlite", "filelog"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(request.param).format(tmp_path)


async def publish(broker: Broker, *values: str, topic: str = "orders", time_ms: int = 1000) -> Log:
    records = parse_records([{"value": value} for value in values], time_ms)
    await Publisher(broker, LocalLogs(broker)).publish(topic, records, "127.0.0.1", log=0)
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


async def test_a_log_is_read_as_its_history_says_within_bounds() -> None:
    """Records are published and deleted, and read from any offset up to any other one, also beyond the ends."""
    async with open_broker_service() as broker:
        random, values, start = Random(1), list[str](), 0
        log, access = await publish(broker, "0"), LocalLogs(broker)
        values.append("0")
        for number in range(120):
            if random.random() < 0.3:
                values.append(f"{number}" * random.choice([1, 1000]))
                await publish(broker, values[-1], time_ms=number)
            elif random.random() < 0.2:
                offset = random.randrange(len(values) + 1)
                start = max(start, offset)
                assert await access.delete_before(log, offset) == start
            assert (await access.bounds([log]))[log] == LogOffsets(start, *[len(values)] * 3)
            offset, end = random.randrange(len(values) + 2), random.choice([None, random.randrange(len(values) + 2)])
            read = await access.read(log, offset, bytes_max=random.choice([1, 3000, BYTES_MAX]), end_offset=end)
            first, last = max(start, offset), len(values) if end is None else min(len(values), end)
            assert (read.offset, read.record_count > 0) == (first, first < last)
            assert first <= read.next_offset <= max(first, last)
            found = [(each["offset"], each["value"]) for each in read.objects()]
            assert found == [*enumerate(values)][first : read.next_offset]
        assert (await access.read(log, start)).next_offset == len(values), "many records come at once"


async def test_a_wait_ends_with_records_of_any_log_and_nobody_reads_what_is_led_elsewhere_or_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_broker_service() as broker:
        logs, access = [await publish(broker, "a", topic=each) for each in ("one", "two")], LocalLogs(broker)
        assert [[access.has_records(log, offset) for offset in (0, 1)] for log in logs] == [[True, False]] * 2
        with trio.fail_after(60):
            await access.wait_records({logs[0]: 1, logs[1]: 0})
            async with trio.open_nursery() as nursery:
                nursery.start_soon(access.wait_records, dict.fromkeys(logs, 1))
                await publish(broker, "b", topic="two")
            assert await read_all(broker, logs[1], 1) == [(1, "b")]
            monkeypatch.setattr(broker.node.reader, "read_measured", AsyncMock(side_effect=StorageError("no")))
            assert await outcome(access.read(logs[0], 0)) == "storage_failed"
            assert (await access.read(logs[0], 1)).batches == (), "the storage is not asked"
            logs[1].is_gone = True
            assert access.has_records(logs[1], 9)
            logs[0].transactions.begin(7, Offset(0))
            assert not access.has_records(logs[0], 0), "they are undecided"
            await access.wait_records(dict.fromkeys(logs, 9))
            for call in (access.read(logs[1], 0), access.delete_before(logs[1], 1)):
                assert await outcome(call) == "topic_not_found"
            logs[0].leadership = LeaderAndIsr("b" * 32, 1, is_led=False)
            for moved in (access.wait_records({logs[0]: 0}), access.read(logs[0], 0), access.delete_before(logs[0], 1)):
                assert await outcome(moved) == "not_leader"


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


def test_what_is_no_position_is_refused() -> None:
    parsers: list[tuple[Callable[[Any], object], Sequence[object]]] = [
        (parse_position, NO_POSITIONS),
        (parse_position_text, NO_TEXTS),
    ]
    for parse, value in [(parse, value) for parse, values in parsers for value in values]:
        with pytest.raises(WebError) as caught:
            parse(value)
        assert caught.value.code == "bad_request", value


@attrs.define
class Bounds:
    """Stands for the access to logs and groups: random bounds, committed offsets, and a time that is at an offset."""

    random: Random
    committed: dict[int, int] = attrs.field(factory=dict)
    known: dict[Log, LogOffsets] = attrs.field(factory=dict)

    def add(self, log: Log) -> None:
        self.known[log] = LogOffsets(*sorted(self.random.choices(range(6), k=4)))
        if self.random.random() < 0.7:
            self.committed[log.number] = self.random.randrange(8)

    async def bounds(self, logs: Sequence[Log]) -> dict[Log, LogOffsets]:
        return {log: self.known[log] for log in logs}

    async def find_offset_by_time(self, log: Log, timestamp_ms: int) -> int:
        return timestamp_ms + log.number

    async def fetch_offsets(self, group: str, topic: str) -> dict[int, int]:
        return self.committed if (group, topic) == ("g", "orders") else {}


async def test_a_position_is_an_offset_in_each_log_that_a_reader_can_begin_at() -> None:
    for seed in range(200):
        random, logs = Random(seed), list[Log]()
        access: Any = Bounds(random)
        for number in random.sample(range(4), random.randrange(1, 4)):
            logs.append(make_log(number))
            access.add(logs[-1])
        given = {random.choice(logs).number: random.randrange(8), random.randrange(4): random.randrange(8)}
        first, end, group = random.randrange(8), random.choice(["earliest", "latest"]), random.choice(["g", "new"])
        expected: dict[str, dict[Log, int]] = {"earliest": {}, "latest": {}, "time": {}, "group": {}, "offsets": {}}
        problem, problem_of_first = "", "" if len(logs) == 1 else "bad_request"
        for log, each in access.known.items():
            expected["earliest"][log], expected["latest"][log] = each.start_offset, each.end_offset
            expected["time"][log] = first + log.number
            offset = access.committed.get(log.number) if group == "g" else None
            clamped = None if offset is None else max(min(offset, each.offset_max), each.start_offset)
            expected["group"][log] = expected[end][log] if clamped is None else clamped
            expected["offsets"][log] = max(given.get(log.number, 0), each.start_offset)
            if given.get(log.number, 0) > each.offset_max:
                problem = "offset_out_of_range"
            if len(logs) == 1 and first > each.offset_max:
                problem_of_first = "offset_out_of_range"
        if not problem and given.keys() - {log.number for log in logs}:
            problem = "log_not_found"
        only = {log: max(first, each.start_offset) for log, each in access.known.items()}
        cases: list[tuple[Position, object]] = [
            *(("earliest", expected["earliest"]), ("latest", expected["latest"]), (FromTime(first), expected["time"])),
            *(
                (FromGroup(group, cast(Any, end)), expected["group"]),
                (FromOffsets(given), problem or expected["offsets"]),
            ),
            (FromOffset(first), problem_of_first or only),
        ]
        for position, wanted in cases:
            found = await outcome(find_offsets(access, access, logs, position))
            assert found == wanted, (seed, position)


# Where clients go on when a log has another leader: back only with the availability "branch"


@pytest.mark.parametrize("availability", ["branch", "majority"])
def test_clients_go_back_to_where_a_log_parts_from_what_they_have_read(availability: str) -> None:
    """They wait there if the epoch starts have not arrived yet."""
    log_table = LogTable("here")
    log_table.add_topic(Topic("orders", "id", 1, {"availability": availability}))
    (log,) = log_table.logs("orders")
    for logs, draw in draw_logs():
        known = list[EpochStart]()
        broker: Any = SimpleNamespace(log_table=log_table, epoch_starts=lambda _topic, known=known: [known])
        for former, latest in product(logs.ends, logs.ends):
            whole, other = (logs.contents(epoch_end(each, logs.ends[each])) for each in (former, latest))
            offset, tracker = draw.randint(0, len(whole)), DivergenceTracker(broker)
            wanted = offset if availability == "majority" else shared_length(whole[:offset], other)
            for leader, rows, expected in ((former, [], offset), (latest, [], offset), (latest, logs.rows, wanted)):
                known[:] = rows
                log.leadership = LeaderAndIsr(leader.leader, leader.epoch, is_led=False)
                assert tracker.check(log, offset) == expected
