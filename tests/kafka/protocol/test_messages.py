"""All messages in all versions: their tables are Kafka's, they are read as they were written, and nothing else is."""

from __future__ import annotations

import importlib
import inspect
import io
import tracemalloc
from collections.abc import Iterator
from importlib import resources
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dafka.batches.varints import write_uvarint
from dafka.broker.core.error_codes import ErrorCode
from dafka.errors import EncodingError, WireError
from dafka.kafka.protocol.apis import ADVERTISED, REQUESTS, RESPONSES
from dafka.kafka.protocol.code import groups_of, split_fields
from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.protocol.frames import decode_request, encode_request
from dafka.kafka.protocol.messages.logs import FetchRequest
from dafka.kafka.protocol.messages.offsets import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from dafka.kafka.protocol.reading import ITEMS_MAX, read_uvarint, reader_of
from dafka.kafka.protocol.tables import Field, Kind, Message, String, Struct, Versions, field, fields_of
from dafka.kafka.protocol.writing import Buffer, writer_of
from tests.kafka.protocol.compare_messages import compare, parse_description, snake
from tests.kafka.protocol.hostile import honest_frames, hostile_frames, outcome
from tests.kafka.protocol.samples import MESSAGES, NUMBER_BITS, random_message, versions_of
from tests.kafka.server.clients import import_kafka

NULL_DEFAULTS = {
    "FetchResponse": ["responses.partitions.aborted_transactions"],
    "OffsetFetchRequest": ["topics"],
    "FindCoordinatorResponse": ["error_message"],
    "CreateTopicsResponse": ["topics.error_message", "topics.configs"],
    "DescribeConfigsResponse": ["results.configs.documentation"],
    "DescribeQuorumResponse": ["error_message", "topics.partitions.error_message"],
}
"""Fields that are null by default where Kafka states no default; see docs/reference/kafka-messages.md."""

NOT_DESCRIBED = {
    f"{api}{kind}"
    for api in (
        "UnregisterBroker",
        "ConsumerGroupHeartbeat",
        "ConsumerGroupDescribe",
        "GetTelemetrySubscriptions",
        "PushTelemetry",
        "ShareGroupHeartbeat",
        "ShareGroupDescribe",
        "ShareFetch",
        "ShareAcknowledge",
        "DescribeShareGroupOffsets",
        "AlterShareGroupOffsets",
        "DeleteShareGroupOffsets",
    )
    for kind in ("Request", "Response")
}
"""The messages that kafka-python does not have. kio has them; see the test of what is read and written."""

NOT_ALL = {
    "LIST_OFFSETS": "1-11",
    "OFFSET_COMMIT": "1-10",
    "OFFSET_FETCH": "1-10",
    "INIT_PRODUCER_ID": "0-5",
    "ADD_PARTITIONS_TO_TXN": "0-3",
}
"""The versions that are offered of the APIs of which Kafka describes others, too."""

RENAMED = {-1, 0, 6, 10, 17, 39}
"""Codes whose names in kafka-python are not those of Kafka 4.0."""


def written(message: Message, version: int) -> bytes:
    parts: list[Buffer] = []
    writer_of(type(message), version)(message, parts)
    return b"".join(parts)


def test_tables_are_those_that_kafka_publishes() -> None:
    """kafka-python has Kafka's descriptions of nearly all of them."""
    folder = resources.files(import_kafka()) / "protocol" / "schemas" / "resources"
    for name, message in MESSAGES.items():
        if name in NOT_DESCRIBED:
            continue
        description = parse_description((folder / f"{name}.json").read_text())
        assert message.VERSIONS.last == Versions.parse(description["validVersions"]).last
        found = [line.partition(": default: ")[0].strip("`") for line in compare(message, description).differences]
        assert found == NULL_DEFAULTS.get(name, [])


def test_error_codes_are_those_of_kafka() -> None:
    classes: list[Any] = [each for _, each in inspect.getmembers(import_kafka().errors, inspect.isclass)]
    theirs = {each.errno: each.message for each in classes if isinstance(getattr(each, "errno", None), int)}
    ours = {code.value: code.name for code in ErrorCode}
    assert len(theirs) > 100
    assert set(ours) == set(range(-1, 134)) >= set(theirs)
    assert {code for code in theirs if theirs[code] != ours[code]} == RENAMED


def test_every_api_has_a_request_and_a_response_and_its_advertised_versions_are_described() -> None:
    assert set(REQUESTS) == set(RESPONSES) == set(ApiKey) == set(ADVERTISED)
    for key, request in REQUESTS.items():
        assert request.VERSIONS == RESPONSES[key].VERSIONS
        assert request.__name__ == f"{RESPONSES[key].__name__.removesuffix('Response')}Request"
        assert snake(request.__name__).upper() == f"{ApiKey(key).name}_REQUEST"
        name = ApiKey(key).name
        assert ADVERTISED[ApiKey(key)] == (Versions.parse(NOT_ALL[name]) if name in NOT_ALL else request.VERSIONS)
    # librdkafka does not compress otherwise (confluentinc/librdkafka#5130).
    assert ADVERTISED[ApiKey.PRODUCE].first == 0


def test_every_version_is_read_as_it_was_written_by_us_and_by_kio() -> None:
    from kio.serial import entity_reader, entity_writer

    for name, table in MESSAGES.items():
        random = Random(name)
        for version in versions_of(table):
            for _ in range(4):
                message = random_message(table, version, random)
                data = written(message, version)
                assert reader_of(table, version)(b"before" + data + b"after", 6, ITEMS_MAX) == (message, 6 + len(data))
            entity = kio_entity(table, version)
            for _ in range(2 if entity else 0):
                data = written(random_message(table, version, random, tame=True), version)
                read, size = entity_reader(entity)(data, 0)
                assert size == len(data)
                rewritten = io.BytesIO()
                entity_writer(entity)(rewritten, read)
                assert rewritten.getvalue() == data


