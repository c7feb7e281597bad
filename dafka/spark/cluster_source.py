"""A stream from the running cluster, for executors that share no disk with a store.

The driver's reader follows what the stores have made durable, and plans micro-batches of it; each task fetches a range
of one partition from whoever holds it. Both are nodes of the cluster: the driver's lives as long as the query, since
Spark keeps its reader and asks it again and again; a task's as long as the task.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import attrs
import pyarrow as pa
import trio
from anyio.from_thread import start_blocking_portal
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
    ClusterOffset,
    PartitionName,
    format_name,
    nest_offsets,
    now_ms,
    split_ranges,
)
from dafka.spark.options import (
    CLUSTER_OPTIONS,
    Options,
    RequestedOffsets,
    Subscription,
    cluster_config,
    mention_towers_option,
    parse_offsets,
    read_topics,
)
from dafka.spark.schema import check_columns, escape_name, to_arrow

READ_OPTIONS = (
    "subscribe",
    "startingOffsets",
    "maxOffsetsPerTrigger",
    "failOnDataLoss",
    "minPartitions",
    "fetchTimeout",
)

REFUSED = {
    "subscribePattern": "a running cluster cannot list its topics; name them with subscribe",
    "endingOffsets": "a stream has no end; read stores at a path for that",
    "startingTimestamp": "records' times do not travel in a cluster; use startingOffsets, or read stores at a path",
}

FETCH_TIMEOUT_MS = 60_000
"""How long a task waits for the next record: enough for a store to be restarted."""

EARLIEST_S, EARLIEST_MORE_S = 10.0, 0.5
"""How long stores are waited for to say where partitions begin: when a query begins, and later, for new partitions.

