"""One Spark session for all of Spark's tests: starting one takes seconds, and so does loading PySpark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.noDataProgressEventInterval": "1000",
}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from dafka.spark.session import make_session

    session = make_session("tests", "local[2]", SETTINGS)
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
