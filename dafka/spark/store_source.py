"""Stores as a Spark source: read once with `spark.read`, or followed with `spark.readStream`.

The driver lists what the stores hold and plans tasks; the tasks read. A streaming query's offset is the next offset of
each partition. The records between two offsets are the same on each attempt and in each replica, so a query that is
restarted from its checkpoint neither loses nor repeats a record. A partition that appears after the query has started
is read from its first record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs
import pyarrow as pa
import trio
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from dafka.errors import ConfigError, StorageError
from dafka.groups import single_exception
from dafka.spark.filters import PushedFilters
from dafka.spark.offsets import (
    EARLIEST,
    LATEST,
    Offsets,
    PartitionName,
    flatten_offsets,
    format_name,
    limit_rows,
    nest_offsets,
)
from dafka.spark.options import SUBSCRIPTION_OPTIONS, Options, parse_offsets, parse_subscription
from dafka.spark.paths import PATH_OPTIONS, StoreFinder
from dafka.spark.planning import (
    StoreRange,
    StoreTask,
    data_loss_error,
    parse_min_tasks,
    plan_ranges,
    plan_tasks,
    resolve_offsets,
)
from dafka.spark.scan import scan_task
from dafka.spark.schema import HEADERS_OPTION, check_columns
from dafka.spark.stores import StoreCache, StoredPartition, list_partitions, open_stores
from dafka.storage import Storage

SHARED_OPTIONS = (
    *PATH_OPTIONS,
    *SUBSCRIPTION_OPTIONS,
    "startingOffsets",
    "startingTimestamp",
    "minPartitions",
    "failOnDataLoss",
    HEADERS_OPTION,
)
BATCH_OPTIONS = (*SHARED_OPTIONS, "endingOffsets", "endingTimestamp", "pushFilters")
STREAM_OPTIONS = (*SHARED_OPTIONS, "maxOffsetsPerTrigger")


class StoreQuery:
    """A query on stores: the options and the columns that both readers below share.

    It is made on the driver and pickled for the tasks.

    Args:
        options: The options of the reader.
        schema: The columns to return.
        default_start: `EARLIEST` or `LATEST`, for partitions without a starting offset.

    Attributes:
        columns: The columns to return.
        subscription: The topics to read.
        fail_on_data_loss: Whether lost records are an error rather than skipped.
        tasks_min: The least number of tasks.
        since_ms: The first time to read, in milliseconds since 1970, or None for no limit.
        starts: The offsets to start from.
        finder: Finds the stores.

    Raises:
        ConfigError: If an option or a column is not valid.
    """

    def __init__(self, options: Options, schema: StructType, default_start: int) -> None:
        self.columns = check_columns(schema)
        self.subscription = parse_subscription(options)
        self.fail_on_data_loss = options.get_bool("failOnDataLoss", True)
        self.tasks_min = parse_min_tasks(options)
        self.since_ms = options.get_int("startingTimestamp", minimum=0)
        if self.since_ms is not None and "startingOffsets" in options:
            raise ConfigError("option startingTimestamp: expected this or startingOffsets, not both")
        self.starts = parse_offsets(options, "startingOffsets", default_start)
        self.subscription.check_offsets("startingOffsets", self.starts)
        self.finder = StoreFinder(options)

    def select_partitions(
        self, stored: dict[PartitionName, StoredPartition], *, is_first: bool = True
    ) -> dict[PartitionName, StoredPartition]:
        """Select the stored partitions that the query reads.

        Args:
            stored: The partitions that the stores hold.
            is_first: Whether this is the first look of the query, when each topic that it names must be stored.

        Returns:
            The partitions.

        Raises:
            ConfigError: If a topic is not stored.
            StorageError: If the names of two partitions are the same once they are escaped.
        """
        if is_first and self.fail_on_data_loss:
            self.subscription.check_topics(stored)
        selected = {name: each for name, each in stored.items() if self.subscription.matches(name[0])}
        for name, each in selected.items():
            if not each.is_unique:
                raise StorageError(
                    f"two partitions are both shown as {format_name(name)}, because their names are not UTF-8; "
                    "select other topics"
                )
        return selected

    def read_task(self, task: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a task's records; raise `StorageError` if they cannot be read."""
        if isinstance(task, StoreTask):  # if there are no tasks, Spark makes one of its own
            yield from scan_task(task, self.columns, fail_on_data_loss=self.fail_on_data_loss)


