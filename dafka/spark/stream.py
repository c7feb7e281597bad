"""Following stores: `spark.readStream.format("dafka").load("orders.db")`.

Offsets are the next one of each partition. A partition that was not there when the query began is read from its first
record on. What is between two offsets is the same however often it is asked for, and whichever store it is read from,
so a query goes on from its checkpoint with no record lost or doubled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from dafka.errors import StorageError
from dafka.spark.keeper import StoreKeeper
from dafka.spark.limits import take_rows
from dafka.spark.offsets import LATEST, Name, Offsets, flatten, nest, show
from dafka.spark.options import Options
from dafka.spark.planning import cover, lost, make_tasks, resolve
from dafka.spark.reading import READING_OPTIONS, StoreReading
from dafka.spark.stores import Held

STREAM_OPTIONS = (*READING_OPTIONS, "maxOffsetsPerTrigger")


class StoreStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Looks at the stores on the driver, reads in tasks. Raises `ConfigError` for options that cannot be."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        options = Options(given, STREAM_OPTIONS, "following stores")
        self._reading = StoreReading(options, schema, LATEST)
        self._rows_max = options.number("maxOffsetsPerTrigger")
        self._keeper = StoreKeeper()
        self._target: dict[Name, int] | None = None
        self._seen: dict[Name, int] = {}

    def initialOffset(self) -> Offsets:  # noqa: N802 (Spark's name, as those below)
        """Where a new query begins. Raises `ConfigError`, `StorageError`."""
        held = self._reading.select(self._look())
        since_ms = self._reading.since_ms
        if since_ms is not None:
            found = {name: self._keeper.find_sequence_by_time(each, since_ms) for name, each in held.items()}
            return nest({name: max(offset, held[name].earliest) for name, offset in found.items()})
        fail = self._reading.fail_on_data_loss
        return nest(resolve("startingOffsets", self._reading.starts, held, is_start=True, fail_on_data_loss=fail))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """`maxOffsetsPerTrigger`, or no limit."""
        return ReadAllAvailable() if self._rows_max is None else ReadMaxRows(self._rows_max)

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802
        """Where the next micro-batch ends. Raises `StorageError` where what was read before is no longer there."""
        held = self._held()
        self._seen = {name: each.end for name, each in held.items()}
        before = flatten(start)
        if self._target is not None:  # what has come since is the next run's: this one must end
            held = {name: each for name, each in held.items() if name in before or name in self._target}
        starts = {name: before[name] if name in before else self._begin(name, each) for name, each in held.items()}
        ends = {name: max(self._end(name, each, starts[name]), starts[name]) for name, each in held.items()}
        for name in before.keys() - held.keys():
            self._report(f"{show(name)} is no longer in any store that is read")
            starts[name] = ends[name] = before[name]
        if self._target is not None:
            ends = {name: max(min(end, self._target.get(name, 0)), starts[name]) for name, end in ends.items()}
        if isinstance(limit, ReadMaxRows):
            ends = take_rows(starts, ends, limit.max_rows)
        return nest(ends)

    def reportLatestOffset(self) -> Offsets:  # noqa: N802
        """Where the stores end, as far as was seen: for the query's progress."""
        return nest(self._seen)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """What is there at this moment is all that this run of the query reads."""
        self._target = {name: each.end for name, each in self._held().items()}

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """The tasks of a micro-batch. Raises `StorageError` where its records are no longer there."""
        before, ends = flatten(start), flatten(end)
        held = {name: each for name, each in self._held().items() if name in ends}
        starts = {}
        for name, each in held.items():
            begin = before[name] if name in before else self._begin(name, each)
            if begin < ends[name] and begin < each.earliest:
                if self._reading.fail_on_data_loss:
                    raise lost(name, begin, each.earliest)
                begin = each.earliest
            starts[name] = begin
            ends[name] = min(ends[name], self._end(name, each, ends[name]))
        for name in ends.keys() - held.keys():
            if ends[name] > before.get(name, 0):
                self._report(f"{show(name)} is no longer in any store that is read")
        return make_tasks(cover(held, starts, ends), self._reading.tasks_min)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """A task's records. Raises `StorageError`."""
        return self._reading.scan(partition)

    def stop(self) -> None:
        """Closes the stores."""
        self._keeper.close()

    def _look(self) -> dict[Name, Held]:
        return self._keeper.held(self._reading.find_stores())

    def _held(self) -> dict[Name, Held]:
        return self._reading.match(self._look())

    def _begin(self, name: Name, held: Held) -> int:
        """Where a partition begins that came after the query: with its first record."""
        if held.earliest and self._reading.fail_on_data_loss:
            raise lost(name, 0, held.earliest)
        return held.earliest

    def _end(self, name: Name, held: Held, at_least: int) -> int:
        """How far a partition goes; it must not go back behind what was seen of it."""
        if held.end < at_least:
            self._report(f"{show(name)} was seen up to offset {at_least - 1}, and now ends before {held.end}")
        return held.end

    def _report(self, what: str) -> None:
        if self._reading.fail_on_data_loss:
            raise StorageError(f"{what}: is a store an older copy, or gone? With failOnDataLoss=false reading goes on")
