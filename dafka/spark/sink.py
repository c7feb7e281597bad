"""The writers that Spark is given: options and columns are checked on the driver, tasks publish on the executors."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence

import attrs
import pyarrow as pa
import trio
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from dafka.config import Config
from dafka.errors import ConfigError
from dafka.spark.options import CLUSTER_OPTIONS, Options, cluster_config
from dafka.spark.publishing import PublishResult, publish
from dafka.spark.schema import RecordColumns, find_record_columns
from dafka.wire import Dialect

WRITE_OPTIONS = (*CLUSTER_OPTIONS, "topic", "minStores", "ackTimeout")

QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
"""The local properties in which Spark tells a task of a streaming query whose it is. Both outlive a restart of it."""

_logger = logging.getLogger("dafka.spark")


@attrs.frozen
class TaskCommit(WriterCommitMessage):
    """A task's word to the driver that all of its rows are stored."""

    published: PublishResult


class BatchWriter(DataSourceArrowWriter):
    """`df.write.format("dafka")`."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        """Raises `ConfigError` for options or columns that cannot be, and for any mode but append."""
        if overwrite:
            raise ConfigError('mode overwrite: records are only ever added; write with mode("append")')
        parsed = Options(options, (*WRITE_OPTIONS, "writeId"), "writing")
        self._config, self._rows = _prepare(parsed, schema)
        self._is_named = "writeId" in parsed
        self._write_id = parsed.get_text("writeId") or uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:
        """In a task: publishes its rows."""
        return _publish(iterator, self._rows, self._config, ("batch", self._write_id))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """All is stored already."""
        _logger.info("%s", _total(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """What is stored stays stored; tells how to go on."""
        _logger.warning(
            "the write failed; what it has published stays in the stores. To go on without publishing it twice, "
            "write the same DataFrame again with .option('writeId', '%s')",
            self._write_id,
        )


class StreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream.format("dafka")`."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        """Raises `ConfigError` for options or columns that cannot be, and for the output mode complete."""
        if overwrite:
            raise ConfigError('outputMode complete: records are only ever added; use outputMode("append") or "update"')
        self._config, self._rows = _prepare(Options(options, WRITE_OPTIONS, "writing a stream"), schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:
        """In a task: publishes its rows of a micro-batch."""
        context = _context()
        query_id, batch_id = (context.getLocalProperty(key) for key in (QUERY_ID, BATCH_ID))
        if query_id is None or batch_id is None:
            raise ConfigError("writeStream: Spark does not tell which query and micro-batch this task belongs to")
        return _publish(iterator, self._rows, self._config, ("stream", query_id, int(batch_id)))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """All is stored already."""
        _logger.info("micro-batch %d: %s", batchId, _total(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """What is stored stays stored: the micro-batch finds it when it is run again."""
        _logger.warning("micro-batch %d failed; what it has published is found when it is run again", batchId)


def _prepare(options: Options, schema: StructType) -> tuple[Config, RecordColumns]:
    config = cluster_config(options).with_producer(min_stores=options.get_int("minStores", 1) or 1, spool="")
    timeout = options.get_int("ackTimeout")
    if timeout is not None:
        config = config.with_producer(close_timeout_ms=timeout)
    if config.producer.min_stores > 1 and config.node.wire == Dialect.LIBDAFKA.value:
        raise ConfigError("option minStores: above 1 it needs wire rfc46, for a libdafka ACK does not name its store")
    return config, find_record_columns(schema, options.get_text("topic"), config)


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise ConfigError("this writer works in a task of Spark's")
    return context


def _publish(
    batches: Iterator[pa.RecordBatch], rows: RecordColumns, config: Config, identity: tuple[str | int, ...]
) -> TaskCommit:
    identity = (*identity, _context().partitionId())
    return TaskCommit(trio.run(publish, batches, rows, config, identity))


def _total(messages: Sequence[WriterCommitMessage | None]) -> str:
    done = [message.published for message in messages if isinstance(message, TaskCommit)]
    records, partitions = sum(each.records for each in done), sum(each.partitions for each in done)
    found = sum(each.found for each in done)
    return f"{records} records stored, {partitions} partitions; {found} of them had been published before"
