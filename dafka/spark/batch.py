"""Reading stores once: `spark.read.format("dafka").load("orders.db")`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs
import pyarrow as pa
import trio
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from dafka.errors import ConfigError
from dafka.groups import single_exception
from dafka.spark.filters import Narrowing
from dafka.spark.offsets import EARLIEST, LATEST, Name, read_positions, show
from dafka.spark.options import Options
from dafka.spark.planning import Range, cover, make_tasks, resolve
from dafka.spark.reading import READING_OPTIONS, StoreReading
from dafka.spark.stores import Held, hold, open_stores
from dafka.storage import Storage

BATCH_OPTIONS = (*READING_OPTIONS, "endingOffsets", "endingTimestamp", "pushFilters")


def make_reader(given: Mapping[str, str], schema: StructType) -> DataSourceReader:
    """The reader for these options. Raises `ConfigError`.

    With `pushFilters` Spark hands filters over, and less is read. Not otherwise: Spark 4.3 keeps the filters of a
    DataFrame's first query, and would leave them out of what the next query on it is given.
    """
    options = Options(given, BATCH_OPTIONS, "reading stores")
    return PushingReader(options, schema) if options.flag("pushFilters", False) else StoreReader(options, schema)


class StoreReader(DataSourceReader):
    """Plans on the driver, reads in tasks. Raises `ConfigError` for options that cannot be."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._reading = StoreReading(options, schema, EARLIEST)
        self._ends = read_positions(options, "endingOffsets", LATEST)
        self._reading.subscription.check_named("endingOffsets", self._ends)
        for option, positions, word in (
            ("startingOffsets", self._reading.starts, LATEST),
            ("endingOffsets", self._ends, EARLIEST),
        ):
            if positions.default == word:
                raise ConfigError(f"option {option}: {options.text(option)!r} would leave nothing to read")
        if "endingTimestamp" in options and "endingOffsets" in options:
            raise ConfigError("option endingTimestamp: give it or endingOffsets, not both")
        self._narrowing = Narrowing(
            since_ms=self._reading.since_ms, until_ms=options.number("endingTimestamp", minimum=0)
        )

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks: none too large, and enough of them. Raises `ConfigError`, `StorageError`."""
        return make_tasks(trio.run(self._find_ranges), self._reading.tasks_min)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """A task's records. Raises `StorageError`."""
        return self._reading.scan(partition)

    async def _find_ranges(self) -> list[Range]:
        with single_exception():
            async with open_stores(self._reading.find_stores()) as storages:
                ranges = cover(*self._resolve(self._reading.select(await hold(storages))))
                narrowed = [await self._narrow(each, storages[each.url]) for each in ranges]
        return [each for each in narrowed if len(each)]

    def _resolve(self, held: dict[Name, Held]) -> tuple[dict[Name, Held], dict[Name, int], dict[Name, int]]:
        """What is held of the partitions that are read, and from where to where it is."""
        fail = self._reading.fail_on_data_loss
        starts = resolve("startingOffsets", self._reading.starts, held, is_start=True, fail_on_data_loss=fail)
        ends = resolve("endingOffsets", self._ends, held, is_start=False, fail_on_data_loss=fail)
        for name in self._reading.starts.named.keys() & self._ends.named.keys() & held.keys():
            if starts[name] > ends[name]:
                raise ConfigError(
                    f"option endingOffsets: {show(name)} would end at {ends[name]}, before it starts at {starts[name]}"
                )
        left = {name: each for name, each in held.items() if self._narrowing.leaves(name)}
        for name in left:
            starts[name], ends[name] = self._narrowing.clip(starts[name], ends[name])
        return left, starts, ends

    async def _narrow(self, each: Range, storage: Storage) -> Range:
        """The records of a range whose times are wanted, by the times of the store that is read."""
        start, end = each.start, each.end
        if self._narrowing.since_ms is not None:
            start = max(start, await storage.find_sequence_by_time(each.partition, self._narrowing.since_ms))
        if self._narrowing.until_ms is not None:
            end = min(end, await storage.find_sequence_by_time(each.partition, self._narrowing.until_ms))
        return attrs.evolve(each, start=min(start, end), end=end)


class PushingReader(StoreReader):
    """Takes over filters on topic, partition, offset and timestamp."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 (Spark's name)
        """Takes the filters that decide what is read; gives those that Spark must still apply."""
        return self._narrowing.take(filters)
