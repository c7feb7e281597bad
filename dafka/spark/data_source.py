"""The data source that Spark is given: `spark.dataSource.register(DafkaDataSource)`, then `format("dafka")`.

What it hands out stands in modules of their own, loaded when asked for: Spark pickles this class to its workers.
"""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from dafka.errors import ConfigError
from dafka.spark.schema import COLUMNS


class DafkaDataSource(DataSource):
    """The data source `dafka`: stores as tables and streams, a running cluster as a stream and as a sink."""

    @classmethod
    def name(cls) -> str:
        """What `format` is given."""
        return "dafka"

    def schema(self) -> StructType:
        """The columns of a record, unless the user names some of them."""
        return COLUMNS

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads stores once. Raises `ConfigError` for options that cannot be."""
        from dafka.spark.store_source import make_batch_reader  # noqa: PLC0415

        return make_batch_reader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 (Spark's name)
        """Follows stores (option `path`) or a running cluster (`towers` or `config`). Raises `ConfigError`."""
        given = {name.lower() for name in self.options}
        is_cluster = not given.isdisjoint({"towers", "config"})
        if is_cluster and not given.isdisjoint({"path", "paths"}):
            raise ConfigError("option path: a stream reads stores at a path, or a cluster found by towers, not both")
        if is_cluster:
            from dafka.spark.cluster_source import ClusterStreamReader  # noqa: PLC0415

            return ClusterStreamReader(self.options, schema)
        from dafka.spark.store_source import StoreStreamReader  # noqa: PLC0415

        return StoreStreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Publishes a DataFrame into a running cluster. Raises `ConfigError`."""
        from dafka.spark.sink import BatchWriter  # noqa: PLC0415

        return BatchWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        """Publishes each micro-batch into a running cluster. Raises `ConfigError`."""
        from dafka.spark.sink import StreamWriter  # noqa: PLC0415

        return StreamWriter(self.options, schema, overwrite)
