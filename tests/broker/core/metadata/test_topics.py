"""The names of topics, and how topics and deletions are stored."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dafka.broker.core.metadata.topics import (
    LOGS_MAX,
    NAME_MAX,
    TOPIC_VERSION,
    Deletion,
    Topic,
    decode_topic,
    encode_deletion,
    encode_topic,
    find_name_problem,
)
from dafka.errors import StorageFormatError

ADDRESSES = st.sampled_from(["A", "B", "C"])
REPLICAS = st.lists(ADDRESSES, min_size=1, max_size=3).map(tuple)
TOPICS = st.builds(
    Topic,
    st.sampled_from(["orders", "a.b_c-d"]),
    st.sampled_from(["1D", "F" * 32]),
    st.integers(1, LOGS_MAX),
    st.dictionaries(st.sampled_from(["retention.ms", "cleanup.policy"]), st.text(max_size=3), max_size=2),
    st.integers(0, 3),
    st.lists(REPLICAS, max_size=3).map(tuple),
    st.integers(0, 9),
    st.integers(0, 2**45),
    st.dictionaries(st.integers(0, 9), REPLICAS, max_size=2),
    st.integers(0, 2**31),
)
DELETIONS = st.builds(Deletion, TOPICS, st.dictionaries(ADDRESSES, st.integers(0, 9)), st.integers(0, 2**31))


def test_names_are_those_that_clients_of_kafka_can_use() -> None:
    assert NAME_MAX == 249
    for name in ("...", "a", "Az09._-", "a" * NAME_MAX):
        assert find_name_problem(name) == ""
    for name in ("", ".", "..", "a" * (NAME_MAX + 1), "$logs", *(f"a{each}" for each in " /$:,ü\n\0")):
        assert find_name_problem(name)


@settings(max_examples=25)
@given(TOPICS, DELETIONS)
def test_topics_and_deletions_are_read_as_they_were_written(topic: Topic, deletion: Deletion) -> None:
    assert decode_topic(topic.name, encode_topic(topic)) == topic
    assert decode_topic(deletion.key, encode_deletion(deletion)) == deletion
    assert deletion.key == f"{deletion.topic.name}/{deletion.topic.topic_id}"


TOPIC = Topic("orders", "1D", 2, {"retention.ms": "1"}, 3, (("A", "B"), ("B",)), 1, 5, {1: ("B",)}, 1024)


def test_a_topic_of_a_newer_version_is_refused_with_what_to_do() -> None:
    fields = json.loads(encode_topic(TOPIC))
    assert fields["version"] == TOPIC_VERSION
    fields["version"] = TOPIC_VERSION + 1
    with pytest.raises(StorageFormatError, match=f"version {TOPIC_VERSION + 1}, and this dafka reads versions up to"):
        decode_topic("orders", json.dumps(fields).encode())


def test_a_malformed_topic_is_refused() -> None:
    changes: list[dict[str, Any]] = [{"log_count": each} for each in (0, LOGS_MAX + 1, "x")]
    changes += [{"settings": []}, {"placement": 1}, {"assignments": {"x": []}}, {"revision": None}]
    fields = json.loads(encode_topic(TOPIC))
    changed = [fields | each for each in changes]
    changed += [{key: each for key, each in fields.items() if key != name} for name in ("topic_id", "version")]
    for value in [b"", b"[]", b"\xff", b"{}", *(json.dumps(each).encode() for each in changed)]:
        with pytest.raises(StorageFormatError):
            decode_topic("orders", value)


def test_fields_that_are_missing_have_their_defaults() -> None:
    plain = Topic("orders", "1D", 1)
    assert set(json.loads(encode_topic(plain))) == {
        "version", "topic_id", "log_count", "settings", "revision", "created_at"
    }  # fmt: skip
    for field in ("revision", "created_at"):
        fields = {key: value for key, value in json.loads(encode_topic(plain)).items() if key != field}
        assert decode_topic("orders", json.dumps(fields).encode()) == plain
    assert decode_topic("orders", encode_topic(attrs.evolve(plain, log_count=LOGS_MAX))) == attrs.evolve(
        plain, log_count=LOGS_MAX
    )
