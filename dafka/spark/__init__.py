"""Read Dafka stores and running clusters in Spark, and publish DataFrames to them: the extra `dafka[spark]`.

`read`, `read_stream` and `make_views` return the records of a topic as a DataFrame. `make_session` starts a Spark
session with `format("dafka")` registered; `register` adds it to your own session.

Names are imported on first use, so that importing this package does not import PySpark. If the extra is not
installed, using any name but `check_java` raises `MissingExtraError`.
"""

from __future__ import annotations

from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

from dafka.errors import MissingExtraError

if TYPE_CHECKING:
    from dafka.spark.data_source import DafkaDataSource
    from dafka.spark.dataframes import make_views, read, read_stream
    from dafka.spark.decoding import decode
    from dafka.spark.java import check_java
    from dafka.spark.session import make_session, register

__all__ = [
    "DafkaDataSource",
    "check_java",
    "decode",
    "make_session",
    "make_views",
    "read",
    "read_stream",
    "register",
]

OLDEST_PYSPARK = (4, 3)
"""The oldest supported PySpark release, as (major, minor)."""

_MODULES = {
    "DafkaDataSource": "data_source",
    "check_java": "java",
    "decode": "decoding",
    "make_session": "session",
    "make_views": "dataframes",
    "read": "dataframes",
    "read_stream": "dataframes",
    "register": "session",
}


def check_extra() -> None:
    """Check that the packages of the extra `dafka[spark]` are installed.

    Raises:
        MissingExtraError: If a package is missing, or if PySpark is older than `OLDEST_PYSPARK`.
    """
    advice = "pip install 'dafka[spark]'"
    for package in ("pyspark", "pyarrow", "adbc-driver-sqlite", "adbc-driver-manager", "fastavro", "pandas"):
        try:
            version = metadata.version(package)
        except metadata.PackageNotFoundError:
            raise MissingExtraError(f"dafka.spark needs {package}, which is not installed: {advice}") from None
        if package == "pyspark" and tuple(map(int, version.split(".")[:2])) < OLDEST_PYSPARK:
            oldest = ".".join(map(str, OLDEST_PYSPARK))
            raise MissingExtraError(f"dafka.spark needs pyspark {oldest} or newer, not {version}: {advice}")


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'dafka.spark' has no attribute {name!r}")
    if name != "check_java":
        check_extra()
    return getattr(import_module(f"dafka.spark.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
