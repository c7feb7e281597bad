"""The Spark data source `dafka`, and its options.

Spark pickles the class to its workers. The readers and writers are therefore imported only when they are used.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from dafka.errors import ConfigError
from dafka.spark.schema import default_columns

_DAEMON = "pyspark.daemon"
"""The module that forks Spark's Python workers, in which the data source runs."""

_NO_OPTIONS = (
    "Spark does not pass the options of CREATE TABLE on to a data source in Python: name them in the statement, as in "
    "SELECT * FROM orders WITH (path = 'orders.db'), or make a view, as in CREATE TEMPORARY VIEW orders USING dafka "
    "OPTIONS (path 'orders.db')"
)


def hide_closed_connections() -> None:
    """Make a worker end without a traceback if Spark has closed its connection.

    Spark closes the connection when it has the result, or does not need it. The daemon then prints a traceback of
    `BrokenPipeError`, although nothing has failed. It prints other exceptions as before. In a process that is not a
    worker, this changes nothing.
    """
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is None or spec.name != _DAEMON or isinstance(main.__dict__["traceback"], SimpleNamespace):
        return
    traceback = main.__dict__["traceback"]

    def print_exc() -> None:
        if not isinstance(sys.exception(), BrokenPipeError):
            traceback.print_exc()

    # Replaces only the daemon's name, not the module that other code uses.
    main.__dict__["traceback"] = SimpleNamespace(print_exc=print_exc, format_exc=traceback.format_exc)


hide_closed_connections()  # every worker of the data source imports this module


class DafkaDataSource(DataSource):
    """The Spark data source `dafka`: stores as tables and streams, a running cluster as a stream and as a sink.

    `make_session` registers it. Register it with your own session by `register(session)`, then use
    `session.read.format("dafka")`. Columns and options that Spark's Kafka source also has are the same.

    Options of all reads:

    - `startingOffsets`: `earliest`, `latest`, or JSON of offsets by topic and partition. The default is `earliest` for
      a table and `latest` for a stream.
    - `subscribe`: the topics, separated by commas. A running cluster needs it.
    - `failOnDataLoss`: whether records that are no longer stored are an error (the default) or are skipped.
    - `minPartitions`: the minimum number of tasks.
    - `includeHeaders`: whether there is a column `headers`. The default is `false`.

    Options of reading stores:

    - `path` or `paths` (a JSON list): stores, folders of stores, patterns, or URLs of storages.
    - `subscribePattern`: a regular expression for topics, instead of `subscribe`.
    - `startingTimestamp`: the first time of storing to read, in milliseconds since 1970, instead of `startingOffsets`.
    - `endingOffsets` or `endingTimestamp`: the end of a table.
    - `pushFilters`: whether filters on a record's columns limit the records that are read. The default is `false`.

    Options of streams:

    - `maxOffsetsPerTrigger`: the limit of a micro-batch, in records.
    - `fetchTimeout`: how long a task waits for the next record of a running cluster, in milliseconds.

    Options of writing:

    - `topic`: the topic of all rows; without it, the column `topic` has the topic of each row.
    - `minStores`: the number of stores that must have each record.
    - `ackTimeout`: how long to wait for them, in milliseconds.
    - `writeId`: a text that is the same for each attempt at a batch write, so that no row is published twice.

    Options of a running cluster, to read and to write:

    - `towers`: `HOST`, `HOST:SUB_PORT` or `HOST:SUB_PORT:PUB_PORT`, separated by commas.
    - `config`: a configuration file in TOML.
    - `wire`: `auto` (the default), `rfc46` or `libdafka`.
    - `discoveryTimeout`: how long to wait for a tower, in milliseconds.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return "dafka"

    def schema(self) -> StructType:
        """Return the columns of a query that names none; raise `ConfigError` if `includeHeaders` is not valid."""
        return default_columns(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of stores, for a table.

        Args:
            schema: The columns to read.

        Returns:
            The reader.

        Raises:
            ConfigError: If an option or a column is not valid.
        """
        self._check_given('option path: expected a store, a folder or pattern of stores, as in .load("orders.db")')
        from dafka.spark.store_source import make_batch_reader  # noqa: PLC0415

        return make_batch_reader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 (Spark's name)
        """Return a reader that follows stores (option `path`) or a running cluster (option `towers` or `config`).

        Args:
            schema: The columns to read.

        Returns:
            The reader.

        Raises:
            ConfigError: If an option or a column is not valid.
        """
        given = {name.lower() for name in self.options}
        is_cluster = not given.isdisjoint({"towers", "config"})
        if is_cluster and not given.isdisjoint({"path", "paths"}):
            raise ConfigError("option path: expected a path of stores or the towers of a running cluster, not both")
        if is_cluster:
            from dafka.spark.cluster_source import ClusterStreamReader  # noqa: PLC0415

            return ClusterStreamReader(self.options, schema)
        from dafka.spark.store_source import StoreStreamReader  # noqa: PLC0415

        return StoreStreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return a writer that publishes a DataFrame to a running cluster.

        Args:
            schema: The columns of the DataFrame.
            overwrite: Whether the mode is overwrite, which is refused.

        Returns:
            The writer.

        Raises:
            ConfigError: If an option or a column is not valid, or the mode is not append.
        """
        self._check_given("option towers: expected this option or config")
        from dafka.spark.sink import BatchWriter  # noqa: PLC0415

        return BatchWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        """Return a writer that publishes each micro-batch to a running cluster.

        Args:
            schema: The columns of the query.
            overwrite: Whether the output mode is complete, which is refused.

        Returns:
            The writer.

        Raises:
            ConfigError: If an option or a column is not valid, or the output mode is complete.
        """
        from dafka.spark.sink import StreamWriter  # noqa: PLC0415

        return StreamWriter(self.options, schema, overwrite)

    def _check_given(self, expected: str) -> None:
        """Check that there are options; without them, rows could go to another cluster than the table names."""
        if not self.options:
            raise ConfigError(f"{expected}. {_NO_OPTIONS}")
