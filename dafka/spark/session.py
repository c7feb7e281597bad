"""Starts a Spark session with the data source `dafka` and suitable settings."""

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

DEFAULT_SETTINGS = {
    # Filters reach the data source, which uses them if the option pushFilters is set.
    "spark.sql.python.filterPushdown.enabled": "true",
    # A worker that crashes reports its Python stack.
    "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
    # Java and its Python workers communicate through sockets that only this user can open, not through ports.
    "spark.python.unix.domain.socket.enabled": "true",
    # On a busy machine, a Python worker takes longer to start than Spark's 15 seconds.
    "spark.python.authenticate.socketTimeout": "120s",
}
"""The settings of a session, which a user's own settings override."""

JAVA_OPTIONS = "spark.driver.extraJavaOptions"
"""The setting with the options of the Java process."""

LOG_PROPERTY = "configurationFile"
"""The end of the name of the Java property that names the log4j2 configuration."""

_JAVA_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS", "PYSPARK_SUBMIT_ARGS")

_registered: WeakSet[SparkSession] = WeakSet()
"""The sessions that have the data source; Spark warns if it is registered twice."""


def make_session(
    name: str = "dafka", master: str | None = None, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """Start a Spark session with `format("dafka")` registered, or return the running one.

    Each log message of Java is one line, without stack frames, unless you have your own log4j2 configuration. Workers
    on this machine run this program's Python, unless `PYSPARK_PYTHON` names another.

    Args:
        name: The name of the application.
        master: The Spark master. The default, `local[*]`, is this process with all cores of the machine;
            `spark://HOST:7077` is a cluster. The setting `spark.master` has the same meaning.
        settings: Settings of Spark, which override `DEFAULT_SETTINGS`.

    Returns:
        The session.

    Raises:
        ConfigError: If there is no Java that Spark can run on.
    """
    given = dict(settings or {})
    master = master or given.get("spark.master", "local[*]")
    if SparkContext._active_spark_context is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        check_java()
        given = {**given, **_find_java_options(given)}
    if master.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the workers need this program's packages
    builder = SparkSession.builder.appName(name)
    show_progress = str(sys.stderr.isatty()).lower()
    merged = {**DEFAULT_SETTINGS, "spark.ui.showConsoleProgress": show_progress, **given, "spark.master": master}
    for key, value in merged.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    register(session)
    return session


def register(session: SparkSession) -> None:
    """Register `format("dafka")` with a session. It can be repeated.

    Args:
        session: The session.
    """
    if session not in _registered:
        session.dataSource.register(DafkaDataSource)
        _registered.add(session)


def _find_java_options(given: Mapping[str, str]) -> dict[str, str]:
    """Return the setting with dafka's log4j2 configuration, or no setting if the user has a configuration."""
    own = given.get(JAVA_OPTIONS, "")
    variables = [os.environ.get(name, "") for name in _JAVA_VARIABLES]
    home = Path(os.environ.get("SPARK_CONF_DIR") or Path(os.environ.get("SPARK_HOME", "."), "conf"))
    defaults = home / "spark-defaults.conf"
    is_configured = (
        any(LOG_PROPERTY in options for options in (own, *variables))
        or "LOG4J_CONFIGURATION_FILE" in os.environ
        or any(home.glob("log4j2*"))
        or (not own and defaults.is_file() and JAVA_OPTIONS in defaults.read_text("utf-8", "replace"))
    )
    if is_configured:
        return {}
    uri = Path(str(files("dafka.spark") / "log4j2.properties")).absolute().as_uri()
    return {JAVA_OPTIONS: f"-Dlog4j2.{LOG_PROPERTY}={uri} {own}".strip()}