def kio_entity(message: type[Message], version: int) -> Any:
    """Return kio's class for a version of a message; None if it has none."""
    kind = "Request" if message.__name__.endswith("Request") else "Response"
    api = message.__name__.removesuffix(kind)
    try:
        module = importlib.import_module(f"kio.schema.{snake(api)}.v{version}.{kind.lower()}")
    except ModuleNotFoundError:
        return None
    return getattr(module, message.__name__)


def groups_in(message: Struct, version: int, path: str) -> Iterator[tuple[Struct, list[Field], str]]:
    """Yield the fields of a message and of what is in it, those together that are written together."""
    plain, tagged, _ = split_fields(fields_of(type(message)), version)
    for group in [*groups_of(plain), *([each] for each in tagged)]:
        yield message, group, f"{path}.{group[0].name}"
        value = getattr(message, group[0].name)
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, Struct):
                yield from groups_in(each, version, f"{path}.{group[0].name}")


def wrong_values(each: Field, version: int, *, is_flexible: bool) -> Iterator[object]:
    if not each.nullable.has(version) and each.struct is None and each.kind is not Kind.BOOLEAN:
        yield None
    if each.kind in NUMBER_BITS:
        limit = 1 << NUMBER_BITS[each.kind] - 1
        yield from ([limit], [-limit - 1]) if each.is_array else (limit, -limit - 1, "1")
    if each.kind is Kind.STRING:
        wrong = (3, "\ud800", *(() if is_flexible else ("x" * 2**15,)))
        yield from ([value] for value in wrong) if each.is_array else wrong


def test_values_that_a_version_cannot_carry_are_refused_by_the_name_of_their_field() -> None:
    for name, table in MESSAGES.items():
        for version in {table.VERSIONS.first, table.VERSIONS.last}:
            message = random_message(table, version, Random(name))
            is_flexible = table.FLEXIBLE.has(version)
            for owner, group, path in groups_in(message, version, name):
                for each in group:
                    right = getattr(owner, each.name)
                    for wrong in wrong_values(each, version, is_flexible=is_flexible):
                        setattr(owner, each.name, wrong)
                        with pytest.raises(EncodingError) as caught:
                            written(message, version)
                        assert caught.value.field == path
                    setattr(owner, each.name, right)


def test_hostile_frames() -> None:
    outcomes = {outcome(frame) for frame in hostile_frames(seed=1, count=10_000)}
    assert {"well-formed", "request header", "client_id", "tagged fields", "topics", "name", "records"} <= outcomes


@pytest.mark.long
def test_many_hostile_frames() -> None:
    assert outcome(honest_frames()[0]) == "well-formed"
    for frame in hostile_frames(seed=2, count=1_000_000):
        outcome(frame)


def test_every_cut_frame_is_refused() -> None:
    """At each byte of the first 200, and behind them at every seventh."""
    for frame in honest_frames():
        frame.decode()
        size = len(frame.data)
        for end in (*range(min(size, 200)), *range(200, size, 7), size - 1):
            with pytest.raises(WireError):
                frame._replace(data=frame.data[:end]).decode()


def offset_fetch(groups: int, topics: int, indexes: list[int]) -> bytes:
    topic = OffsetFetchRequestTopics(name="", partition_indexes=indexes)
    group = OffsetFetchRequestGroup(group_id="", topics=[topic] * topics)
    return encode_request(OffsetFetchRequest(groups=[group] * groups), 8, 1)[4:]


@pytest.mark.parametrize(
    ("frame", "items_max", "bytes_max"),
    [
        (offset_fetch(1, 300_000, []), ITEMS_MAX, 100_000),  # a topic has 3 bytes here, and over 100 in memory
        (offset_fetch(2000, 1, [1]), 3000, 1_000_000),  # the limit counts the items of all arrays together
    ],
    ids=["small items", "many arrays"],
)
def test_refused_frame_takes_little_memory(frame: bytes, items_max: int, bytes_max: int) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(WireError):
            decode_request(frame, items_max=items_max)
        assert tracemalloc.get_traced_memory()[1] < bytes_max
    finally:
        tracemalloc.stop()


@given(st.integers(0, 2**32 - 1))
def test_unsigned_numbers(number: int) -> None:
    data = write_uvarint(number)
    assert read_uvarint(b"\xff" + data, 1) == (number, 1 + len(data))


class Sample(Struct):
    name: String
    label: String | None = field("2+", default="none")
    parts: list[String] = field("1+", default=[])


def test_structs_have_the_defaults_of_their_fields_and_no_other_fields() -> None:
    first, second = Sample(name="a"), Sample(name="a")
    assert (first.label, first.parts) == ("none", [])
    assert first.parts is not second.parts
    assert first == Sample(name="a", parts=[]) != Sample(name="b")
    assert first != "a"
    assert repr(first) == "Sample(name='a', label='none', parts=[])"
    with pytest.raises(AttributeError):
        first.nmae = "b"  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="name"):
        Sample()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="nmae"):
        Sample(name="a", nmae="b")  # type: ignore[call-arg]


def test_versions() -> None:
    for text, versions in (("3", (3, 3)), ("3-5", (3, 5)), ("3+", (3, 2**15 - 1)), ("none", (0, -1))):
        assert Versions.parse(text) == versions
    for text in ("", "3-", "-3", "3++", "all"):
        with pytest.raises(ValueError, match="expected versions"):
            Versions.parse(text)
    with pytest.raises(ValueError, match="FetchRequest has versions 0-18, not 19"):
        reader_of(FetchRequest, 19)
