"""Drive the reader of a stream without Spark."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from dafka.spark.data_source import DafkaDataSource
from dafka.spark.schema import COLUMNS

Offsets = dict[str, Any]
Row = dict[str, Any]


class Query:
    """A stream, driven as Spark does it: offsets pass through JSON, and each task has a reader, as on an executor."""

    def __init__(self, reader: Any) -> None:
        self.reader = reader
        self._for_tasks = pickle.dumps(reader)

    def initial(self) -> Offsets:
        return self._stored(self.reader.initialOffset())

    def latest(self, start: Offsets, limit: ReadLimit | None = None) -> Offsets:
        return self._stored(self.reader.latestOffset(start, limit or self.reader.getDefaultReadLimit()))

    def read(self, start: Offsets, end: Offsets) -> list[list[Row]]:
        """Return the rows of each task of a micro-batch."""
        tasks = []
        for task in self.reader.partitions(start, end):
            on_executor: DataSourceStreamReader = pickle.loads(self._for_tasks)
            batches: Iterator[Any] = on_executor.read(pickle.loads(pickle.dumps(task)))
            tasks.append([row for batch in batches for row in batch.to_pylist()])
        return tasks

    def _stored(self, offsets: Offsets) -> Offsets:
        stored: Offsets = json.loads(json.dumps(offsets))
        return stored


@contextmanager
def open_query(options: Mapping[str, object], columns: StructType = COLUMNS) -> Iterator[Query]:
    """Open a stream with options, whose names Spark passes in lower case."""
    given = {name.lower(): json.dumps(each) if isinstance(each, dict) else str(each) for name, each in options.items()}
    reader = DafkaDataSource(given).streamReader(columns)
    try:
        yield Query(reader)
    finally:
        reader.stop()
