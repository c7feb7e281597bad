"""Spark reads Dafka's stores and running clusters, and publishes into them: the extra `dafka[spark]`.

Names are loaded when they are asked for; without the extra, asking for one raises `MissingExtraError`.
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

_MODULES = {
    "DafkaDataSource": "source",
    "check_java": "java",
    "decode": "decoding",
    "make_session": "session",
    "make_views": "helpers",
    "read": "helpers",
    "read_stream": "helpers",
    "register": "session",
}


def check_extra() -> None:
    """Raises `MissingExtraError` where the packages of the extra `dafka[spark]` are not installed."""
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