def make_batch_reader(given: Mapping[str, str], schema: StructType) -> DataSourceReader:
    """Make the reader of a batch query.

    Filters are pushed down only if the option `pushFilters` is set. Spark 4.3 keeps the filters of the first query on
    a DataFrame, and does not apply them in the next query on it.

    Args:
        given: The options of the query.
        schema: The columns to return.

    Returns:
        The reader.

    Raises:
        ConfigError: If an option or a column is not valid.
    """
    options = Options(given, BATCH_OPTIONS, "reading stores")
    is_filtering = options.get_bool("pushFilters", False)
    return FilteringBatchReader(options, schema) if is_filtering else StoreBatchReader(options, schema)


class StoreBatchReader(DataSourceReader):
    """Reads stores once.

    Args:
        options: The options of the query.
        schema: The columns to return.

    Raises:
        ConfigError: If an option or a column is not valid.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        self._query = StoreQuery(options, schema, EARLIEST)
        self._ends = parse_offsets(options, "endingOffsets", LATEST)
        self._query.subscription.check_offsets("endingOffsets", self._ends)
        for option, requested, empty in (
            ("startingOffsets", self._query.starts, LATEST),
            ("endingOffsets", self._ends, EARLIEST),
        ):
            if requested.default == empty:
                raise ConfigError(f"option {option}: {options.get_text(option)!r} would leave nothing to read")
        if "endingTimestamp" in options and "endingOffsets" in options:
            raise ConfigError("option endingTimestamp: expected this or endingOffsets, not both")
        self._filters = PushedFilters(
            since_ms=self._query.since_ms, until_ms=options.get_int("endingTimestamp", minimum=0)
        )

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks; raise `ConfigError` or `StorageError` if there is nothing to read as requested."""
        return plan_tasks(trio.run(self._find_ranges), self._query.tasks_min)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a task's records; raise `StorageError` if they cannot be read."""
        return self._query.read_task(partition)

    async def _find_ranges(self) -> list[StoreRange]:
        with single_exception():
            async with open_stores(self._query.finder.find_stores()) as storages:
                stored = self._query.select_partitions(await list_partitions(storages))
                ranges = [await self._clip_times(each, storages[each.url]) for each in self._plan_ranges(stored)]
        return [each for each in ranges if len(each)]

    def _plan_ranges(self, stored: dict[PartitionName, StoredPartition]) -> list[StoreRange]:
        fail = self._query.fail_on_data_loss
        starts = resolve_offsets("startingOffsets", self._query.starts, stored, is_start=True, fail_on_data_loss=fail)
        ends = resolve_offsets("endingOffsets", self._ends, stored, is_start=False, fail_on_data_loss=fail)
        for name in self._query.starts.by_partition.keys() & self._ends.by_partition.keys() & stored.keys():
            if starts[name] > ends[name]:
                raise ConfigError(
                    f"option endingOffsets: expected at least {starts[name]}, where {format_name(name)} starts, "
                    f"not {ends[name]}"
                )
        allowed = {name: each for name, each in stored.items() if self._filters.allows_partition(name)}
        for name in allowed:
            starts[name], ends[name] = self._filters.clip_range(starts[name], ends[name])
        return plan_ranges(allowed, starts, ends)

    async def _clip_times(self, each: StoreRange, storage: Storage) -> StoreRange:
        """Return the part of a range whose times are requested, by the times in the store that is read."""
        start, end = each.start, each.end
        if self._filters.since_ms is not None:
            start = max(start, await storage.find_sequence_by_time(each.partition, self._filters.since_ms))
        if self._filters.until_ms is not None:
            end = min(end, await storage.find_sequence_by_time(each.partition, self._filters.until_ms))
        return attrs.evolve(each, start=min(start, end), end=end)


class FilteringBatchReader(StoreBatchReader):
    """A batch reader that Spark pushes filters down to."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 (Spark's name)
        """Take the filters on a record's columns, and return those that Spark must still apply."""
        return self._filters.push(filters)


class StoreStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows stores in a streaming query.

    Args:
        given: The options of the query.
        schema: The columns to return.

    Raises:
        ConfigError: If an option or a column is not valid.
    """

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        options = Options(given, STREAM_OPTIONS, "following stores")
        self._query = StoreQuery(options, schema, LATEST)
        self._rows_max = options.get_int("maxOffsetsPerTrigger")
        self._cache = StoreCache()
        self._target: dict[PartitionName, int] | None = None
        self._seen: dict[PartitionName, int] = {}

    def initialOffset(self) -> Offsets:  # noqa: N802 (Spark's name, as those below)
        """Return where a new query starts; raise `ConfigError` or `StorageError` if it cannot start there."""
        stored = self._list_partitions(is_first=True)
        since_ms = self._query.since_ms
        if since_ms is not None:
            found = {name: self._cache.find_sequence_by_time(each, since_ms) for name, each in stored.items()}
            return nest_offsets({name: max(offset, stored[name].earliest) for name, offset in found.items()})
        starts, fail = self._query.starts, self._query.fail_on_data_loss
        return nest_offsets(resolve_offsets("startingOffsets", starts, stored, is_start=True, fail_on_data_loss=fail))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit that the option `maxOffsetsPerTrigger` sets."""
        return ReadAllAvailable() if self._rows_max is None else ReadMaxRows(self._rows_max)

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802
        """Return where the next micro-batch ends; raise `StorageError` if stores have lost what was there before."""
        stored = self._list_partitions()
        self._seen = {name: each.end for name, each in stored.items()}
        before = flatten_offsets(start)
        if self._target is not None:  # newer partitions are left for the next run, so that this one ends
            stored = {name: each for name, each in stored.items() if name in before or name in self._target}
        starts = {
            name: before[name] if name in before else self._first_offset(name, each) for name, each in stored.items()
        }
        ends = {name: max(self._check_end(name, each, starts[name]), starts[name]) for name, each in stored.items()}
        for name in before.keys() - stored.keys():
            self._report_loss(f"{format_name(name)} is no longer in any of the stores")
            starts[name] = ends[name] = before[name]
        if self._target is not None:
            ends = {name: max(min(end, self._target.get(name, 0)), starts[name]) for name, end in ends.items()}
        if isinstance(limit, ReadMaxRows):
            ends = limit_rows(starts, ends, limit.max_rows)
        return nest_offsets(ends)

    def reportLatestOffset(self) -> Offsets:  # noqa: N802
        """Return where the stores ended at the last look, for the query's progress report."""
        return nest_offsets(self._seen)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix what this run of the query reads: the records that are stored now."""
        self._target = {name: each.end for name, each in self._list_partitions().items()}

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """Return the tasks of a micro-batch; raise `StorageError` if its records are no longer stored."""
        before, ends = flatten_offsets(start), flatten_offsets(end)
        stored = {name: each for name, each in self._list_partitions().items() if name in ends}
        starts = {}
        for name, each in stored.items():
            first = before[name] if name in before else self._first_offset(name, each)
            if first < ends[name] and first < each.earliest:
                if self._query.fail_on_data_loss:
                    raise data_loss_error(name, first, each.earliest)
                first = each.earliest
            starts[name] = first
            ends[name] = min(ends[name], self._check_end(name, each, ends[name]))
        for name in ends.keys() - stored.keys():
            if ends[name] > before.get(name, 0):
                self._report_loss(f"{format_name(name)} is no longer in any of the stores")
        return plan_tasks(plan_ranges(stored, starts, ends), self._query.tasks_min)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a task's records; raise `StorageError` if they cannot be read."""
        return self._query.read_task(partition)

    def stop(self) -> None:
        """Close the stores."""
        self._cache.close()

    def _list_partitions(self, *, is_first: bool = False) -> dict[PartitionName, StoredPartition]:
        stored = self._cache.list_partitions(self._query.finder.find_stores())
        return self._query.select_partitions(stored, is_first=is_first)

    def _first_offset(self, name: PartitionName, stored: StoredPartition) -> int:
        """Return where to start a partition that appeared after the query had started."""
        if stored.earliest and self._query.fail_on_data_loss:
            raise data_loss_error(name, 0, stored.earliest)
        return stored.earliest

    def _check_end(self, name: PartitionName, stored: StoredPartition, at_least: int) -> int:
        """Return the end of a partition, after a check that it is not before an offset that was seen."""
        if stored.end < at_least:
            self._report_loss(f"{format_name(name)} was seen up to offset {at_least - 1}, and now ends at {stored.end}")
        return stored.end

    def _report_loss(self, what: str) -> None:
        if self._query.fail_on_data_loss:
            raise StorageError(
                f"{what}; check that no store was removed or replaced by an older copy "
                "(set failOnDataLoss to false to continue without the records)"
            )
