"""A Spark session with everything registered and set as Dafka's data source is at its best."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from weakref import WeakSet

from pyspark import SparkContext
from pyspark.sql import SparkSession

from dafka.spark.data_source import DafkaDataSource
from dafka.spark.java import check_java

SETTINGS = {
    # Filters reach the data source, where its option pushFilters asks for them.
    "spark.sql.python.filterPushdown.enabled": "true",
    # A worker that crashes says where.
    "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
    # Java and its Python workers speak through files that only this user may open, not through ports.
    "spark.python.unix.domain.socket.enabled": "true",
}
"""What a session needs, or is better with; a user's own settings go before these."""

JAVA_OPTIONS = "spark.driver.extraJavaOptions"
LOG_SETTING = "configurationFile"
"""What the name of the property that says how Java logs ends with."""

_JAVA_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS", "PYSPARK_SUBMIT_ARGS")

_registered: WeakSet[SparkSession] = WeakSet()
"""Spark warns of what is registered once more."""


def make_session(
    name: str = "dafka", master: str | None = None, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """A session (a new one, or the one that runs) in which `format("dafka")` is known.

    Arguments:
        name: the application's name.
        master: where Spark runs: `local[*]`, the default, is in this process with every core; `spark://HOST:7077` is a
            cluster. A setting `spark.master` says the same.
        settings: Spark's settings, which go before `SETTINGS`.

    What Java logs comes in lines of its own without stack frames, unless a log4j2 configuration of the user's own is
    found. Workers on this machine run this program's Python, unless `PYSPARK_PYTHON` names another.

    Raises `ConfigError` where there is no Java that Spark can run on.
    """
    given = dict(settings or {})
    master = master or given.get("spark.master", "local[*]")
    if SparkContext._active_spark_context is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        check_java()
        given = {**given, **_java_options(given)}
    if master.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # its workers are to find what this program finds
    builder = SparkSession.builder.appName(name)
    settled = {**SETTINGS, "spark.ui.showConsoleProgress": _flag(sys.stderr.isatty()), **given, "spark.master": master}
    for key, value in settled.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    register(session)
    return session


def register(session: SparkSession) -> None:
    """Makes `format("dafka")` known to a session; to do so again changes nothing."""
    if session not in _registered:
        session.dataSource.register(DafkaDataSource)
        _registered.add(session)


def _flag(value: bool) -> str:
    return str(value).lower()


def _java_options(given: Mapping[str, str]) -> dict[str, str]:
    """The setting that has the Java which is started here log by our configuration; none where the user has one."""
    own = given.get(JAVA_OPTIONS, "")
    variables = [os.environ.get(name, "") for name in _JAVA_VARIABLES]
    home = Path(os.environ.get("SPARK_CONF_DIR") or Path(os.environ.get("SPARK_HOME", "."), "conf"))
    defaults = home / "spark-defaults.conf"
    is_set = (
        any(LOG_SETTING in options for options in (own, *variables))
        or "LOG4J_CONFIGURATION_FILE" in os.environ
        or any(home.glob("log4j2*"))
        or (not own and defaults.is_file() and JAVA_OPTIONS in defaults.read_text("utf-8", "replace"))
    )
    if is_set:
        return {}
    place = Path(str(files("dafka.spark") / "log4j2.properties")).absolute().as_uri()
    return {JAVA_OPTIONS: f"-Dlog4j2.{LOG_SETTING}={place} {own}".strip()}
