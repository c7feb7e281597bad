"""Stores as a Spark source: read once with `spark.read`, or followed with `spark.readStream`.

The driver lists the partitions of the stores and plans tasks; the tasks read records. A streaming query's offset is a
`StreamOffset`. The records of a micro-batch, and their division into tasks, are the same on each attempt and with each
replica, so a query that is restarted from its checkpoint neither loses nor repeats a record. A partition that appears
after the query has started is read from its first record.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import attrs
import pyarrow as pa
import trio
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from dafka.errors import ConfigError, StorageError
from dafka.exceptions import unwrap_group
from dafka.spark.filters import PushedFilters
from dafka.spark.offsets import (
    EARLIEST,
    LATEST,
    PartitionName,
    StreamOffset,
    format_name,
    nest_offsets,
)
from dafka.spark.options import SUBSCRIPTION_OPTIONS, Options, parse_offsets, parse_subscription
from dafka.spark.paths import PATH_OPTIONS, StoreFinder
from dafka.spark.planning import (
    OffsetRange,
    StoreTask,
    data_loss_error,
    divide_ranges,
    plan_task,
    resolve_offsets,
    warn_of_skipped,
)
from dafka.spark.scan import scan_task
from dafka.spark.schema import HEADERS_OPTION, check_columns
from dafka.spark.stores import StoreCache, StoredPartition, list_partitions, open_stores
from dafka.storage import Storage
from dafka.storage.plugin_helpers import now_ms

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

    It is made on the driver and pickled for the tasks. Raise `ConfigError` if an option or a column is not valid.
    """

    def __init__(self, options: Options, schema: StructType, default_start: int) -> None:
        self.columns = check_columns(schema)
        self.subscription = parse_subscription(options)
        self.fail_on_data_loss = options.get_bool("failOnDataLoss", True)
        self.tasks_min = options.get_int("minPartitions") or os.cpu_count() or 1
        self.since_ms = options.get_int("startingTimestamp", minimum=0)
        if self.since_ms is not None and "startingOffsets" in options:
            raise ConfigError("option startingTimestamp: expected this or startingOffsets, not both")
        self.starts = parse_offsets(options, "startingOffsets", default_start)
        self.subscription.check_offsets("startingOffsets", self.starts)
        self.finder = StoreFinder(options)

    def select_partitions(
        self, stored: dict[PartitionName, StoredPartition], *, is_first: bool = True
    ) -> dict[PartitionName, StoredPartition]:
        """Return the stored partitions that the query reads.

        Raise `ConfigError` if a named topic is not stored at the query's first listing, and `StorageError` if two
        partitions have the same escaped name.
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
        if isinstance(task, StoreTask):  # if there are no tasks, Spark creates one
            yield from scan_task(task, self.columns, fail_on_data_loss=self.fail_on_data_loss)


def make_batch_reader(given: Mapping[str, str], schema: StructType) -> DataSourceReader:
    """Return the reader of a batch query; raise `ConfigError` if an option or a column is not valid.

    Filters are pushed down only if the option `pushFilters` is set. Spark 4.3 keeps the filters of the first query on
    a DataFrame, and does not apply them in the next query on it.
    """
    options = Options(given, BATCH_OPTIONS, "reading stores")
    is_filtering = options.get_bool("pushFilters", False)
    return FilteringBatchReader(options, schema) if is_filtering else StoreBatchReader(options, schema)


class StoreBatchReader(DataSourceReader):
    """Reads stores once."""

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
        """Return the tasks; raise `ConfigError` or `StorageError` if the request cannot be met."""
        return trio.run(self._plan_tasks)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a task's records; raise `StorageError` if they cannot be read."""
        return self._query.read_task(partition)

    async def _plan_tasks(self) -> list[StoreTask]:
        with unwrap_group():
            async with open_stores(self._query.finder.find_stores()) as storages:
                stored = self._query.select_partitions(await list_partitions(storages))
                ranges = self._find_ranges(stored)
                if self._filters.since_ms is not None or self._filters.until_ms is not None:
                    ranges = [part for each in ranges for part in await self._clip_times(each, stored, storages)]
        return [plan_task(stored, task) for task in divide_ranges(ranges, self._query.tasks_min)]

    def _find_ranges(self, stored: dict[PartitionName, StoredPartition]) -> list[OffsetRange]:
        fail = self._query.fail_on_data_loss
        starts = resolve_offsets("startingOffsets", self._query.starts, stored, is_start=True, fail_on_data_loss=fail)
        ends = resolve_offsets("endingOffsets", self._ends, stored, is_start=False, fail_on_data_loss=fail)
        for name in self._query.starts.by_partition.keys() & self._ends.by_partition.keys() & stored.keys():
            if starts[name] > ends[name]:
                raise ConfigError(
                    f"option endingOffsets: expected at least {starts[name]}, where {format_name(name)} starts, "
                    f"not {ends[name]}"
                )
        allowed = [name for name in stored if self._filters.allows_partition(name)]
        ranges = [(name, *self._filters.clip_range(starts[name], ends[name])) for name in allowed]
        return [each for each in ranges if each[1] < each[2]]

    async def _clip_times(
        self, whole: OffsetRange, stored: Mapping[PartitionName, StoredPartition], storages: Mapping[str, Storage]
    ) -> list[OffsetRange]:
        """Return the parts of a range with the requested times of storing, according to the stores that are read."""
        name, first, last = whole
        parts: list[OffsetRange] = []
        for url, first_read, last_read in stored[name].choose_replicas(first, last):
            start, end = first_read, last_read
            find = partial(storages[url].find_sequence_by_time, stored[name].partition)
            if self._filters.since_ms is not None:
                start = max(start, await find(self._filters.since_ms))
            if self._filters.until_ms is not None:
                end = min(end, await find(self._filters.until_ms))
            if parts and parts[-1][2] == start < end:  # the choice of stores must not divide the range
                start = parts.pop()[1]
            if start < end:
                parts.append((name, start, end))
        return parts


