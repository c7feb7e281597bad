"""`df.write` and `df.writeStream` to a running cluster, and the errors for mistakes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
import trio
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from dafka.records import Partition
from tests.cli.harness import Dafka
from tests.spark.cluster import tower_option
from tests.spark.queries import finish_query
from tests.spark.stores import batch, content, fill, read_store


@attrs.frozen
class Written:
    """A running cluster, and the records of a topic that its store holds."""

    towers: str
    path: Path

    def stored(self, topic: str) -> dict[Partition, list[bytes]]:
        return {key: value for key, value in trio.run(read_store, self.path).items() if key.topic == topic}

    def values(self, topic: str) -> list[bytes]:
        return sorted(value for values in self.stored(topic).values() for value in values)

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


def test_each_task_publishes_to_a_partition_of_its_own(spark: SparkSession, written: Written) -> None:
    written.write(spark.range(0, 25_000, 1, 2).selectExpr("cast(id as string) value"), topic="numbers")
    first, second = written.stored("numbers").values()
    assert {(len(first), first[0]), (len(second), second[0])} == {(12_500, b"0"), (12_500, b"12500")}
    assert sorted(first + second, key=int) == [b"%d" % number for number in range(25_000)]


def test_a_repeated_write_publishes_nothing_twice_and_fewer_tasks_are_refused(
    spark: SparkSession, written: Written
) -> None:
    frame = spark.range(0, 1000, 1, 3).selectExpr("cast(id as string) value")
    for _ in range(2):
        written.write(frame, topic="once", writeId="monday")
    assert written.values("once") == sorted(b"%d" % number for number in range(1000))
    written.write(frame, topic="once", writeId="tuesday")
    assert len(written.values("once")) == 2000
    with pytest.raises(PySparkException, match=r"topic once: .*an earlier attempt"):
        written.write(frame.coalesce(2), topic="once", writeId="monday")


def run_stream(written: Written, stream: DataFrame, topic: str, checkpoint: Path) -> None:
    """Publish what a stream has now."""
    writer = stream.writeStream.format("dafka").option("towers", written.towers).option("topic", topic)
    finish_query(writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start)


def test_a_micro_batch_that_is_repeated_though_its_store_has_changed_publishes_nothing_twice(
    spark: SparkSession, written: Written, tmp_path: Path
) -> None:
    """The driver dies between publishing a micro-batch and noting that it is complete."""
    checkpoint, store = tmp_path / "checkpoint", tmp_path / "in.db"
    url = fill(f"sqlite:{store}", *(batch("in", letter * 32, 0, 1000) for letter in "ABC"))

    def run(cores: int) -> None:
        stream = spark.readStream.format("dafka").option("startingOffsets", "earliest")
        stream = stream.option("minPartitions", str(cores))
        run_stream(written, stream.load(str(store)).select("value"), "repeated", checkpoint)

    run(2)
    for name in ("0", ".0.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)
    large = [b"large %d" % number + b"." * 10_000 for number in range(1000)]
    fill(url, batch("in", "A" * 32, 1000, 2000, contents=large))
    fill(f"sqlite:{tmp_path}/other.db", batch("in", "A" * 32, 0, 1000))
    run(5)
    expected = [content("in", letter, number) for letter in "ABC" for number in range(1000)]
    assert written.values("repeated") == sorted(expected + large)


def test_a_stream_publishes_each_micro_batch(spark: SparkSession, written: Written, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for day in range(2):
        (source / f"{day}.txt").write_text("".join(f"{day}-{line}\n" for line in range(200)))
        stream = spark.readStream.format("text").option("maxFilesPerTrigger", "1").load(str(source))
        run_stream(written, stream, "days", tmp_path / "checkpoint")
    assert written.values("days") == sorted(f"{day}-{line}".encode() for day in range(2) for line in range(200))
    assert len(written.stored("days")) == 2


def test_whole_records_are_written_and_read_again(spark: SparkSession, written: Written) -> None:
    frame = spark.sql("""
        SELECT * FROM VALUES
            (1, 'tea', 'a', array(named_struct('key', 'trace', 'value', X'01'),
                                  named_struct('key', 'trace', 'value', NULL))),
            (2, NULL, 'b', array()),
            (3, '', NULL, NULL)
        AS rows(id, value, key, headers)
    """).coalesce(1)
    written.write(frame.selectExpr("value", "key", "headers", "timestamp_millis(id) timestamp"), topic="whole")
    read = spark.read.format("dafka").option("subscribe", "whole").option("includeHeaders", "true")
    rows = read.load(str(written.path)).orderBy("offset").collect()
    assert [(row.value, row.key, row.headers) for row in rows] == [
        (b"tea", b"a", [("trace", b"\x01"), ("trace", None)]),
        (None, b"b", None),
        (b"", None, None),
    ]
    assert [(row.timestamp.microsecond, row.timestampType) for row in rows[:2]] == [(1000, 0), (2000, 0)]
    assert all(row.stored_at.year > 2000 for row in rows)


def test_rows_are_inserted_in_sql(spark: SparkSession, written: Written) -> None:
    spark.sql("CREATE TABLE insert_table (value STRING) USING dafka")
    try:
        options = f"(towers = '{written.towers}', topic = 'inserted')"
        spark.sql(f"INSERT INTO insert_table WITH {options} SELECT CAST(id AS STRING) FROM range(10)")
    finally:
        spark.sql("DROP TABLE insert_table")
    assert written.values("inserted") == [b"%d" % number for number in range(10)]
