"""What reading stores once and following them have in common: the options, the columns, and reading a task."""

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
from dafka.spark.options import SUBSCRIPTION_OPTIONS, Options, parse_offsets, read_subscription
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
from dafka.spark.scan import scan
from dafka.spark.schema import check_columns
from dafka.spark.stores import StoreCache, StoredPartition, list_partitions, open_stores
from dafka.storage import Storage

READING_OPTIONS = (
    *PATH_OPTIONS,
    *SUBSCRIPTION_OPTIONS,
    "startingOffsets",
    "startingTimestamp",
    "minPartitions",
    "failOnDataLoss",
)


class StoreQuery:
    """Made on the driver from a user's options, and pickled to the tasks.

    Raises `ConfigError` for options that cannot be.
    """

    def __init__(self, options: Options, schema: StructType, default_start: int) -> None:
        self.columns = check_columns(schema)
        self.subscription = read_subscription(options)
        self.fail_on_data_loss = options.get_bool("failOnDataLoss", True)
        self.tasks_min = parse_min_tasks(options)
        self.since_ms = options.get_int("startingTimestamp", minimum=0)
        if self.since_ms is not None and "startingOffsets" in options:
            raise ConfigError("option startingTimestamp: give it or startingOffsets, not both")
        self.starts = parse_offsets(options, "startingOffsets", default_start)
        self.subscription.check_named("startingOffsets", self.starts)
        self._finder = StoreFinder(options)

    def find_stores(self) -> list[str]:
        """The stores' URLs at this moment. Raises `StorageError`."""
        return self._finder.find()

    def select(self, held: dict[PartitionName, StoredPartition]) -> dict[PartitionName, StoredPartition]:
        """Of what the stores hold, the partitions that are read.

        Raises `ConfigError` for topics that nobody has, `StorageError` for partitions that cannot be told apart.
        """
        if self.fail_on_data_loss:
            self.subscription.check_held(held)
        return self.match(held)

    def match(self, held: dict[PartitionName, StoredPartition]) -> dict[PartitionName, StoredPartition]:
        """The same, whether or not somebody has every topic."""
        matching = {name: each for name, each in held.items() if self.subscription.matches(name[0])}
        for name, each in matching.items():
            if not each.is_unique:
                raise StorageError(f"two partitions are called {format_name(name)} once their names are printed")
        return matching

    def scan(self, task: InputPartition) -> Iterator[pa.RecordBatch]:
        """A task's records. Raises `StorageError`."""
        if isinstance(task, StoreTask):  # Spark makes a task of its own where there is none
            yield from scan(task, self.columns, fail_on_data_loss=self.fail_on_data_loss)


BATCH_OPTIONS = (*READING_OPTIONS, "endingOffsets", "endingTimestamp", "pushFilters")


def make_batch_reader(given: Mapping[str, str], schema: StructType) -> DataSourceReader:
    """The reader for these options. Raises `ConfigError`.

    With `pushFilters` Spark hands filters over, and less is read. Not otherwise: Spark 4.3 keeps the filters of a
    DataFrame's first query, and would leave them out of what the next query on it is given.
    """
    options = Options(given, BATCH_OPTIONS, "reading stores")
    return (
        FilteringBatchReader(options, schema)
        if options.get_bool("pushFilters", False)
        else StoreBatchReader(options, schema)
    )


class StoreBatchReader(DataSourceReader):
    """Plans on the driver, reads in tasks. Raises `ConfigError` for options that cannot be."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._query = StoreQuery(options, schema, EARLIEST)
        self._ends = parse_offsets(options, "endingOffsets", LATEST)
        self._query.subscription.check_named("endingOffsets", self._ends)
        for option, positions, word in (
            ("startingOffsets", self._query.starts, LATEST),
            ("endingOffsets", self._ends, EARLIEST),
        ):
            if positions.default == word:
                raise ConfigError(f"option {option}: {options.get_text(option)!r} would leave nothing to read")
        if "endingTimestamp" in options and "endingOffsets" in options:
            raise ConfigError("option endingTimestamp: give it or endingOffsets, not both")
        self._filters = PushedFilters(
            since_ms=self._query.since_ms, until_ms=options.get_int("endingTimestamp", minimum=0)
        )

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks: none too large, and enough of them. Raises `ConfigError`, `StorageError`."""
        return plan_tasks(trio.run(self._find_ranges), self._query.tasks_min)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """A task's records. Raises `StorageError`."""
        return self._query.scan(partition)

    async def _find_ranges(self) -> list[StoreRange]:
        with single_exception():
            async with open_stores(self._query.find_stores()) as storages:
                ranges = plan_ranges(*self._resolve(self._query.select(await list_partitions(storages))))
                narrowed = [await self._narrow(each, storages[each.url]) for each in ranges]
        return [each for each in narrowed if len(each)]

    def _resolve(
        self, held: dict[PartitionName, StoredPartition]
    ) -> tuple[dict[PartitionName, StoredPartition], dict[PartitionName, int], dict[PartitionName, int]]:
        """What is held of the partitions that are read, and from where to where it is."""
        fail = self._query.fail_on_data_loss
        starts = resolve_offsets("startingOffsets", self._query.starts, held, is_start=True, fail_on_data_loss=fail)
        ends = resolve_offsets("endingOffsets", self._ends, held, is_start=False, fail_on_data_loss=fail)
        for name in self._query.starts.named.keys() & self._ends.named.keys() & held.keys():
            if starts[name] > ends[name]:
                raise ConfigError(
                    f"option endingOffsets: {format_name(name)} would end at {ends[name]}, "
                    f"before it starts at {starts[name]}"
                )
        left = {name: each for name, each in held.items() if self._filters.leaves(name)}
        for name in left:
            starts[name], ends[name] = self._filters.clip(starts[name], ends[name])
        return left, starts, ends

    async def _narrow(self, each: StoreRange, storage: Storage) -> StoreRange:
        """The records of a range whose times are wanted, by the times of the store that is read."""
        start, end = each.start, each.end
        if self._filters.since_ms is not None:
            start = max(start, await storage.find_sequence_by_time(each.partition, self._filters.since_ms))
        if self._filters.until_ms is not None:
            end = min(end, await storage.find_sequence_by_time(each.partition, self._filters.until_ms))
        return attrs.evolve(each, start=min(start, end), end=end)


