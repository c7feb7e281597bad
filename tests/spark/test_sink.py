"""The writers without Spark: what their tasks publish, what they ask the cluster at the end, and what they log."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import trio
from pyspark import TaskContext
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from dafka.config import Config
from dafka.errors import ConfigError
from dafka.spark import sink
from dafka.spark.publishing import PublishResult
from dafka.spark.rows import RowColumns
from dafka.spark.schema import COLUMNS
from dafka.spark.sink import BATCH_ID, QUERY_ID, BatchWriter, StreamWriter, TaskCommit

KINDS = {"topic": StringType(), **{each: COLUMNS[each].dataType for each in ("value", "key", "headers", "timestamp")}}
VALUES = StructType([StructField("value", BinaryType())])
RESULT = PublishResult(3, frozenset("t"), 1)


@attrs.define
class Calls:
    """What the writers have a cluster do."""

    published: list[tuple[Config, tuple[str | int, ...]]] = attrs.field(factory=list)
    checked: list[tuple[tuple[str | int, ...], list[frozenset[str]]]] = attrs.field(factory=list)

    async def publish(self, batches: object, columns: object, config: Config, identity: Any) -> PublishResult:
        await trio.lowlevel.checkpoint()
        self.published.append((config, identity))
        return RESULT

    async def check(self, config: object, identity: Any, topics_by_task: Sequence[frozenset[str]]) -> None:
        await trio.lowlevel.checkpoint()
        self.checked.append((identity, list(topics_by_task)))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    found = Calls()
    monkeypatch.setattr(sink, "publish", found.publish)
    monkeypatch.setattr(sink, "check_division", found.check)
    return found


def run_in_task(monkeypatch: pytest.MonkeyPatch, task: int, properties: dict[str, str]) -> None:
    context = SimpleNamespace(partitionId=lambda: task, getLocalProperty=properties.get)
    monkeypatch.setattr(TaskContext, "get", lambda: context)


def rows() -> Iterator[Any]:
    return iter(())


def test_tasks_publish_under_the_name_of_their_write(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"topic": "t", "ackTimeout": "250", "minStores": "2", "wire": "rfc46"}
    run_in_task(monkeypatch, 4, {QUERY_ID: "query", BATCH_ID: "7"})
    named = BatchWriter({**options, "writeId": "x"}, VALUES, False)
    assert named.write(rows()) == TaskCommit(RESULT, 4, ("batch", "x"))
    assert StreamWriter(options, VALUES, False).write(rows()) == TaskCommit(RESULT, 4, ("stream", "query", 7))
    for _ in range(2):
        writer = BatchWriter(options, VALUES, False)
        writer.write(rows())
        writer.write(rows())
    identities = [identity for _, identity in calls.published]
    assert identities[:2] == [("batch", "x", 4), ("stream", "query", 7, 4)]
    assert identities[2] == identities[3] != identities[4] == identities[5], "each write has a name of its own"
    for config, _ in calls.published:
        assert (config.producer.close_timeout_ms, config.producer.min_stores, config.producer.spool) == (250, 2, "")


def test_what_the_configuration_file_says_counts_unless_an_option_says_otherwise(
    calls: Calls, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "dafka.toml"
    run_in_task(monkeypatch, 0, {})
    for min_stores, more in ((3, {}), (3, {"minStores": "2"}), (0, {"ackTimeout": "250"})):
        path.write_text(f'[producer]\nmin_stores = {min_stores}\nclose_timeout_ms = 70\nspool = "here"\n')
        BatchWriter({"topic": "t", "config": str(path), **more}, VALUES, False).write(rows())
    found = [config.producer for config, _ in calls.published]
    assert [(each.min_stores, each.close_timeout_ms) for each in found] == [(3, 70), (2, 70), (1, 250)]
    assert {each.spool for each in found} == {""}


def test_columns_are_found_by_name_in_any_order_and_case() -> None:
    """The option names the topic of all rows, also if there is a column of topics."""
    names = [*KINDS]
    for seed in range(50):
        draw, topic = Random(seed), Random(seed).choice(["", "t"])
        chosen = draw.sample(names, draw.randint(1, len(names)))
        chosen += [each for each in ("value", *["topic"] * (not topic)) if each not in chosen]
        fields = [StructField(draw.choice([each, each.upper()]), KINDS[each]) for each in chosen]
        places = {each: chosen.index(each) if each in chosen else None for each in names}
        if topic:
            places["topic"] = None
        found = attrs.asdict(RowColumns.from_schema(StructType(fields), topic, Config()))
        assert (found.pop("topic"), found.pop("topic_column")) == (topic, places.pop("topic"))
        assert found == places


def test_a_writer_needs_a_task_and_a_stream_its_query(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = StreamWriter({"topic": "t"}, VALUES, False)
    with pytest.raises(ConfigError, match="works only in a Spark task"):
        writer.write(rows())
    for properties in ({QUERY_ID: "query"}, {BATCH_ID: "7"}):
        run_in_task(monkeypatch, 0, properties)
        with pytest.raises(ConfigError, match="does not report the query and the micro-batch"):
            writer.write(rows())


def test_a_complete_write_is_compared_with_earlier_attempts_if_it_can_have_some(
    calls: Calls, caplog: pytest.LogCaptureFixture
) -> None:
    """Tasks end in any order. Without rows there is nothing to compare."""
    caplog.set_level(logging.INFO, "dafka.spark")
    identity = ("stream", "query", 7)
    found = [PublishResult(5, frozenset("t"), 2), PublishResult(0, frozenset()), PublishResult(4, frozenset("tu"))]
    commits = [TaskCommit(result, task, identity) for task, result in enumerate(found)]
    once, named = (BatchWriter({"topic": "t", **more}, VALUES, False) for more in ({}, {"writeId": "x"}))
    stream = StreamWriter({"topic": "t"}, VALUES, False)
    for messages in ([commits[2], None, *commits[:2]], commits[1:2], []):
        once.commit(messages)
        named.commit(messages)
        stream.commit(messages, 7)
    assert calls.checked == [(identity, [each.topics for each in found])] * 2
    summary = "9 records stored in 3 partitions, 2 of them by an earlier attempt"
    assert caplog.messages[:3] == [summary, summary, f"Micro-batch 7: {summary}"]


def test_a_failed_write_logs_how_to_continue(caplog: pytest.LogCaptureFixture) -> None:
    BatchWriter({"topic": "t", "writeId": "x"}, VALUES, False).abort([None])
    assert ".option('writeId', 'x')" in caplog.text
    StreamWriter({"topic": "t"}, VALUES, False).abort([None], 7)
    assert "Micro-batch 7 failed; its next run continues" in caplog.text
