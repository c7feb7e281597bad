"""A Spark session with everything registered and set as Dafka's data source is at its best."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from pyspark.sql import SparkSession

from dafka.spark.source import DafkaDataSource

SETTINGS = {
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
}
"""What a session needs, or is better with; a user's own settings go before these."""


def make_session(
    name: str = "dafka", master: str = "local[*]", settings: Mapping[str, str] | None = None
) -> SparkSession:
    """A session (a new one, or the one that runs) in which `format("dafka")` is known."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # its workers are to find what this program finds
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in {**SETTINGS, **(settings or {})}.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    register(session)
    return session


def register(session: SparkSession) -> None:
    """Makes `format("dafka")` known to a session."""
    session.dataSource.register(DafkaDataSource)