It takes them milliseconds, and seconds where they have dropped a partition's first records and its producer has just
gone. Meanwhile the others are planned; the next trigger asks again.
"""

_logger = logging.getLogger("dafka.spark")


@attrs.frozen(kw_only=True)
class _ClusterQuery:
    """What the options say."""

    config: Config
    topics: tuple[str, ...]
    positions: RequestedOffsets
    records_max: int | None
    tasks_min: int
    fail_on_data_loss: bool
    fetch_s: float

    @classmethod
    def read(cls, given: Mapping[str, str]) -> _ClusterQuery:
        options = Options(given, (*CLUSTER_OPTIONS, *READ_OPTIONS, *REFUSED), "reading a running cluster")
        for name, reason in REFUSED.items():
            if name in options:
                raise ConfigError(f"option {name}: {reason}")
        config = cluster_config(options)
        topics = read_topics(options)
        for topic in topics:
            check_topic(topic, config)
        positions = parse_offsets(options, "startingOffsets", LATEST)
        Subscription(topics).check_named("startingOffsets", positions)
        fetch_ms = options.get_int("fetchTimeout", FETCH_TIMEOUT_MS) or FETCH_TIMEOUT_MS
        return cls(
            config=config,
            topics=topics,
            positions=positions,
            records_max=options.get_int("maxOffsetsPerTrigger"),
            tasks_min=options.get_int("minPartitions") or 1,
            fail_on_data_loss=options.get_bool("failOnDataLoss", True),
            fetch_s=fetch_ms / 1000,
        )


class ClusterTask(InputPartition):
    """A range of one partition, with the time that its records are given."""

    def __init__(self, partition: Partition, first: int, end: int, timestamp: int) -> None:
        super().__init__((str(partition), first, end))
        self.partition = partition
        self.first = first
        self.end = end
        self.timestamp = timestamp


class ClusterStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Raises `ConfigError` for options that cannot be; opens nothing before it is asked for something."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._settings = _ClusterQuery.read(options)
        self._columns = check_columns(schema)
        self._node: BlockingReader | None = None
        self._names: dict[PartitionName, Partition] = {}
        self._earliest: dict[PartitionName, int] = {}
        self._target: dict[PartitionName, int] | None = None
        self._is_ahead = False

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 (Spark's name)
        """Where `startingOffsets` says. Raises `ConfigError` for offsets that are not there."""
        ends = self._ends()
        positions = self._settings.positions
        if self._settings.fail_on_data_loss:
            self._check_named(ends)
        wanted = {name: positions.of(name) for name in ends}
        begins = self._learn_begins([name for name, offset in wanted.items() if offset == EARLIEST], EARLIEST_S)
        offsets: dict[PartitionName, int] = {}
        for name, offset in wanted.items():
            if offset == LATEST:
                offsets[name] = ends[name]
            elif offset != EARLIEST:
                offsets[name] = min(offset, ends[name])
            elif name in begins:
                offsets[name] = begins[name]
        return ClusterOffset(offsets, now_ms()).as_document()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """What `maxOffsetsPerTrigger` says."""
        records_max = self._settings.records_max
        return ReadAllAvailable() if records_max is None else ReadMaxRows(records_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """What is there now is what the query reads."""
        self._target = self._ends()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the next micro-batch; `start` where nothing new is stored."""
        standing = ClusterOffset.read(start)
        ends = self._ends() if self._target is None else self._target
        self._warn_of_ahead(standing, ends)
        new = [name for name in ends if name not in standing.offsets]
        begins = self._learn_begins(new, EARLIEST_MORE_S if self._target is None else EARLIEST_S)
        if self._target is not None and len(begins) < len(new):
            unanswered = next(name for name in new if name not in begins)
            raise StorageError(f"no store said within {EARLIEST_S:g} s where {format_name(unanswered)} begins")
        records_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        reached = standing.advance(ends, begins, records_max)
        return start if reached is standing else reached.as_document()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """How far the stores have come, for the query's progress."""
        return None if self._node is None else {"offsets": nest_offsets(self._ends())}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a micro-batch."""
        standing = ClusterOffset.read(end)
        pieces = split_ranges(standing.since(ClusterOffset.read(start)), self._settings.tasks_min)
        return [
            ClusterTask(self._names.get(name, Partition(*name)), first, stop, standing.timestamp)
            for name, first, stop in pieces
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """A task's records. Raises `StorageError` for records that are gone, or that nobody sends."""
        assert isinstance(partition, ClusterTask)
        settings, expected = self._settings, partition.first
        with BlockingReader(settings.config) as node:
            for batch in node.read(partition.partition, partition.first, partition.end, settings.fetch_s):
                self._check_gap(partition.partition, expected, batch.first_sequence)
                expected = batch.end_sequence
                times = [partition.timestamp] * len(batch)
                yield to_arrow(attrs.evolve(batch, stored_at=times), self._columns)
            self._check_gap(partition.partition, expected, partition.end)

    def stop(self) -> None:
        """Closes the driver's node."""
        if self._node is not None:
            self._node.close()
            self._node = None

    def _ends(self) -> dict[PartitionName, int]:
        """How far the stores have come. The first call finds the cluster, and raises `DiscoveryError` if it cannot."""
        if self._node is None:
            node = BlockingReader(self._settings.config, self._settings.topics)
            try:
                node.wait_ready()
            except BaseException:
                node.close()
                raise
            self._node = node
        ends = {}
        for partition, end in self._node.ends().items():
            name = escape_name(partition.topic), escape_name(partition.address)
            self._names[name] = partition
            ends[name] = end
        return ends

    def _learn_begins(self, names: Sequence[PartitionName], seconds: float) -> dict[PartitionName, int]:
        """Where these partitions begin; those for which no store answers just now are left out."""
        unknown = [name for name in names if name not in self._earliest]
        if unknown and self._node is not None:
            found = self._node.earliest([self._names[name] for name in unknown], seconds)
            for name in unknown:
                if self._names[name] in found:
                    self._earliest[name] = found[self._names[name]]
                else:
                    _logger.info("no store says yet where %s begins; it is asked again", format_name(name))
        return {name: self._earliest[name] for name in names if name in self._earliest}

    def _warn_of_ahead(self, standing: ClusterOffset, ends: Mapping[PartitionName, int]) -> None:
        """Stores that hold less than was read already: another one is away, or records were lost; said once."""
        ahead = [name for name, offset in standing.offsets.items() if ends.get(name, 0) < offset]
        if ahead and not self._is_ahead:
            _logger.warning(
                "the stores that are there hold less than was read already (partitions: %d): %s ends at %d, not %d",
                len(ahead),
                format_name(ahead[0]),
                ends.get(ahead[0], 0),
                standing.offsets[ahead[0]],
            )
        self._is_ahead = bool(ahead)

    def _check_named(self, ends: Mapping[PartitionName, int]) -> None:
        for name, offset in self._settings.positions.named.items():
            if name not in ends:
                raise ConfigError(
                    f"option startingOffsets: no store in the cluster has a partition {format_name(name)}"
                )
            if offset > ends[name]:
                raise ConfigError(
                    f"option startingOffsets: {offset} is beyond the end of {format_name(name)}, which is {ends[name]}"
                )

    def _check_gap(self, partition: Partition, expected: int, found: int) -> None:
        if found <= expected:
            return
        if self._settings.fail_on_data_loss:
            raise StorageError(
                f"records {expected} to {found - 1} of {partition} are gone: no store holds them any more "
                "(with option failOnDataLoss set to false they are left out)"
            )
        _logger.warning("records %d to %d of %s are gone, and left out", expected, found - 1, partition)


