"""The output of Spark's daemon when a worker ends."""

from __future__ import annotations

import sys
import traceback
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from dafka.spark.data_source import hide_closed_connections


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
