"""One Spark session for all of Spark's tests: starting one takes seconds, and so does loading PySpark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from dafka.errors import ConfigError

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
def java() -> None:
    """Skips what needs Java where there is none that Spark can run on, and says what to install."""
    from dafka.spark.java import check_java

    try:
        check_java()
    except ConfigError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def spark(java: None) -> Iterator[SparkSession]:
    from dafka.spark.session import make_session

    session = make_session("tests", "local[2]", SETTINGS)
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
