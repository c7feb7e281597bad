"""A running cluster as a Spark source, for executors that share no disk with a store.

The driver follows the stored records, and plans micro-batches of them. Each task fetches a range of one partition from
a store that has it. Both run a node of the cluster: the driver's node lives as long as the query, because Spark keeps
its reader, and a task's node as long as the task.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import attrs
import pyarrow as pa
import trio
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from dafka.config import Config
from dafka.errors import ConfigError, StorageError
from dafka.records import Partition, RecordBatch
from dafka.roles import Range, open_reader
from dafka.roles.arguments import check_topic
from dafka.spark.offsets import (
    EARLIEST,
    LATEST,
    PartitionName,
    StreamOffset,
    format_name,
    name_partition,
    nest_offsets,
    split_ranges,
)
from dafka.spark.options import (
    CLUSTER_OPTIONS,
    Options,
    RequestedOffsets,
    Subscription,
    mention_towers_option,
    parse_cluster_config,
    parse_offsets,
    parse_topics,
)
from dafka.spark.planning import warn_of_skipped
from dafka.spark.portal import open_portal
from dafka.spark.schema import HEADERS_OPTION, check_columns
from dafka.storage.arrow import to_arrow
from dafka.storage.plugin_helpers import now_ms

READ_OPTIONS = (
    "subscribe",
    "startingOffsets",
    "maxOffsetsPerTrigger",
    "failOnDataLoss",
    "minPartitions",
    "fetchTimeout",
    HEADERS_OPTION,
)

REFUSED_OPTIONS = {
    "subscribePattern": "a running cluster cannot list its topics; name them with subscribe",
    "endingOffsets": "a stream has no end; read stores at a path instead",
    "startingTimestamp": "a running cluster is not asked for times; use startingOffsets, or read stores at a path",
}
"""Options that exist only for reading stores, each with the reason and the alternative."""

FETCH_TIMEOUT_MS = 60_000
"""How long a task waits for the next record, in milliseconds: long enough for a store to restart."""

EARLIEST_TIMEOUT_S = 10.0
"""How long a query that starts waits for stores to report the first offsets of partitions, in seconds.

They answer within milliseconds, or within seconds if they have dropped a partition's first records and its producer
has just stopped.
"""

EARLIEST_RETRY_TIMEOUT_S = 0.5
"""How long a running query waits for the first offsets of new partitions, in seconds.

