"""The comparison of messages finds each kind of difference, in small descriptions made for these tests."""

from __future__ import annotations

from typing import Any

import pytest

from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.protocol.tables import NIL, Boolean, Int16, Int32, Message, String, Struct, Uuid, Versions, field
from tests.kafka.protocol.compare_messages import Comparison, compare, compare_all, make_page


class Part(Struct):
    index: Int32
    label: String | None = field("1+", default=None)


class SampleMessage(Message, versions="0-3", flexible="2+"):
    API_KEY = ApiKey.FETCH
    name: String
    count: Int16 = field("1+", default=-1)
    is_new: Boolean = field("2+", tag=0, default=False)
    topic_id: Uuid = field("3+", default=NIL)
    parts: list[Part] | None = field(nullable="1+")


def describe(name: str, kind: str, versions: str = "0+", **others: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "versions": versions, **others}


@pytest.fixture
def description() -> dict[str, Any]:
    label = describe("Label", "string", "1+", nullableVersions="1+", default="null")
    fields = [
        describe("Name", "string"),
        describe("Count", "int16", "1+", default="-1"),
        describe("IsNew", "bool", "2+", taggedVersions="2+", tag=0, default="false"),
        describe("TopicId", "uuid", "3+"),
        describe("Parts", "[]Part", nullableVersions="1+", fields=[describe("Index", "int32"), label]),
    ]
    return {"apiKey": 1, "name": "SampleMessage", "validVersions": "0-3", "flexibleVersions": "2+", "fields": fields}


DIFFERENT: list[tuple[int, dict[str, Any], str]] = [
    (0, {"name": "Title"}, "`title`: exists: yes in Kafka, no in dafka (versions 0-3)"),
    (0, {"name": "Title"}, "`name`: exists: no in Kafka, yes in dafka (versions 0-3)"),
    (0, {"type": "int32"}, "`name`: type: int32 in Kafka, string in dafka (versions 0-3)"),
    (0, {"type": "[]string"}, "`name`: type: []string in Kafka, string in dafka (versions 0-3)"),
    (0, {"nullableVersions": "2+"}, "`name`: nullable: yes in Kafka, no in dafka (versions 2-3)"),
    (0, {"default": "x"}, "`name`: default: x in Kafka, none in dafka"),
    (4, {"nullableVersions": "2+"}, "`parts`: nullable: no in Kafka, yes in dafka (versions 1)"),
    (1, {"versions": "2+"}, "`count`: exists: no in Kafka, yes in dafka (versions 1)"),
    (1, {"default": "7"}, "`count`: default: 7 in Kafka, -1 in dafka"),
    (2, {"default": "true"}, "`is_new`: default: true in Kafka, false in dafka"),
    (2, {"tag": 1}, "`is_new`: tag: 1 in Kafka, 0 in dafka (versions 2-3)"),
    (2, {"taggedVersions": "3+"}, "`is_new`: tag: none in Kafka, 0 in dafka (versions 2)"),
]


@pytest.mark.parametrize(("number", "change", "expected"), DIFFERENT)
def test_different_field(description: dict[str, Any], number: int, change: dict[str, Any], expected: str) -> None:
    assert compare(SampleMessage, description) == Comparison("SampleMessage", Versions(0, 3), [])
    description["fields"][number].update(change)
    assert expected in compare(SampleMessage, description).differences


def test_another_order_is_different(description: dict[str, Any]) -> None:
    description["fields"][4]["fields"].reverse()
    orders = "name, count, parts, parts.label, parts.index", "name, count, parts, parts.index, parts.label"
    expected = f"order: {orders[0]} in Kafka, {orders[1]} in dafka (versions 1)"
    assert compare(SampleMessage, description).differences[0] == expected


def test_page_names_messages_that_were_not_found() -> None:
    comparisons = compare_all({})
    assert all(each.versions is None for pair in comparisons.values() for each in pair)
    page = make_page(comparisons, "4.0.0")
    assert "| Heartbeat | 0-4 | none | not described | none | not described |" in page