BUFFER_BYTES_MAX = 16 * 1024 * 1024
"""Records received and not yet taken by Spark."""


class BlockingReader:
    """A reader (see `dafka.roles.Reader`) in a thread that `close` ends. Every method may raise `DafkaError`."""

    def __init__(self, config: Config, topics: Iterable[str] = ()) -> None:
        self._config = config.with_consumer(buffer_bytes_max=min(config.consumer.buffer_bytes_max, BUFFER_BYTES_MAX))
        with ExitStack() as stack:
            self._portal = stack.enter_context(start_blocking_portal("trio", name="dafka"))
            opening = open_reader(topics, self._config)
            self._reader = stack.enter_context(self._portal.wrap_async_context_manager(opening))
            self._stack = stack.pop_all()

    def __enter__(self) -> BlockingReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the node, and ends its thread. May be called again."""
        self._stack.close()

    def wait_ready(self) -> None:
        """Waits until the stores have told what they hold. Raises `DiscoveryError` where there are none."""
        with mention_towers_option():
            self._portal.call(self._reader.wait_ready)

    def ends(self) -> dict[Partition, int]:
        """How far the stores have come."""
        return self._portal.call(self._reader.ends)

    def earliest(self, partitions: Iterable[Partition], seconds: float) -> dict[Partition, int]:
        """The first record of each partition that is still held, as far as stores answer."""
        return self._portal.call(self._reader.earliest, tuple(partitions), seconds)

    def read(
        self, partition: Partition, first_sequence: int, end_sequence: int, seconds: float
    ) -> Iterator[RecordBatch]:
        """The records of a range in runs, as they come; those that nobody holds any more are left out.

        Raises `DiscoveryError` where no cluster is found, `StorageError` where no record came for so long.
        """
        records = self._portal.call(self._reader.read, partition, first_sequence, end_sequence)
        try:
            next_sequence = first_sequence
            while True:
                batch = self._portal.call(self._next_batch, records, next_sequence, seconds)
                if batch is None:
                    return
                yield batch
                next_sequence = batch.end_sequence
        finally:
            self._portal.call(records.close)

    async def _next_batch(self, records: Range, next_sequence: int, seconds: float) -> RecordBatch | None:
        patience = self._config.node.tower_timeout_ms / 1000
        with trio.move_on_after(min(patience, seconds)):
            return await records.next_batch()
        with mention_towers_option():
            self._reader.check_settled()
        with trio.move_on_after(max(seconds - patience, 0)):
            return await records.next_batch()
        raise StorageError(
            f"no store sent record {next_sequence} of {records.partition} within {seconds:g} s, though one had it; "
            "are the stores that hold it running?"
        )
