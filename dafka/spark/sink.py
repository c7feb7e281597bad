"""A running cluster as a Spark sink: the driver checks options and columns, and the tasks publish on the executors."""

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
from dafka.spark.options import CLUSTER_OPTIONS, Options, parse_cluster_config
from dafka.spark.publishing import PublishResult, check_division, publish
from dafka.spark.rows import RowColumns
from dafka.wire import Dialect

WRITE_OPTIONS = (*CLUSTER_OPTIONS, "topic", "minStores", "ackTimeout")

QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
"""The local properties that identify the query and the micro-batch of a task. A restart of the query keeps them."""

_logger = logging.getLogger("dafka.spark")


@attrs.frozen
class TaskCommit(WriterCommitMessage):
    """A task's report to the driver that all of its rows are stored.

    It has the number of the task, and the values that identify the write or the micro-batch.
    """

    result: PublishResult
    task: int
    identity: tuple[str | int, ...]


class BatchWriter(DataSourceArrowWriter):
    """The writer of `df.write.format("dafka")`; see `DafkaDataSource.writer`."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise ConfigError('mode overwrite: records can only be appended; write with mode("append")')
        parsed = Options(options, (*WRITE_OPTIONS, "writeId"), "writing")
        self._config, self._columns = _parse_options(parsed, schema)
        self._is_repeatable = bool(parsed.get_text("writeId"))
        self._write_id = parsed.get_text("writeId") or uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:
        """Publish the rows of a task."""
        return _publish(iterator, self._columns, self._config, ("batch", self._write_id))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log the total; all rows are already stored. Raise `InputChangedError` if some may be stored twice."""
        if self._is_repeatable:
            _check_division(messages, self._config)
        _logger.info("%s", _summarize(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log how to continue; published records stay in the stores."""
        _logger.warning(
            "Write failed; the records that it published stay in the stores. To continue without publishing them "
            "twice, write the same DataFrame again with .option('writeId', '%s')",
            self._write_id,
        )


class StreamWriter(DataSourceStreamArrowWriter):
    """The writer of `df.writeStream.format("dafka")`; see `DafkaDataSource.streamWriter`."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise ConfigError('outputMode complete: records can only be appended; use outputMode("append") or "update"')
        self._config, self._columns = _parse_options(Options(options, WRITE_OPTIONS, "writing a stream"), schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:
        """Publish the rows of a task of a micro-batch."""
        context = _task_context()
        query_id, batch_id = (context.getLocalProperty(key) for key in (QUERY_ID, BATCH_ID))
        if query_id is None or batch_id is None:
            raise ConfigError("writeStream: Spark does not report the query and the micro-batch of this task")
        return _publish(iterator, self._columns, self._config, ("stream", query_id, int(batch_id)))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Log the total; all rows are already stored. Raise `InputChangedError` if some may be stored twice."""
        _check_division(messages, self._config)
        _logger.info("Micro-batch %d: %s", batchId, _summarize(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Log the failure; a repetition of the micro-batch finds its published records."""
        _logger.warning("Micro-batch %d failed; its next run continues after the records already published", batchId)


def _parse_options(options: Options, schema: StructType) -> tuple[Config, RowColumns]:
    config = parse_cluster_config(options)
    min_stores = options.get_int("minStores") or max(config.producer.min_stores, 1)
    config, timeout = config.with_producer(min_stores=min_stores, spool=""), options.get_int("ackTimeout")
    if timeout is not None:
        config = config.with_producer(close_timeout_ms=timeout)
    if config.producer.min_stores > 1 and config.node.wire == Dialect.LIBDAFKA.value:
        raise ConfigError(
            "option minStores: above 1 it needs wire rfc46, because a libdafka ACK does not name its store"
        )
    return config, RowColumns.from_schema(schema, options.get_text("topic"), config)


def _task_context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise ConfigError("write: this writer works only in a Spark task")
    return context


def _publish(
    batches: Iterator[pa.RecordBatch], columns: RowColumns, config: Config, identity: tuple[str | int, ...]
) -> TaskCommit:
    task = _task_context().partitionId()
    return TaskCommit(trio.run(publish, batches, columns, config, (*identity, task)), task, identity)


def _check_division(messages: Sequence[WriterCommitMessage | None], config: Config) -> None:
    commits = sorted((each for each in messages if isinstance(each, TaskCommit)), key=lambda each: each.task)
    if any(each.result.topics for each in commits):
        trio.run(check_division, config, commits[0].identity, [each.result.topics for each in commits])


def _summarize(messages: Sequence[WriterCommitMessage | None]) -> str:
    results = [message.result for message in messages if isinstance(message, TaskCommit)]
    records, partitions = sum(each.records for each in results), sum(len(each.topics) for each in results)
    already_stored = sum(each.already_stored for each in results)
    return f"{records} records stored in {partitions} partitions, {already_stored} of them by an earlier attempt"
