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


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("SPARK_CONF_DIR", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS", "PYSPARK_SUBMIT_ARGS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))


def java_options(settings: dict[str, str] | None = None) -> dict[str, str]:
    from dafka.spark.session import _java_options

    return _java_options(settings or {})


def test_the_session_has_what_it_needs(spark: SparkSession) -> None:
    from dafka.spark.session import SETTINGS

    assert {name: spark.conf.get(name) for name in SETTINGS} == SETTINGS
    assert spark.sparkContext.pythonExec == os.environ["PYSPARK_PYTHON"]
    assert "log4j2.configurationFile" in str(spark.conf.get(JAVA_OPTIONS))


def test_workers_run_this_python(spark: SparkSession) -> None:
    def executable(_: int) -> str:
        return sys.executable

    assert spark.sparkContext.parallelize([1], 1).map(executable).collect() == [sys.executable]


def test_the_session_that_runs_is_used_and_own_settings_go_before_ours(spark: SparkSession) -> None:
    name = "spark.sql.python.filterPushdown.enabled"
    try:
        again = dafka.spark.make_session("other", settings={name: "false"})
        assert again is spark
        assert spark.conf.get(name) == "false"
    finally:
        spark.conf.set(name, "true")


def test_registering_again_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    dafka.spark.register(spark)
    with pytest.raises(Exception, match="there is nothing here"):
        spark.read.format("dafka").load(str(tmp_path / "none")).collect()


def test_java_logs_by_a_file_that_is_there() -> None:
    option = java_options()[JAVA_OPTIONS]
    name, _, place = option.partition("=")
    assert name == "-Dlog4j2.configurationFile"
    assert "%ex{short.message}" in Path(unquote(urlsplit(place).path)).read_text("utf-8")


def test_other_options_for_java_are_kept() -> None:
    assert java_options({JAVA_OPTIONS: "-Xss4m"})[JAVA_OPTIONS].endswith("log4j2.properties -Xss4m")


@pytest.mark.parametrize(
    "variable", ["JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS", "PYSPARK_SUBMIT_ARGS"]
)
def test_a_log_configuration_of_ones_own_in_a_variable_goes_before(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "-Dlog4j.configurationFile=mine.xml")
    assert java_options() == {}


def test_a_log_configuration_of_ones_own_in_the_settings_goes_before() -> None:
    assert java_options({JAVA_OPTIONS: "-Dlog4j2.configurationFile=mine.xml"}) == {}


@pytest.mark.parametrize(
    ("file", "text"), [("log4j2.properties", ""), ("spark-defaults.conf", "spark.driver.extraJavaOptions -Xss4m")]
)
def test_a_configuration_of_sparks_own_goes_before(file: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / file).write_text(text)
    assert java_options() == {}


def test_without_java_a_session_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark import SparkContext

    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.setenv("JAVA_HOME", "/none")
    with pytest.raises(ConfigError, match="JAVA_HOME is /none, where there is no bin/java, and Spark needs Java 17"):
        dafka.spark.make_session()
