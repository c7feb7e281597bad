"""Publishing for HTTP and WebSocket, and reading again what was published."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, Literal, cast
from unittest.mock import AsyncMock

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from dafka import Config
from dafka.batches import RecordColumns, decode_batch, encode_batch
from dafka.broker.broker import Broker
from dafka.broker.core.log.log import Log
from dafka.broker.core.log.partitioner import log_of_key
from dafka.errors import ConfigError, NoControllerError
from dafka.http.logs.local_logs import LocalLogs
from dafka.http.logs.log_access import find_logs
from dafka.http.logs.publishing import ProducerSequence, Published, Publisher
from dafka.http.logs.records import JsonRecord, encode_records, parse_json_lines, parse_records, record_objects
from dafka.http.server.documents import decode_document, encode_document
from dafka.http.server.errors import WebError
from dafka.packed_bytes import Repeated
from dafka.records import NO_TIMESTAMP
from tests.http.running import STORAGES, open_broker_service, outcome


def texts(*values: str, keys: Sequence[bytes] | None = None) -> RecordColumns:
    return RecordColumns([value.encode() for value in values], keys, None, Repeated(5, len(values)))


async def values_of(broker: Broker, log: Log) -> list[str]:
    found = []
    offset: int = log.index.start_offset
    while (read := await LocalLogs(broker).read(log, offset)).next_offset > offset:
        found += [str(each["value"]) for each in read.objects()]
        offset = read.next_offset
    return found


@pytest.fixture(params=STORAGES, ids=["memory", "sqlite", "filelog"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(request.param).format(tmp_path)


async def test_published_records_and_batches_are_read_in_order(storage: str) -> None:
    async with open_broker_service(storage) as broker:
        publisher = Publisher(broker, LocalLogs(broker))
        assert await publisher.publish("orders", texts("a", "b"), SOURCE) == [Published(0, 0, 2)]
        batches = [encode_batch(0, [b"c", b"d"], timestamps=5), encode_batch(0, [b"e"], timestamps=6)]
        publication = await publisher.begin_batches("orders", 0, b"".join(batches), SOURCE)
        assert await publication.wait() == [Published(0, 2, 3)]
        assert await publisher.publish("orders", texts("f"), SOURCE, log=0) == [Published(0, 5, 1)]
        (log,) = find_logs(broker, "orders")
        assert await values_of(broker, log) == [*"abcdef"]
        with pytest.raises(WebError) as caught:
            await publisher.publish("$logs", texts("a"), SOURCE)
        assert caught.value.code == "bad_request", "no topic can have this name"


SOURCE = "127.0.0.1"

PLAIN = encode_batch(0, [b"a"], timestamps=5)
NUMBERED: dict[str, Any] = {"timestamps": 5, "producer_id": 5, "producer_epoch": 0}
NO_BATCHES = [
    *(b"", b"garbage", PLAIN[:-1], PLAIN[:-1] + b"x"),
    encode_batch(0, [b"a"], **NUMBERED, is_control=True),
    encode_batch(0, [b"a"], **NUMBERED, base_sequence=0, is_transactional=True),
]


async def test_what_is_wrong_is_refused_and_none_of_it_is_published() -> None:
    """The topic exists, with two logs; another one is not created by publishing to it."""
    async with open_broker_service(config=Config().with_kafka(auto_create_topics="off")) as broker:
        publisher = Publisher(broker, LocalLogs(broker))
        await broker.node.admin.create_topic("orders", 2, {"max.message.bytes": "200"})
        large = texts("small", "small", "small", "small", "l" * 300, keys=[b"a", b"b", b"c", b"d", b"e"])
        first = await publisher.begin("orders", texts("a"), SOURCE, log=1, producer=ProducerSequence(7, 1, 0))
        assert await first.wait() == [Published(1, 0, 1)]
        wrong: list[tuple[str, RecordColumns, dict[str, Any], str, str]] = [
            ("none", texts("a"), {}, "topic_not_found", "there is no topic 'none'"),
            ("orders", texts("a"), {"log": 2}, "log_not_found", "the topic 'orders' has the logs 0 to 1, and not 2"),
            ("orders", large, {}, "too_large", "expected at most 200 bytes of records"),
            ("orders", texts("a"), {"producer": ProducerSequence(7, 1, 1)}, "bad_request", "must name theirs"),
            ("orders", texts("c"), {"log": 1, "producer": ProducerSequence(7, 1, 2)}, "conflict", "are missing"),
            ("orders", texts("a"), {"log": 1, "producer": ProducerSequence(7, 0, 1)}, "conflict", "a later epoch"),
        ]
        for topic, records, options, code, message in wrong:
            with pytest.raises(WebError, match=message) as caught:
                await publisher.begin(topic, records, SOURCE, **options)
            assert caught.value.code == code
        await broker.node.admin.create_topic("latest", 2, {"cleanup.policy": "compact"})
        some = texts(*"abcdef", keys=cast(Any, [b"a", b"b", b"c", b"d", b"e", None]))
        assert await outcome(publisher.begin("latest", some, SOURCE)) == "bad_request", "compaction needs keys"
        assert [log.high_watermark for log in find_logs(broker, "latest")] == [0, 0]
        two = encode_batch(0, [b"x" * 60], timestamps=5) * 2
        assert await outcome(publisher.begin_batches("orders", 0, two, SOURCE)) == "too_large"
        for data in NO_BATCHES:
            with pytest.raises(WebError) as caught:
                await publisher.begin_batches("orders", 0, data, SOURCE)
            assert caught.value.code == "bad_request"
        assert caught.value.message == "expected record batches that belong to no transaction"
        assert [log.high_watermark for log in find_logs(broker, "orders")] == [0, 1]
        await publisher.publish("orders", texts("small"), SOURCE)
        assert sum(log.high_watermark for log in find_logs(broker, "orders")) == 2


async def test_what_a_producer_sends_again_is_appended_once(storage: str) -> None:
    async with open_broker_service(storage) as broker:
        publisher = Publisher(broker, LocalLogs(broker))
        await publisher.prepare("orders", may_create=True)
        first = await publisher.begin("orders", texts("a", "b"), SOURCE, producer=ProducerSequence(7, 0, 0))
        again = await publisher.begin("orders", texts("a", "b"), SOURCE, producer=ProducerSequence(7, 0, 0))
        assert await again.wait() == await first.wait() == [Published(0, 0, 2)]
        for sequence in range(2, 8):
            late = await publisher.begin("orders", texts("x"), SOURCE, producer=ProducerSequence(7, 0, sequence))
            await late.wait()
        forgotten = await publisher.begin("orders", texts("a", "b"), SOURCE, producer=ProducerSequence(7, 0, 0))
        assert await forgotten.wait() == [Published(0, None, 2)]
        (log,) = find_logs(broker, "orders")
        assert await values_of(broker, log) == ["a", "b", *"xxxxxx"]


async def test_topic_that_is_deleted_before_records_are_durable_is_said() -> None:
    async with open_broker_service() as broker:
        publisher = Publisher(broker, LocalLogs(broker))
        await publisher.publish("orders", texts("a"), SOURCE)
        producer = ProducerSequence(7, 0, 0)
        publications = [await publisher.begin("orders", texts("b"), SOURCE, producer=producer) for _ in range(2)]
        await broker.node.admin.delete_topic("orders")
        for publication in publications:
            with trio.fail_after(60), pytest.raises(WebError, match="there is no topic 'orders'"):
                await publication.wait()


async def test_a_topic_is_created_only_by_a_broker_that_knows_all_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    cases: list[tuple[Literal["on", "off"], bool, str, int]] = [
        *(("on", True, "new", 1), ("on", True, "old", 0)),
        *(("on", False, "new", 0), ("off", True, "new", 0)),
    ]
    for auto, creates_topics, topic, waits in cases:
        async with open_broker_service(config=Config().with_kafka(auto_create_topics=auto)) as broker:
            await broker.node.admin.create_topic("old")
            publisher = Publisher(broker, LocalLogs(broker), creates_topics=creates_topics)
            wait = AsyncMock()
            monkeypatch.setattr(broker.node.leases, "wait_metadata", wait)
            await publisher.prepare(topic, may_create=True)
            assert wait.await_count == waits
            found = await outcome(publisher.publish(topic, texts("a"), SOURCE))
            assert found == ([Published(0, 0, 1)] if waits or topic == "old" else "topic_not_found")


async def test_a_topic_that_cannot_be_created_is_told_unless_somebody_else_has_created_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_broker_service() as broker:
        access, create = LocalLogs(broker), broker.node.admin.create_topic
        monkeypatch.setattr(access, "wait_capacity", wait_capacity := AsyncMock())
        publisher = Publisher(broker, access)

        async def create_first(topic: str) -> None:
            await create(topic)
            raise ConfigError("it exists")

        for fail, code in (
            (AsyncMock(side_effect=ConfigError("no")), "bad_request"),
            (AsyncMock(side_effect=NoControllerError("no")), "controller_unavailable"),
            (create_first, None),
        ):
            monkeypatch.setattr(broker.node.admin, "create_topic", fail)
            assert await outcome(publisher.prepare("orders", may_create=True)) == code
        monkeypatch.setattr(broker.node.admin, "create_topic", AsyncMock())
        await publisher.prepare("others", may_create=False)
        assert await outcome(publisher.begin("others", texts("a"), SOURCE)) == "topic_not_found"
        cast(Any, broker.node.admin.create_topic).assert_not_called()
        assert wait_capacity.await_count == 4


async def test_each_record_goes_whole_to_the_log_of_its_key_and_those_without_keys_take_turns() -> None:
    random, turns = Random(3), 0
    async with open_broker_service(config=Config().with_kafka(auto_create_topics="off")) as broker:
        publisher = Publisher(broker, LocalLogs(broker))
        for number in range(1, 4):
            await broker.node.admin.create_topic(f"t{number}", number)
        assert [log.number for log in find_logs(broker, "t3", [2, 0, 2])] == [0, 2]
        logs = {each: [list[JsonRecord]() for _ in range(each)] for each in (1, 2, 3)}
        for time_ms in range(60):
            log_count = random.choice([1, 2, 3, 3])
            records: list[JsonRecord] = []
            for place in range(random.randrange(1, 6)):
                key = random.choice([{}, {}, {"key": "a"}, {"key": "b"}, {"key": ""}, {"key_base64": "/w=="}])
                headers = random.choice([{}, {}, {"headers": [["h", f"{place}"], ["none", None]]}])
                records.append(
                    {"value": random.choice([f"{place}", None]), "timestamp": time_ms + place} | key | headers
                )
            log = random.choice([None, None, random.randrange(log_count)])
            keyless = turns % log_count
            turns += log is None and log_count > 1
            counts = Counter[int]()
            for each in records:
                key_bytes = b"\xff" if "key_base64" in each else each["key"].encode() if "key" in each else None
                chosen = log if log is not None else keyless if key_bytes is None else log_of_key(key_bytes, log_count)
                logs[log_count][chosen].append({"offset": len(logs[log_count][chosen]), **each})
                counts[chosen] += 1
            expected = [
                Published(number, len(logs[log_count][number]) - count, count)
                for number, count in sorted(counts.items())
            ]
            publication = await publisher.begin(f"t{log_count}", parse_records(records, 0), SOURCE, log=log)
            assert (publication.record_count, await publication.wait()) == (len(records), expected)
            assert publication.is_durable
        for log_count, contents in logs.items():
            for at, content in zip(find_logs(broker, f"t{log_count}"), contents, strict=True):
                read = await LocalLogs(broker).read(at, 0)
                assert (read.objects(), read.next_offset, read.record_count) == (content, len(content), len(content))


# Records as JSON and back


NOW_MS = 1_700_000_000_000

TEXTS = st.text(max_size=30) | st.sampled_from(["\x7f", '"', "\\", "\0", ""])
CONTENTS = st.none() | st.binary(max_size=30) | TEXTS.map(str.encode)
TIMES = st.integers(0, 2**53 - 1)
HEADERS = st.lists(st.tuples(st.text(max_size=10), CONTENTS), max_size=3).map(tuple)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(TEXTS.map(str.encode), TIMES), min_size=1, max_size=20)
    | st.lists(st.tuples(CONTENTS, TIMES, CONTENTS, HEADERS), min_size=1, max_size=8),
    st.sampled_from([None, 5, NO_TIMESTAMP]),
)
def test_records_come_back_as_they_were(rows: list[tuple[Any, ...]], time_ms: int | None) -> None:
    """Texts without keys and headers take a shorter way, and so do records of the same time, which can be unknown."""
    values, times, *more = zip(*rows, strict=True)
    keys, headers = more or (None, None)
    given = times if time_ms is None else time_ms
    data = encode_batch(7, values, keys=keys, headers=headers, timestamps=given)
    batch = decode_batch(data, bytes_max=2**20)
    objects = record_objects(batch, 7)
    assert json.loads(b"[%b]" % encode_records(batch, 7)) == objects
    assert [each["offset"] for each in objects] == [*range(7, 7 + len(rows))]
    known = {None: [*times], NO_TIMESTAMP: [None] * len(rows)}.get(time_ms, [time_ms] * len(rows))
    assert [each.get("timestamp") for each in objects] == known
    found = parse_records(decode_document(encode_document(objects)), NO_TIMESTAMP)
    again = encode_batch(7, found.values, keys=found.keys, headers=found.headers, timestamps=found.timestamps)
    assert decode_batch(again, bytes_max=2**20) == batch


def test_plain_records_have_only_values() -> None:
    for key in (None, b"k"):
        found = parse_records([{"value": each} | ({"key": "k"} if key else {}) for each in ("a", "ä")], NOW_MS)
        assert (list(found.values), found.keys, found.headers) == ([b"a", "ä".encode()], key and [key] * 2, None)
        assert list(found.timestamps) == [NOW_MS, NOW_MS]
    tombstone = parse_records([{"key": "k", "value": None}], NOW_MS)
    assert (list(tombstone.values), tombstone.keys, list(tombstone.timestamps)) == ([None], [b"k"], [NOW_MS])


def test_bytes_that_are_no_text_are_in_base64() -> None:
    columns = RecordColumns([b"\xff", b"text"], [None, b"\xfe"], [(("h", b"\xfd"), ("n", None)), ()], [5, -1])
    objects = record_objects(columns, 0)
    assert objects == [
        {"offset": 0, "timestamp": 5, "value_base64": "/w==", "headers": [["h", {"base64": "/Q=="}], ["n", None]]},
        {"offset": 1, "key_base64": "/g==", "value": "text"},
    ]
    found = parse_records(objects, NOW_MS)
    assert (list(found.values), found.keys) == ([b"\xff", b"text"], [None, b"\xfe"])


REFUSED: list[tuple[object, str]] = [
    (None, "records: expected a list"),
    ([], "records: expected a list"),
    ({}, "records: expected a list"),
    (["text"], "records[0]: expected `object`, got `str`"),
    ([{"value": "a"}, 5], "records[1]: expected `object`, got `int`"),
    ([{"value": "a"}, {}], "records[1]: expected value or value_base64"),
    ([{"vaule": "a"}], "records[0]: object contains unknown field `vaule`"),
    ([{"value": "a"}, {"value": 5}], "records[1].value: expected `str | null`, got `int`"),
    ([{"value": True}], "records[0].value: expected `str | null`, got `bool`"),
    ([{"value": {"a": 1}}], "records[0].value: expected `str | null`, got `object`"),
    ([{"value": "a", "value_base64": "YQ=="}], "records[0]: expected value or value_base64, not both"),
    ([{"value_base64": "%%"}], "records[0].value_base64: invalid base64"),
    ([{"value_base64": 5}], "records[0].value_base64: expected `bytes`, got `int`"),
    ([{"value": "a", "key": 5}], "records[0].key: expected `str | null`, got `int`"),
    ([{"value": "a", "key_base64": "a"}], "records[0].key_base64: invalid base64"),
    ([{"value": "a", "timestamp": 1.5}], "records[0].timestamp: expected `int | null`, got `float`"),
    ([{"value": "a", "timestamp": -1}], "records[0].timestamp: expected `int` >= 0"),
    ([{"value": "a", "timestamp": 2**53}], "records[0].timestamp: expected `int` <= 9007199254740991"),
    ([{"value": "a", "timestamp": True}], "records[0].timestamp: expected `int | null`, got `bool`"),
    ([{"value": "a", "headers": {"a": "b"}}], "records[0].headers: expected `array | null`, got `object`"),
    ([{"value": "a", "headers": [["a"]]}], "records[0].headers[0]: expected `array` of length 2, got 1"),
    ([{"value": "a", "headers": [[1, "a"]]}], "records[0].headers[0][0]: expected `str`, got `int`"),
    ([{"value": "a", "headers": [["a", 1]]}], "records[0].headers[0][1]: expected `str | object | null`, got `int`"),
    ([{"value": "a", "headers": [["a", {"base64": "a"}]]}], "records[0].headers[0][1].base64: invalid base64"),
    ([{"value": "\ud800"}], "records[0].value: expected text that UTF-8 can encode"),
    ([{"value": "a", "headers": [["\ud800", "a"]]}], "records[0].headers: expected text that UTF-8"),
]


def test_error_names_the_record_and_what_is_expected() -> None:
    for records, message in REFUSED:
        with pytest.raises(WebError) as caught:
            parse_records(records, NOW_MS)
        assert caught.value.code == "bad_request"
        assert caught.value.message.startswith(message)


def test_json_lines_are_records() -> None:
    found = parse_json_lines(b'{"value": "a"}\r\n\n{"value": "b"}\n  \n', NOW_MS)
    assert list(found.values) == [b"a", b"b"]
    with pytest.raises(WebError, match="line 3: expected JSON"):
        parse_json_lines(b'{"value": "a"}\n\n{"value": \n', NOW_MS)
