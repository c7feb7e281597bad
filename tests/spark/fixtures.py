"""The Spark session that Spark's tests share: starting one takes seconds, and so does importing PySpark."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from dafka.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
"""Options for a Java process of a minute: compiling less, collecting garbage in one thread, and not verifying classes
saves two thirds of its time."""

PYTHON = f"""\
#!/bin/sh
PYTHONPATH=$(printf %s "$PYTHONPATH" | tr : '\\n' | grep -v -e '\\.zip$' -e '\\.jar$' | paste -s -d : -)
export PYTHONPATH
exec {sys.executable} "$@"
"""
"""The Python of Spark's workers. Spark has them load PySpark from an archive, where nothing is compiled: without that,
each of the ten processes of a session starts in a third of the time."""

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": JAVA_OPTIONS,
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.noDataProgressEventInterval": "1000",
}


@pytest.fixture(params=["sqlite", "filelog"])
def scheme(request: pytest.FixtureRequest) -> str:
    """The scheme of a store's URL, for tests of both kinds of stores."""
    return str(request.param)


@pytest.fixture(scope="session")
def java() -> None:
    """Skip a test if there is no Java that Spark can run on, and say what to install."""
    from dafka.spark.java import check_java

    try:
        check_java()
    except ConfigError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def spark(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One session for all tests of a worker process."""
    from dafka.spark.session import make_session

    folder = tmp_path_factory.mktemp("spark")
    python = folder / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", str(python))
        settings = {**SETTINGS, "spark.sql.warehouse.dir": f"{folder}/warehouse"}
        session = make_session("tests", "local[2]", settings)
        session.sparkContext.setLogLevel("ERROR")
        yield session
        session.stop()


@pytest.fixture(autouse=True)
def end_queries(request: pytest.FixtureRequest) -> Iterator[None]:
    """End the streaming queries of a test, also if it fails: they would take the time of the next ones."""
    if "spark" not in request.fixturenames:
        yield
        return
    session: SparkSession = request.getfixturevalue("spark")
    yield
    for query in session.streams.active:
        query.stop()
