"""Spark's session, the Java that it needs, and what its processes leave behind."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import pytest
import trio

import dafka.spark
from dafka.errors import ConfigError
from dafka.spark.data_source import hide_closed_connections
from dafka.spark.java import INSTALL_COMMANDS, check_java
from dafka.spark.portal import open_portal
from tests.spark.stores import A, batch, fill

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


def test_the_session_and_its_workers_have_the_default_settings(spark: SparkSession) -> None:
    from dafka.spark.session import DEFAULT_SETTINGS

    assert {name: spark.conf.get(name) for name in DEFAULT_SETTINGS} == DEFAULT_SETTINGS
    assert spark.sparkContext.pythonExec == os.environ["PYSPARK_PYTHON"]
    assert "log4j2.configurationFile" in str(spark.conf.get(JAVA_OPTIONS))
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


NEEDED = "Spark needs Java 17 or newer"


def make_java(folder: Path, script: str) -> Path:
    """Create a program `bin/java` that runs a script, and return the folder."""
    path = folder / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return folder


def answer(version: str) -> str:
    return (
        f"""echo 'Picked up JAVA_TOOL_OPTIONS: -Dversion="3"' >&2; echo 'openjdk version "{version}" 2025-04-15' >&2"""
    )


@pytest.mark.parametrize(
    ("version", "major"),
    [("1.8.0_402", 8), ("11.0.22", 11), ("16", 16), ("17", 17), ("17.0.15", 17), ("21.0.3+9-LTS", 21), ("26-ea", 26)],
)
def test_the_version_is_recognized_and_an_old_one_refused(version: str, major: int, tmp_path: Path) -> None:
    home = make_java(tmp_path, answer(version))
    by_home, by_path = {"JAVA_HOME": str(home)}, {"PATH": f"{tmp_path}/none:{home}/bin"}
    if major >= 17:
        assert check_java(by_home) == check_java(by_path) == major
        return
    with pytest.raises(ConfigError, match=f"JAVA_HOME, {home}, is Java {major}, and {NEEDED}: install it"):
        check_java(by_home)
    with pytest.raises(ConfigError, match=f"^{home}/bin/java is Java {major}, and {NEEDED}"):
        check_java(by_path)


def test_what_is_not_java_is_refused_and_java_home_has_priority(tmp_path: Path) -> None:
    old, new = make_java(tmp_path / "old", answer("11")), make_java(tmp_path / "new", "echo 'v version \"21\"'")
    assert check_java({"JAVA_HOME": str(new), "PATH": f"{old}/bin"}) == 21
    with pytest.raises(ConfigError, match=f"there is no java on PATH, JAVA_HOME is not set, and {NEEDED}"):
        check_java({"PATH": str(tmp_path)})
    with pytest.raises(ConfigError, match=f"JAVA_HOME is {tmp_path}, which has no bin/java, and {NEEDED}"):
        check_java({"JAVA_HOME": str(tmp_path), "PATH": os.environ["PATH"]})
    for number, script in enumerate(["echo no runtime >&2; exit 1", "echo hello", "echo 'version \"17\"'; exit 3"]):
        home = make_java(tmp_path / f"{number}", script)
        with pytest.raises(ConfigError, match=f"does not print its version, and {NEEDED}"):
            check_java({"JAVA_HOME": str(home)})
    (home / "bin" / "java").write_bytes(b"\x7fELF")
    with pytest.raises(ConfigError, match="does not run"):
        check_java({"JAVA_HOME": str(home)})


@pytest.mark.parametrize("program", INSTALL_COMMANDS)
def test_the_advice_is_for_this_system(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / program).write_text("#!/bin/sh\n")
    (tmp_path / program).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError) as caught:
        check_java({})
    assert INSTALL_COMMANDS[program] in str(caught.value)


def test_the_check_as_a_program(tmp_path: Path) -> None:
    home = make_java(tmp_path, "echo 'version \"17.0.1\"'")
    given = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    for more, status, error in (
        ({"PATH": "/none"}, 2, "Error: there is no java on PATH"),
        ({"JAVA_HOME": str(home)}, 0, ""),
    ):
        command = [sys.executable, "-m", "dafka.spark.java"]
        done = subprocess.run(command, env=given | more, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (status, "", bool(error))
        assert done.stderr.startswith(error)


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A main module like that of a process of `pyspark.daemon`."""
    main = ModuleType("__main__")
    main.__spec__ = ModuleSpec("pyspark.daemon", None)
    main.__dict__["traceback"] = traceback
    monkeypatch.setitem(sys.modules, "__main__", main)
    return main


def end_worker(daemon: ModuleType, error: Exception) -> None:
    try:
        raise error
    except type(error):
        daemon.__dict__["traceback"].print_exc()


def test_a_closed_connection_is_no_failure_and_others_are_printed(
    daemon: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    hide_closed_connections()
    hide_closed_connections()
    end_worker(daemon, BrokenPipeError("Broken pipe"))
    assert capsys.readouterr().err == ""
    end_worker(daemon, ValueError("no such column"))
    assert "ValueError: no such column" in capsys.readouterr().err


def test_other_processes_are_left_alone(daemon: ModuleType) -> None:
    daemon.__spec__ = ModuleSpec("dafka", None)
    hide_closed_connections()
    assert daemon.__dict__["traceback"] is traceback


HANG_S = 100

PROGRAM = """
import sys
from pyspark.sql.streaming.datasource import ReadAllAvailable
from dafka import Config
from dafka.spark.cluster_source import BlockingReader
from dafka.spark.schema import default_columns
from dafka.spark.store_source import StoreStreamReader

of_stores = StoreStreamReader({"path": sys.argv[1], "startingOffsets": "earliest"}, default_columns({}))
[task] = of_stores.partitions({}, of_stores.latestOffset(of_stores.initialOffset(), ReadAllAvailable()))
batches = of_stores.read(task)
next(batches)
of_a_cluster = BlockingReader(
    Config().with_beacon(tower_sub="tcp://127.0.0.1:9", tower_pub="tcp://127.0.0.1:9"), ["orders"]
)
of_a_cluster.ends()
print("done")
"""


def test_the_interpreter_ends_though_readers_are_not_stopped(tmp_path: Path) -> None:
    fill(f"filelog:{tmp_path / 'orders'}", batch("orders", A, 0, 10))
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "orders")]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=HANG_S)
    assert (ended.returncode, ended.stdout) == (0, "done\n"), ended.stderr


@asynccontextmanager
async def open_forever() -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep_forever)
        yield
        nursery.cancel_scope.cancel()


def test_a_portal_that_is_forgotten_ends_with_what_runs_in_it() -> None:
    before = set(threading.enumerate())
    block = open_portal()
    opened = block.__enter__().wrap_async_context_manager(open_forever())
    opened.__enter__()
    (thread,) = [each for each in threading.enumerate() if each not in before and each.name == "dafka"]
    del block
    gc.collect()
    assert not thread.is_alive()
