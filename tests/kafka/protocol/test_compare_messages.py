"""The comparison of messages finds each kind of difference, in small descriptions made for these tests."""

from __future__ import annotations

from typing import Any

import pytest

from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.protocol.tables import NIL, Boolean, Int16, Int32, Message, String, Struct, Uuid, Versions, field
from tests.kafka.protocol.compare_messages import Comparison, compare, compare_all, make_page


class Part(Struct):
    """An item of `SampleMessage.parts`."""

    index: Int32
    label: String | None = field("1+", default=None)


class SampleMessage(Message, versions="0-3", flexible="2+"):
    """A message for these tests."""

    API_KEY = ApiKey.FETCH
    name: String
    count: Int16 = field("1+", default=-1)
    is_new: Boolean = field("2+", tag=0, default=False)
    topic_id: Uuid = field("3+", default=NIL)
    parts: list[Part] | None = field(nullable="1+")


@pytest.fixture
def description() -> dict[str, Any]:
    fields: list[dict[str, Any]] = [
        {"name": "Name", "type": "string", "versions": "0+"},
        {"name": "Count", "type": "int16", "versions": "1+", "default": "-1"},
        {"name": "IsNew", "type": "bool", "versions": "2+", "taggedVersions": "2+", "tag": 0, "default": "false"},
        {"name": "TopicId", "type": "uuid", "versions": "3+"},
        {
            "name": "Parts",
            "type": "[]Part",
            "versions": "0+",
            "nullableVersions": "1+",
            "fields": [
                {"name": "Index", "type": "int32", "versions": "0+"},
                {"name": "Label", "type": "string", "versions": "1+", "nullableVersions": "1+", "default": "null"},
            ],
        },
    ]
    return {"apiKey": 1, "name": "SampleMessage", "validVersions": "0-3", "flexibleVersions": "2+", "fields": fields}


def test_equal_messages(description: dict[str, Any]) -> None:
    assert compare(SampleMessage, description) == Comparison("SampleMessage", Versions(0, 3), [])


@pytest.mark.parametrize(
    ("number", "change", "expected"),
    [
        (0, {"name": "Title"}, "`title`: exists: yes in Kafka, no in dafka (versions 0-3)"),
        (0, {"name": "Title"}, "`name`: exists: no in Kafka, yes in dafka (versions 0-3)"),
        (0, {"type": "int32"}, "`name`: type: int32 in Kafka, string in dafka (versions 0-3)"),
        (0, {"type": "[]string"}, "`name`: type: []string in Kafka, string in dafka (versions 0-3)"),
        (0, {"nullableVersions": "2+"}, "`name`: nullable: yes in Kafka, no in dafka (versions 2-3)"),
        (4, {"nullableVersions": "2+"}, "`parts`: nullable: no in Kafka, yes in dafka (versions 1)"),
        (1, {"versions": "2+"}, "`count`: exists: no in Kafka, yes in dafka (versions 1)"),
        (1, {"default": "7"}, "`count`: default: 7 in Kafka, -1 in dafka"),
        (2, {"default": "true"}, "`is_new`: default: true in Kafka, false in dafka"),
        (2, {"tag": 1}, "`is_new`: tag: 1 in Kafka, 0 in dafka (versions 2-3)"),
        (2, {"taggedVersions": "3+"}, "`is_new`: tag: none in Kafka, 0 in dafka (versions 2)"),
    ],
)
def test_different_field(description: dict[str, Any], number: int, change: dict[str, Any], expected: str) -> None:
    description["fields"][number].update(change)
    assert expected in compare(SampleMessage, description).differences


def test_page_names_messages_that_were_not_found() -> None:
    comparisons = compare_all({})
    assert all(each.versions is None for pair in comparisons.values() for each in pair)
    page = make_page(comparisons, "4.0.0")
    assert "| Heartbeat | 0-4 | none | not described | none | not described |" in page
