"""The tables say what Kafka's published definitions say."""

from __future__ import annotations

from typing import Any

import pytest

from dafka.errors import EncodingError
from dafka.kafka.protocol.apis import ADVERTISED, REQUESTS, RESPONSES
from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.protocol.frames import encode_request
from dafka.kafka.protocol.messages.logs import FetchRequest, PartitionProduceData, ProduceRequest, TopicProduceData
from dafka.kafka.protocol.reading import reader_of
from dafka.kafka.protocol.tables import Message, String, Struct, Versions, field, fields_of
from tests.kafka.protocol.layouts import (
    messages,
    our_layout,
    published,
    published_defaults,
    published_layout,
    snake,
)


def versions_of(message: type[Message]) -> range:
    return range(message.VERSIONS.first, message.VERSIONS.last + 1)


@pytest.mark.parametrize("name", messages())
def test_published_definitions(name: str) -> None:
    message, definition = messages()[name], published(name)
    common = {each["name"]: each["fields"] for each in definition.get("commonStructs", [])}
    assert message.VERSIONS.last == Versions.parse(definition["validVersions"]).last
    assert Versions.parse(definition["flexibleVersions"]) == message.FLEXIBLE
    for version in versions_of(message):
        assert our_layout(message, version) == published_layout(definition["fields"], version, common)
    check_defaults(message, definition["fields"], common)


def check_defaults(table: type[Struct], fields: list[dict[str, Any]], common: dict[str, Any]) -> None:
    ours = {each.name: each for each in fields_of(table)}
    for name, default in published_defaults(fields).items():
        assert (ours[name].default, ours[name].is_required) == (default, False)
    for each in fields:
        struct = ours[snake(each["name"])].struct
        if struct is not None:
            check_defaults(struct, each.get("fields") or common[each["type"].removeprefix("[]")], common)


def test_every_api_has_a_request_and_a_response() -> None:
    assert set(REQUESTS) == set(RESPONSES) == set(ApiKey) == set(ADVERTISED)
    for key, request in REQUESTS.items():
        assert request.VERSIONS == RESPONSES[key].VERSIONS
        assert request.__name__ == f"{RESPONSES[key].__name__.removesuffix('Response')}Request"
        assert snake(request.__name__).upper() == f"{ApiKey(key).name}_REQUEST"
        assert published(request.__name__)["apiKey"] == request.API_KEY


def test_advertised_versions_are_described() -> None:
    for key, advertised in ADVERTISED.items():
        known = REQUESTS[key].VERSIONS
        assert known.first <= advertised.first <= advertised.last <= known.last
    # librdkafka does not compress otherwise (confluentinc/librdkafka#5130), and topics have no ids.
    assert ADVERTISED[ApiKey.PRODUCE].first == 0
    assert not any(
        item.kind == "uuid" and item.tag is None
        for key in (ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH)
        for topic in our_layout(REQUESTS[key], ADVERTISED[key].last)
        for item in topic.items
    )


class Sample(Struct):
    """A table for the tests below."""

    name: String
    label: String | None = field("2+", default="none")
    parts: list[String] = field("1+", default=[])


class TestStruct:
    def test_defaults(self) -> None:
        first, second = Sample(name="a"), Sample(name="a")
        assert (first.label, first.parts) == ("none", [])
        assert first.parts is not second.parts

    def test_equality_and_representation(self) -> None:
        assert Sample(name="a") == Sample(name="a", parts=[]) != Sample(name="b")
        assert Sample(name="a") != "a"
        assert repr(Sample(name="a")) == "Sample(name='a', label='none', parts=[])"

    def test_slots(self) -> None:
        with pytest.raises(AttributeError):
            Sample(name="a").nmae = "b"  # type: ignore[attr-defined]

    def test_required_field(self) -> None:
        with pytest.raises(TypeError, match="name"):
            Sample()  # type: ignore[call-arg]

    def test_unknown_field(self) -> None:
        with pytest.raises(TypeError, match="nmae"):
            Sample(name="a", nmae="b")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("text", "versions"), [("3", (3, 3)), ("3-5", (3, 5)), ("3+", (3, 2**15 - 1)), ("none", (0, -1))]
)
def test_versions(text: str, versions: tuple[int, int]) -> None:
    assert Versions.parse(text) == versions


@pytest.mark.parametrize("text", ["", "3-", "-3", "3++", "all"])
def test_invalid_versions(text: str) -> None:
    with pytest.raises(ValueError, match="expected versions"):
        Versions.parse(text)


def test_unknown_version() -> None:
    with pytest.raises(ValueError, match="FetchRequest has versions 0-18, not 19"):
        reader_of(FetchRequest, 19)


@pytest.mark.parametrize(
    ("change", "field_name"),
    [
        ({"acks": 2**15}, "ProduceRequest.acks"),
        ({"transactional_id": 3}, "ProduceRequest.transactional_id"),
        ({"topic_data": None}, "ProduceRequest.topic_data"),
        ({"topic_data": [TopicProduceData(name="x" * 2**15, partition_data=[])]}, "ProduceRequest.topic_data.name"),
        ({"topic_data": [TopicProduceData(name="\ud800", partition_data=[])]}, "ProduceRequest.topic_data.name"),
        (
            {
                "topic_data": [
                    TopicProduceData(name="x", partition_data=[PartitionProduceData(index=2**31, records=b"")])
                ]
            },
            "ProduceRequest.topic_data.partition_data.index",
        ),
    ],
)
def test_value_that_a_version_cannot_carry(change: dict[str, Any], field_name: str) -> None:
    request = ProduceRequest(acks=1, timeout_ms=0, topic_data=[])
    for name, value in change.items():
        setattr(request, name, value)
    with pytest.raises(EncodingError) as caught:
        encode_request(request, 8, 0)
    assert caught.value.field == field_name