class FilteringBatchReader(StoreBatchReader):
    """A batch reader with filter pushdown."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 (Spark's name)
        """Take the filters on a record's columns, and return the filters that Spark must still apply."""
        return self._filters.push(filters)


class StoreStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows stores in a streaming query."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        options = Options(given, STREAM_OPTIONS, "following stores")
        self._query = StoreQuery(options, schema, LATEST)
        self._rows_max = options.get_int("maxOffsetsPerTrigger")
        self._cache = StoreCache()
        self._target: dict[PartitionName, int] | None = None
        self._seen: dict[PartitionName, int] = {}
        self._warned: set[tuple[object, object]] = set()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 (Spark's name, as those below)
        """Return where a new query starts; raise `ConfigError` or `StorageError` if it cannot start there."""
        stored = self._list_partitions(is_first=True)
        since_ms = self._query.since_ms
        if since_ms is not None:
            found = {name: self._cache.find_sequence_by_time(each, since_ms) for name, each in stored.items()}
            offsets = {name: max(offset, stored[name].earliest) for name, offset in found.items()}
        else:
            starts, fail = self._query.starts, self._query.fail_on_data_loss
            offsets = resolve_offsets("startingOffsets", starts, stored, is_start=True, fail_on_data_loss=fail)
        initial = StreamOffset(offsets=offsets, tasks_min=self._query.tasks_min, timestamp=now_ms())
        return attrs.evolve(initial, stores=self._cache.identities).to_checkpoint()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit that the option `maxOffsetsPerTrigger` sets."""
        return ReadAllAvailable() if self._rows_max is None else ReadMaxRows(self._rows_max)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return where the next micro-batch ends, or `start` if there are no new records.

        Raise `StorageError` if stores have lost records.
        """
        offset = StreamOffset.from_checkpoint(start)
        stored = self._list_partitions()
        gone = offset.offsets.keys() - stored.keys()
        for name in sorted(gone):
            self._check_gone(name, offset)
        self._warn_of_replaced_stores(offset, stored)
        self._seen = {name: each.end for name, each in stored.items()}
        self._seen.update({name: max(offset.offsets[name], offset.unread.get(name, 0)) for name in gone})
        if self._target is not None:  # newer partitions are read in the next run, so that this one ends
            stored = {name: each for name, each in stored.items() if name in offset.offsets or name in self._target}
        for name, each in stored.items():
            self._check_end(name, each, offset.offsets.get(name, 0))
        earliest = {name: self._first_offset(name, each) for name, each in stored.items() if name not in offset.offsets}
        ends = {name: each.end for name, each in stored.items()}
        if self._target is not None:
            ends = {name: min(end, self._target.get(name, 0)) for name, end in ends.items()}
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        reached = offset.advance(ends, earliest, rows_max, self._query.tasks_min)
        if reached is offset:
            return start
        unread = {name: each.end for name, each in stored.items() if each.end > reached.offsets.get(name, each.end)}
        return attrs.evolve(reached, unread=unread, stores=self._cache.identities).to_checkpoint()

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the ends of the stores in the last listing, for the query's progress report."""
        return {"offsets": nest_offsets(self._seen)}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix what this run of the query reads: the records that are stored now."""
        self._target = {name: each.end for name, each in self._list_partitions().items()}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a micro-batch, which depend only on its end; raise `StorageError` if records are lost.

        For the first micro-batch of a restarted query, `start` is where a new query would start now.
        """
        if start == end:
            return []
        batch = StreamOffset.from_checkpoint(end)
        ranges = batch.ranges()
        stored = self._list_partitions()
        for name, (first, last) in ranges.items():
            if name not in stored:
                self._report_loss(name, first, last, "is no longer in any of the stores")
                continue
            each = stored[name]
            if first < each.earliest:
                self._report_trimmed(name, first, min(each.earliest, last))
            if each.end < last:
                self._report_loss(name, max(first, each.end), last, _describe_end(each.end, last))
        division = divide_ranges(((name, *each) for name, each in ranges.items()), batch.tasks_min)
        return [plan_task(stored, task) for task in division]

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
        """Return the first offset of a partition that appeared after the query had started."""
        if stored.earliest:
            self._report_trimmed(name, 0, stored.earliest)
        return stored.earliest

    def _check_end(self, name: PartitionName, stored: StoredPartition, position: int) -> None:
        """Report a partition that ends before the query's position, so that new records up to it will not be read."""
        if stored.end < position:
            self._report_loss(name, stored.end, position, _describe_end(stored.end, position))

    def _check_gone(self, name: PartitionName, offset: StreamOffset) -> None:
        """Report a partition that no store has any more, unless its store has forgotten it after all records were read.

        A store forgets an ended partition when retention has dropped all of its records.
        """
        position = offset.offsets[name]
        end = max(self._seen.get(name, position), offset.unread.get(name, position))
        stores = self._cache.identities
        if end > position or any(stores.get(url) != identity for url, identity in offset.stores.items()):
            self._report_loss(name, position, end, "is no longer in any of the stores")

    def _warn_of_replaced_stores(self, offset: StreamOffset, stored: Mapping[PartitionName, StoredPartition]) -> None:
        """Log the records of a replaced store before the query's position, since they count as read."""
        for url, identity in offset.stores.items():
            if (url, identity) in self._warned or self._cache.identities.get(url, identity) == identity:
                continue
            self._warned.add((url, identity))
            for name, each in sorted(stored.items()):
                end = min(offset.offsets.get(name, 0), each.end)
                if end > each.earliest and any(replica.url == url for replica in each.replicas):
                    warn_of_skipped(name, each.earliest, end, f"{url} was replaced, and they count as read")

    def _report_trimmed(self, name: PartitionName, first: int, earliest: int) -> None:
        """Report records that retention has dropped before they were read."""
        if self._query.fail_on_data_loss:
            raise data_loss_error(name, first, earliest)
        self._warn(name, first, earliest, "they are no longer in the stores")

    def _report_loss(self, name: PartitionName, first: int, end: int, what: str) -> None:
        """Report that a partition has lost records from `first` up to `end`, which is `first` if unknown."""
        if self._query.fail_on_data_loss:
            raise StorageError(
                f"{format_name(name)} {what}; check that no store was removed or replaced by an older copy "
                "(set failOnDataLoss to false to continue without the records)"
            )
        self._warn(name, first, end, f"the partition {what}")

    def _warn(self, name: PartitionName, first: int, end: int, why: str) -> None:
        """Log skipped records once; a stream lists its stores many times a second."""
        if (name, end) not in self._warned:
            self._warned.add((name, end))
            warn_of_skipped(name, first, end, why)


def _describe_end(end: int, position: int) -> str:
    return f"was seen up to offset {position - 1}, and now ends at {end}"
