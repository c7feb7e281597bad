"""`df.write` and `df.writeStream` into a running cluster, and what a user is told who asks wrongly."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

import attrs
import pytest
import trio
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from dafka.errors import ConfigError
from dafka.records import Partition
from dafka.spark.publishing import PublishResult
from dafka.spark.sink import BatchWriter, StreamWriter, TaskCommit
from tests.cli.harness import Dafka
from tests.spark.store_process import read_store, tower_option

VALUES = StructType([StructField("value", BinaryType())])
KEYED = StructType([*VALUES, StructField("key", StringType())])


@attrs.frozen
class Written:
    """A running cluster, and what its store holds of a topic."""

    towers: str
    path: Path

    def held(self, topic: str) -> dict[Partition, list[bytes]]:
        return {key: value for key, value in trio.run(read_store, self.path).items() if key.topic == topic}

    def values(self, topic: str) -> list[bytes]:
        return sorted(value for values in self.held(topic).values() for value in values)

    def write(self, frame: DataFrame, **options: str) -> None:
        frame.write.format("dafka").mode("append").option("towers", self.towers).options(**options).save()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Written]:
    command = Dafka(tmp_path_factory.mktemp("spark"))
    try:
        path = command.folder / "store.db"
        command.start_up("--storage", f"sqlite:{path}")
        yield Written(tower_option(command.options), path)
    finally:
        command.close()


def test_each_task_publishes_a_partition(spark: SparkSession, written: Written) -> None:
    written.write(spark.range(0, 25_000, 1, 2).selectExpr("cast(id as string) value"), topic="numbers")
    first, second = written.held("numbers").values()
    assert {(len(first), first[0]), (len(second), second[0])} == {(12_500, b"0"), (12_500, b"12500")}
    assert sorted(first + second, key=int) == [b"%d" % number for number in range(25_000)]


def test_rows_go_to_the_topics_that_they_name(spark: SparkSession, written: Written) -> None:
    frame = spark.range(0, 1000, 1, 1).selectExpr(
        "concat('even-', id % 2) Topic", "cast(cast(id as string) as binary) value"
    )
    written.write(frame)
    assert written.values("even-0") == sorted(b"%d" % number for number in range(0, 1000, 2))
    assert written.values("even-1") == sorted(b"%d" % number for number in range(1, 1000, 2))


def test_writing_again_with_the_same_id_publishes_nothing_twice(spark: SparkSession, written: Written) -> None:
    frame = spark.range(0, 1000, 1, 2).selectExpr("cast(id as string) value")
    for _ in range(2):
        written.write(frame, topic="once", writeId="monday")
    assert written.values("once") == sorted(b"%d" % number for number in range(1000))
    written.write(frame, topic="once", writeId="tuesday")
    assert len(written.values("once")) == 2000


def test_other_rows_with_the_same_id_are_refused(spark: SparkSession, written: Written) -> None:
    written.write(spark.range(10).selectExpr("cast(id as string) value"), topic="other", writeId="x")
    with pytest.raises(PySparkException, match="topic other: an earlier attempt of this task has published"):
        written.write(spark.range(10).selectExpr("cast(id + 1 as string) value"), topic="other", writeId="x")


def test_a_stream_publishes_each_micro_batch(spark: SparkSession, written: Written, tmp_path: Path) -> None:
    source, checkpoint = tmp_path / "source", tmp_path / "checkpoint"
    source.mkdir()
    for day in range(3):
        (source / f"{day}.txt").write_text("".join(f"{day}-{line}\n" for line in range(200)))
        query = (
            spark.readStream.format("text")
            .option("maxFilesPerTrigger", "1")
            .load(str(source))
            .writeStream.format("dafka")
            .option("towers", written.towers)
            .option("topic", "days")
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(60)
    expected = sorted(f"{day}-{line}".encode() for day in range(3) for line in range(200))
    assert written.values("days") == expected
    assert len(written.held("days")) == 3


def test_a_null_is_one_sentence(spark: SparkSession, written: Written) -> None:
    with pytest.raises(PySparkException, match="RowError: column value: a row is null, and a record has a content"):
        written.write(spark.sql("select cast(null as string) value"), topic="null")


def test_overwrite_is_one_sentence(spark: SparkSession, written: Written) -> None:
    writer = spark.sql("select 'x' value").write.format("dafka").option("topic", "t")
    with pytest.raises(PySparkException, match=r'mode overwrite: records are only ever added; write with mode\("app'):
        writer.mode("overwrite").save()


@pytest.mark.parametrize(
    ("options", "schema", "message"),
    [
        ({}, VALUES, "option topic: it is needed where the DataFrame has no column topic"),
        ({"topic": "t"}, StructType(), "column value: there is none; a record's content is a column of this name"),
        ({"topic": "t"}, StructType([StructField("value", LongType())]), "column value: expected binary or string, n"),
        ({}, KEYED, "column key: a record has a value and a topic, nothing else"),
        ({}, StructType([*VALUES, StructField("topic", LongType())]), "column topic: expected string, not bigint"),
        ({"topic": "t" * 256}, VALUES, "topic: expected at most 255 octets, not 256"),
        ({"topic": "t", "minStores": "0"}, VALUES, "option minStores: expected a whole number from 1 up, .* not '0'"),
        ({"topic": "t", "minStores": "2", "wire": "libdafka"}, VALUES, "option minStores: above 1 it needs wire rfc46"),
        (
            {"topic": "t", "ackTimeout": "1s"},
            VALUES,
            "option ackTimeout: expected a whole number from 1 up, .* not '1s'",
        ),
        ({"topic": "t", "writeID2": "x"}, VALUES, "option writeID2: .* writing; did you mean writeId?"),
    ],
)
def test_mistakes_are_one_sentence(options: Mapping[str, str], schema: StructType, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}"):
        BatchWriter(options, schema, False)


def test_a_stream_is_only_added_to() -> None:
    with pytest.raises(ConfigError, match="outputMode complete: records are only ever added"):
        StreamWriter({"topic": "t"}, VALUES, True)


def test_a_stream_has_no_write_id() -> None:
    with pytest.raises(ConfigError, match="option writeId: there is none of this name for writing a stream"):
        StreamWriter({"topic": "t", "writeId": "x"}, VALUES, False)


def test_the_driver_tells_how_much_was_stored(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dafka.spark")
    writer = BatchWriter({"topic": "t", "writeId": "x"}, VALUES, False)
    writer.commit([TaskCommit(PublishResult(5, 1, 2)), TaskCommit(PublishResult(4, 2, 0))])
    assert caplog.messages == ["9 records stored, 3 partitions; 2 of them had been published before"]


def test_a_write_that_failed_tells_how_to_go_on(caplog: pytest.LogCaptureFixture) -> None:
    BatchWriter({"topic": "t", "writeId": "x"}, VALUES, False).abort([None])
    assert ".option('writeId', 'x')" in caplog.text
