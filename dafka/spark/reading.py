"""What reading stores once and following them have in common: the options, the columns, and reading a task."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from dafka.errors import ConfigError, StorageError
from dafka.spark.offsets import Name, read_positions, show
from dafka.spark.options import Options
from dafka.spark.paths import PATH_OPTIONS, StoreFinder
from dafka.spark.planning import StoreTask, tasks_wanted
from dafka.spark.scan import scan
from dafka.spark.schema import columns_of
from dafka.spark.stores import Held
from dafka.spark.subscription import SUBSCRIPTION_OPTIONS, read_subscription

READING_OPTIONS = (
    *PATH_OPTIONS,
    *SUBSCRIPTION_OPTIONS,
    "startingOffsets",
    "startingTimestamp",
    "minPartitions",
    "failOnDataLoss",
)


class StoreReading:
    """Made on the driver from a user's options, and pickled to the tasks.

    Raises `ConfigError` for options that cannot be.
    """

    def __init__(self, options: Options, schema: StructType, default_start: int) -> None:
        self.columns = columns_of(schema)
        self.subscription = read_subscription(options)
        self.fail_on_data_loss = options.flag("failOnDataLoss", True)
        self.tasks_min = tasks_wanted(options)
        self.since_ms = options.number("startingTimestamp", minimum=0)
        if self.since_ms is not None and "startingOffsets" in options:
            raise ConfigError("option startingTimestamp: give it or startingOffsets, not both")
        self.starts = read_positions(options, "startingOffsets", default_start)
        self.subscription.check_named("startingOffsets", self.starts)
        self._finder = StoreFinder(options)

    def find_stores(self) -> list[str]:
        """The stores' URLs at this moment. Raises `StorageError`."""
        return self._finder.find()

    def select(self, held: dict[Name, Held]) -> dict[Name, Held]:
        """Of what the stores hold, the partitions that are read.

        Raises `ConfigError` for topics that nobody has, `StorageError` for partitions that cannot be told apart.
        """
        if self.fail_on_data_loss:
            self.subscription.check_held(held)
        return self.match(held)

    def match(self, held: dict[Name, Held]) -> dict[Name, Held]:
        """The same, whether or not somebody has every topic."""
        matching = {name: each for name, each in held.items() if self.subscription.matches(name[0])}
        for name, each in matching.items():
            if not each.is_alone:
                raise StorageError(f"two partitions are called {show(name)} once their names are printed")
        return matching

    def scan(self, task: InputPartition) -> Iterator[pa.RecordBatch]:
        """A task's records. Raises `StorageError`."""
        if isinstance(task, StoreTask):  # Spark makes a task of its own where there is none
            yield from scan(task, self.columns, fail_on_data_loss=self.fail_on_data_loss)