class FilteringBatchReader(StoreBatchReader):
    """Takes over filters on topic, partition, offset and timestamp."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 (Spark's name)
        """Takes the filters that decide what is read; gives those that Spark must still apply."""
        return self._filters.take(filters)


STREAM_OPTIONS = (*READING_OPTIONS, "maxOffsetsPerTrigger")


class StoreStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Looks at the stores on the driver, reads in tasks. Raises `ConfigError` for options that cannot be."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        options = Options(given, STREAM_OPTIONS, "following stores")
        self._query = StoreQuery(options, schema, LATEST)
        self._rows_max = options.get_int("maxOffsetsPerTrigger")
        self._cache = StoreCache()
        self._target: dict[PartitionName, int] | None = None
        self._seen: dict[PartitionName, int] = {}

    def initialOffset(self) -> Offsets:  # noqa: N802 (Spark's name, as those below)
        """Where a new query begins. Raises `ConfigError`, `StorageError`."""
        held = self._query.select(self._look())
        since_ms = self._query.since_ms
        if since_ms is not None:
            found = {name: self._cache.find_sequence_by_time(each, since_ms) for name, each in held.items()}
            return nest_offsets({name: max(offset, held[name].earliest) for name, offset in found.items()})
        fail = self._query.fail_on_data_loss
        return nest_offsets(
            resolve_offsets("startingOffsets", self._query.starts, held, is_start=True, fail_on_data_loss=fail)
        )

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """`maxOffsetsPerTrigger`, or no limit."""
        return ReadAllAvailable() if self._rows_max is None else ReadMaxRows(self._rows_max)

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802
        """Where the next micro-batch ends. Raises `StorageError` where what was read before is no longer there."""
        held = self._held()
        self._seen = {name: each.end for name, each in held.items()}
        before = flatten_offsets(start)
        if self._target is not None:  # what has come since is the next run's: this one must end
            held = {name: each for name, each in held.items() if name in before or name in self._target}
        starts = {name: before[name] if name in before else self._begin(name, each) for name, each in held.items()}
        ends = {name: max(self._end(name, each, starts[name]), starts[name]) for name, each in held.items()}
        for name in before.keys() - held.keys():
            self._report(f"{format_name(name)} is no longer in any store that is read")
            starts[name] = ends[name] = before[name]
        if self._target is not None:
            ends = {name: max(min(end, self._target.get(name, 0)), starts[name]) for name, end in ends.items()}
        if isinstance(limit, ReadMaxRows):
            ends = limit_rows(starts, ends, limit.max_rows)
        return nest_offsets(ends)

    def reportLatestOffset(self) -> Offsets:  # noqa: N802
        """Where the stores end, as far as was seen: for the query's progress."""
        return nest_offsets(self._seen)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """What is there at this moment is all that this run of the query reads."""
        self._target = {name: each.end for name, each in self._held().items()}

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """The tasks of a micro-batch. Raises `StorageError` where its records are no longer there."""
        before, ends = flatten_offsets(start), flatten_offsets(end)
        held = {name: each for name, each in self._held().items() if name in ends}
        starts = {}
        for name, each in held.items():
            begin = before[name] if name in before else self._begin(name, each)
            if begin < ends[name] and begin < each.earliest:
                if self._query.fail_on_data_loss:
                    raise data_loss_error(name, begin, each.earliest)
                begin = each.earliest
            starts[name] = begin
            ends[name] = min(ends[name], self._end(name, each, ends[name]))
        for name in ends.keys() - held.keys():
            if ends[name] > before.get(name, 0):
                self._report(f"{format_name(name)} is no longer in any store that is read")
        return plan_tasks(plan_ranges(held, starts, ends), self._query.tasks_min)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """A task's records. Raises `StorageError`."""
        return self._query.scan(partition)

    def stop(self) -> None:
        """Closes the stores."""
        self._cache.close()

    def _look(self) -> dict[PartitionName, StoredPartition]:
        return self._cache.list_partitions(self._query.find_stores())

    def _held(self) -> dict[PartitionName, StoredPartition]:
        return self._query.match(self._look())

    def _begin(self, name: PartitionName, held: StoredPartition) -> int:
        """Where a partition begins that came after the query: with its first record."""
        if held.earliest and self._query.fail_on_data_loss:
            raise data_loss_error(name, 0, held.earliest)
        return held.earliest

    def _end(self, name: PartitionName, held: StoredPartition, at_least: int) -> int:
        """How far a partition goes; it must not go back behind what was seen of it."""
        if held.end < at_least:
            self._report(f"{format_name(name)} was seen up to offset {at_least - 1}, and now ends before {held.end}")
        return held.end

    def _report(self, what: str) -> None:
        if self._query.fail_on_data_loss:
            raise StorageError(f"{what}: is a store an older copy, or gone? With failOnDataLoss=false reading goes on")
