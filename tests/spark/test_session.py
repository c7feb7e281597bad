from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import pytest

import dafka.spark
from dafka.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_OPTIONS = "spark.driver.extraJavaOptions"
VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS", "PYSPARK_SUBMIT_ARGS")


@pytest.fixture(autouse=True)
def no_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("SPARK_CONF_DIR", *VARIABLES):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))


def java_options(settings: dict[str, str] | None = None) -> dict[str, str]:
    from dafka.spark.session import _find_java_options

    return _find_java_options(settings or {})


def test_the_session_has_the_default_settings(spark: SparkSession) -> None:
    from dafka.spark.session import DEFAULT_SETTINGS

    assert {name: spark.conf.get(name) for name in DEFAULT_SETTINGS} == DEFAULT_SETTINGS
    assert spark.sparkContext.pythonExec == os.environ["PYSPARK_PYTHON"]
    assert "log4j2.configurationFile" in str(spark.conf.get(JAVA_OPTIONS))


def test_workers_run_the_same_python(spark: SparkSession) -> None:
    assert spark.sparkContext.parallelize([1], 1).map(lambda _: sys.executable).collect() == [sys.executable]


def test_a_running_session_is_used_and_given_settings_override_ours(spark: SparkSession) -> None:
    name = "spark.sql.python.filterPushdown.enabled"
    try:
        assert dafka.spark.make_session("other", settings={name: "false"}) is spark
        assert spark.conf.get(name) == "false"
    finally:
        spark.conf.set(name, "true")


def test_registering_again_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    dafka.spark.register(spark)
    with pytest.raises(Exception, match="there is nothing here"):
        spark.read.format("dafka").load(str(tmp_path / "none")).collect()


def test_java_gets_our_log_configuration_unless_there_is_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    name, _, uri = java_options()[JAVA_OPTIONS].partition("=")
    assert name == "-Dlog4j2.configurationFile"
    assert "%ex{short.message}" in Path(unquote(urlsplit(uri).path)).read_text("utf-8")
    assert java_options({JAVA_OPTIONS: "-Xss4m"})[JAVA_OPTIONS].endswith("log4j2.properties -Xss4m")
    assert java_options({JAVA_OPTIONS: "-Dlog4j2.configurationFile=mine.xml"}) == {}
    for variable in VARIABLES:
        with monkeypatch.context() as patch:
            patch.setenv(variable, "-Dlog4j.configurationFile=mine.xml")
            assert java_options() == {}, variable
    (tmp_path / "conf").mkdir()
    for file, text in {"log4j2.properties": "", "spark-defaults.conf": "spark.driver.extraJavaOptions -Xss4m"}.items():
        (tmp_path / "conf" / file).write_text(text)
        assert java_options() == {}, file
        (tmp_path / "conf" / file).unlink()


def test_without_java_the_error_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark import SparkContext

    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.setenv("JAVA_HOME", "/none")
    with pytest.raises(ConfigError, match="JAVA_HOME is /none, which has no bin/java, and Spark needs Java 17"):
        dafka.spark.make_session()