Other partitions are planned meanwhile. The next trigger asks again.
"""

BUFFER_BYTES_MAX = 16 * 1024 * 1024
"""The limit of records that a task has received and Spark has not yet taken, in bytes."""

_logger = logging.getLogger("dafka.spark")


@attrs.frozen(kw_only=True)
class _ClusterQuery:
    """The topics, offsets and limits of a query on a running cluster."""

    config: Config
    topics: tuple[str, ...]
    starts: RequestedOffsets
    rows_max: int | None
    tasks_min: int
    fail_on_data_loss: bool
    fetch_timeout_s: float

    @classmethod
    def from_options(cls, given: Mapping[str, str]) -> _ClusterQuery:
        options = Options(given, (*CLUSTER_OPTIONS, *READ_OPTIONS, *REFUSED_OPTIONS), "reading a running cluster")
        for name, reason in REFUSED_OPTIONS.items():
            if name in options:
                raise ConfigError(f"option {name}: {reason}")
        config = parse_cluster_config(options)
        topics = parse_topics(options)
        for topic in topics:
            check_topic(topic, config)
        starts = parse_offsets(options, "startingOffsets", LATEST)
        Subscription(topics).check_offsets("startingOffsets", starts)
        fetch_timeout_ms = options.get_int("fetchTimeout", FETCH_TIMEOUT_MS) or FETCH_TIMEOUT_MS
        return cls(
            config=config,
            topics=topics,
            starts=starts,
            rows_max=options.get_int("maxOffsetsPerTrigger"),
            tasks_min=options.get_int("minPartitions") or 1,
            fail_on_data_loss=options.get_bool("failOnDataLoss", True),
            fetch_timeout_s=fetch_timeout_ms / 1000,
        )


class ClusterTask(InputPartition):
    """A range of one partition, with the time that its records get as `stored_at`."""

    def __init__(self, partition: Partition, first: int, end: int, timestamp: int) -> None:
        super().__init__((str(partition), first, end))
        self.partition = partition
        self.first = first
        self.end = end
        self.timestamp = timestamp


class ClusterStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows a running cluster in a streaming query. It joins the cluster at the first listing."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._query = _ClusterQuery.from_options(options)
        self._columns = check_columns(schema)
        self._reader: BlockingReader | None = None
        self._partitions: dict[PartitionName, Partition] = {}
        self._earliest: dict[PartitionName, int] = {}
        self._target: dict[PartitionName, int] | None = None
        self._is_behind = False

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 (Spark's name)
        """Return the offset at which a new query starts; raise `ConfigError` if the requested offsets do not exist."""
        ends = self._find_ends()
        if self._query.fail_on_data_loss:
            self._check_starts(ends)
        requested = {name: self._query.starts.for_partition(name) for name in ends}
        names = [name for name, offset in requested.items() if offset == EARLIEST]
        earliest = self._find_earliest(names, EARLIEST_TIMEOUT_S)
        offsets: dict[PartitionName, int] = {}
        for name, offset in requested.items():
            end = ends[name]
            if offset != EARLIEST:
                offsets[name] = end if offset == LATEST else min(offset, end)
                if offset > end:
                    _logger.warning("Option startingOffsets: %s ends at %d, before %d", format_name(name), end, offset)
            elif name in earliest:
                offsets[name] = earliest[name]
        initial = StreamOffset(offsets=offsets, tasks_min=self._query.tasks_min, timestamp=now_ms())
        return initial.to_checkpoint()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit that the option `maxOffsetsPerTrigger` sets."""
        rows_max = self._query.rows_max
        return ReadAllAvailable() if rows_max is None else ReadMaxRows(rows_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of this run of the query: the records that are stored now."""
        self._target = self._find_ends()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end offset of the next micro-batch, or `start` if there are no new records."""
        offset = StreamOffset.from_checkpoint(start)
        ends = self._find_ends() if self._target is None else self._target
        self._warn_if_behind(offset, ends)
        new = [name for name in ends if name not in offset.offsets]
        timeout_s = EARLIEST_RETRY_TIMEOUT_S if self._target is None else EARLIEST_TIMEOUT_S
        earliest = self._find_earliest(new, timeout_s)
        if self._target is not None and len(earliest) < len(new):
            name = next(name for name in new if name not in earliest)
            raise StorageError(
                f"no store reported within {EARLIEST_TIMEOUT_S:g} s where {format_name(name)} starts; "
                "check that the stores are running, and start the query again"
            )
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        reached = offset.advance(ends, earliest, rows_max, self._query.tasks_min)
        return start if reached is offset else reached.to_checkpoint()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the ends of the stores, for the query's progress report."""
        return None if self._reader is None else {"offsets": nest_offsets(self._find_ends())}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a micro-batch, which depend only on its end; see `StoreStreamReader.partitions`."""
        if start == end:
            return []
        batch = StreamOffset.from_checkpoint(end)
        return [
            ClusterTask(self._partitions.get(name, Partition(*name)), first, stop, batch.timestamp)
            for name, first, stop in split_ranges(batch.ranges(), batch.tasks_min)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a task's records; raise `StorageError` if stores have lost them or do not send them in time."""
        assert isinstance(partition, ClusterTask)
        query, next_sequence = self._query, partition.first
        with BlockingReader(query.config) as reader:
            for batch in reader.read(partition.partition, partition.first, partition.end, query.fetch_timeout_s):
                self._report_gap(partition.partition, next_sequence, batch.first_sequence)
                next_sequence = batch.end_sequence
                times = [partition.timestamp] * len(batch)
                yield to_arrow(attrs.evolve(batch, stored_at=times), self._columns)
            self._report_gap(partition.partition, next_sequence, partition.end)

    def stop(self) -> None:
        """Close the driver's node."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _find_ends(self) -> dict[PartitionName, int]:
        """Return the ends of the stores. The first call joins the cluster, and can raise `DiscoveryError`."""
        if self._reader is None:
            reader = BlockingReader(self._query.config, self._query.topics)
            try:
                reader.wait_ready()
            except BaseException:
                reader.close()
                raise
            self._reader = reader
        ends = {}
        for partition, end in self._reader.ends().items():
            name = name_partition(partition)
            self._partitions[name] = partition
            ends[name] = end
        return ends

    def _find_earliest(self, names: Sequence[PartitionName], timeout_s: float) -> dict[PartitionName, int]:
        """Return the first offsets of partitions; partitions that no store reports in time are left out."""
        unknown = [name for name in names if name not in self._earliest]
        if unknown and self._reader is not None:
            found = self._reader.earliest([self._partitions[name] for name in unknown], timeout_s)
            for name in unknown:
                if self._partitions[name] in found:
                    self._earliest[name] = found[self._partitions[name]]
                else:
                    _logger.info("No store has reported yet where %s starts; asking again", format_name(name))
        return {name: self._earliest[name] for name in names if name in self._earliest}

    def _warn_if_behind(self, offset: StreamOffset, ends: Mapping[PartitionName, int]) -> None:
        """Warn once if the stores hold fewer records than were read: a store is not running, or records were lost."""
        behind = [name for name, next_offset in offset.offsets.items() if ends.get(name, 0) < next_offset]
        if behind and not self._is_behind:
            _logger.warning(
                "The running stores hold less than was read before (partitions: %d): %s ends at %d, not %d; "
                "check that all stores are running",
                len(behind),
                format_name(behind[0]),
                ends.get(behind[0], 0),
                offset.offsets[behind[0]],
            )
        self._is_behind = bool(behind)

    def _check_starts(self, ends: Mapping[PartitionName, int]) -> None:
        for name, offset in self._query.starts.by_partition.items():
            if name not in ends:
                raise ConfigError(
                    f"option startingOffsets: no store in the cluster has the partition {format_name(name)} "
                    "(set failOnDataLoss to false to ignore it)"
                )
            if offset > ends[name]:
                raise ConfigError(
                    f"option startingOffsets: expected at most {ends[name]}, the end of {format_name(name)}, "
                    f"not {offset}"
                )

    def _report_gap(self, partition: Partition, expected: int, found: int) -> None:
        if found <= expected:
            return
        if self._query.fail_on_data_loss:
            raise StorageError(
                f"records {expected} to {found - 1} of {partition} are no longer in any store "
                "(set failOnDataLoss to false to skip them)"
            )
        warn_of_skipped(name_partition(partition), expected, found)


class BlockingReader:
    """A `dafka.roles.Reader` for synchronous code such as Spark's: its event loop runs in a thread.

    Every method can raise `DafkaError`.
    """

    def __init__(self, config: Config, topics: Iterable[str] = ()) -> None:
        self._config = config.with_consumer(buffer_bytes_max=min(config.consumer.buffer_bytes_max, BUFFER_BYTES_MAX))
        with ExitStack() as stack:
            self._portal = stack.enter_context(open_portal())
            opening = open_reader(topics, self._config)
            self._reader = stack.enter_context(self._portal.wrap_async_context_manager(opening))
            self._stack = stack.pop_all()

    def __enter__(self) -> BlockingReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the node and end its thread; calling this again is harmless."""
        self._stack.close()

    def wait_ready(self) -> None:
        """Wait until the stores have reported their partitions; raise `DiscoveryError` if there are no stores."""
        with mention_towers_option():
            self._portal.call(self._reader.wait_ready)

    def ends(self) -> dict[Partition, int]:
        """Return the offset after the last stored record of each partition."""
        return self._portal.call(self._reader.ends)

    def earliest(self, partitions: Iterable[Partition], timeout_s: float) -> dict[Partition, int]:
        """Return the first stored offset of each partition; partitions that no store reports in time are left out."""
        return self._portal.call(self._reader.earliest, tuple(partitions), timeout_s)

    def read(
        self, partition: Partition, first_sequence: int, end_sequence: int, timeout_s: float
    ) -> Iterator[RecordBatch]:
        """Yield the records of a range in order, with marks for records that compaction has removed.

        Records that no store holds any more are left out. Raise `DiscoveryError` if the cluster is not found, and
        `StorageError` if the next record does not arrive in time.
        """
        records = self._portal.call(self._reader.read, partition, first_sequence, end_sequence)
        try:
            next_sequence = first_sequence
            while True:
                batch = self._portal.call(self._next_batch, records, next_sequence, timeout_s)
                if batch is None:
                    return
                yield batch
                next_sequence = batch.end_sequence
        finally:
            self._portal.call(records.close)

    async def _next_batch(self, records: Range, next_sequence: int, timeout_s: float) -> RecordBatch | None:
        tower_timeout_s = self._config.node.tower_timeout_ms / 1000
        with trio.move_on_after(min(tower_timeout_s, timeout_s)):
            return await records.next_sequences()
        if timeout_s >= tower_timeout_s:
            with mention_towers_option():
                self._reader.check_settled()
        with trio.move_on_after(max(timeout_s - tower_timeout_s, 0)):
            return await records.next_sequences()
        raise StorageError(
            f"no store sent record {next_sequence} of {records.partition} within {timeout_s:g} s; check that the "
            "stores that hold it are running, or raise fetchTimeout"
        )
