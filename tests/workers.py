"""Runs the modules of the tests beside each other: `pytest --workers 7`.

All tests are collected once. Each module then runs in a process forked from this one, which has everything imported: a
module cannot disturb the next one, and the workers share the memory of what they import. Modules that share something
expensive, or only compute, run as one unit. What a worker leaves behind is killed with it.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn

import attrs
import pytest


@attrs.frozen
class Unit:
    """Tests that one worker runs, one after the other.

    Attributes:
        name: The module's path, or the name of a group of modules.
        items: The tests.
    """

    name: str
    items: list[pytest.Item]


def split(items: Iterable[pytest.Item], unit_of: Callable[[str], str], first: Iterable[str]) -> list[Unit]:
    """Return the units of tests in the order in which they start: first those that are named, then as collected."""
    units: dict[str, list[pytest.Item]] = {}
    for item in items:
        units.setdefault(unit_of(item.nodeid), []).append(item)
    return [Unit(name, units[name]) for name in dict.fromkeys([*first, *units]) if name in units]


@attrs.define
class _Worker:
    """A process that runs a unit, as the process that has started it sees it.

    Attributes:
        begun: How many tests it has begun.
        ended: How many of them have ended.
        started_at: When it was started, by `time.monotonic`.
        ended_at: When it had ended.
        processor_s: The seconds of processor time that it took, with those of the processes that it waited for.
    """

    process: int
    unit: Unit
    begun: int = 0
    ended: int = 0
    is_done: bool = False
    started_at: float = attrs.field(factory=time.monotonic)
    ended_at: float = 0.0
    processor_s: float = 0.0


class Workers:
    """The plugin that runs the collected tests in worker processes.

    Args:
        count: How many run at once.
        unit_of: Returns the name of the unit of a test, by the test's id.
        first: The names of the units that start first, since they take longest.
    """

    def __init__(self, count: int, unit_of: Callable[[str], str], first: Iterable[str]) -> None:
        self._count = count
        self._unit_of = unit_of
        self._first = first
        self._running: dict[Connection[Any, Any], _Worker] = {}
        self._ended: list[_Worker] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.config.option.collectonly or session.testsfailed:
            return None
        waiting = deque(split(session.items, self._unit_of, self._first))
        if terminal := session.config.pluginmanager.get_plugin("terminalreporter"):
            terminal.showfspath = False  # modules take turns
        _temporary_folders(session.config).getbasetemp()
        try:
            while waiting or self._running:
                while waiting and len(self._running) < self._count:
                    self._start(session, waiting.popleft())
                for connection in wait(self._running):
                    assert isinstance(connection, Connection)
                    if rest := self._read(session, connection):
                        waiting.appendleft(rest)
                    _check_stop(session)
        finally:
            for connection in list(self._running):
                self._end(connection)
        return True

    def _start(self, session: pytest.Session, unit: Unit) -> None:
        reading, writing = Pipe(duplex=False)
        process = os.fork()
        if not process:
            for connection in (reading, *self._running):
                connection.close()
            _run(session, unit, writing)
        writing.close()
        self._running[reading] = _Worker(process, unit)

    def _read(self, session: pytest.Session, connection: Connection[Any, Any]) -> Unit | None:
        """Report what a worker has sent. Return the tests that it has not begun, if it has died."""
        worker = self._running[connection]
        try:
            _report(session, worker, connection.recv())
        except EOFError:
            status = self._end(connection)
            if worker.begun > worker.ended:
                _report_death(session, worker.unit.items[worker.ended], status)
            rest = worker.unit.items[worker.begun :]
            return Unit(worker.unit.name, rest) if rest else None
        if worker.is_done:
            self._end(connection)
        return None

    def _end(self, connection: Connection[Any, Any]) -> int:
        """End a worker, and whatever it has left behind; return its status."""
        worker = self._running.pop(connection)
        connection.close()
        if worker.is_done:
            os.waitid(os.P_PID, worker.process, os.WEXITED | os.WNOWAIT)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(worker.process, signal.SIGKILL)
        _, status, usage = os.wait4(worker.process, 0)
        worker.ended_at, worker.processor_s = time.monotonic(), usage.ru_utime + usage.ru_stime
        self._ended.append(worker)
        return status

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
        """With `--durations`, write which units took most processor time, and which ended last."""
        count = config.getoption("durations") or 0
        if not (count and self._ended):
            return
        begun = min(each.started_at for each in self._ended)
        total = sum(each.processor_s for each in self._ended)
        by_time = sorted(self._ended, key=lambda each: -each.processor_s)[:count]
        last = sorted(self._ended, key=lambda each: -each.ended_at)[:count]
        for title, found in ((f"most of {total:.0f} s of processor time", by_time), ("the last to end", last)):
            terminalreporter.section(title)
            for each in found:
                times = f"{each.started_at - begun:6.1f} to {each.ended_at - begun:6.1f} s"
                terminalreporter.write_line(f"{each.processor_s:6.1f} s, {times}: {each.unit.name}")


def _temporary_folders(config: pytest.Config) -> pytest.TempPathFactory:
    factory: pytest.TempPathFactory = config._tmp_path_factory  # type: ignore[attr-defined]
    return factory


def _check_stop(session: pytest.Session) -> None:
    """End the run if pytest says so, such as after the first failure with `-x`."""
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    if session.shouldstop:
        raise session.Interrupted(session.shouldstop)


def _report(session: pytest.Session, worker: _Worker, message: str | dict[str, Any]) -> None:
    if message == "begin":
        worker.begun += 1
    elif message == "end":
        worker.ended += 1
    elif message == "done":
        worker.is_done = True
    else:
        hook = session.config.hook
        hook.pytest_runtest_logreport(report=hook.pytest_report_from_serializable(config=session.config, data=message))


def _report_death(session: pytest.Session, item: pytest.Item, status: int) -> None:
    code = os.waitstatus_to_exitcode(status)
    ending = f"signal {signal.Signals(-code).name}" if code < 0 else f"status {code}"
    text = f"the process of this test ended with {ending}"
    report = pytest.TestReport(item.nodeid, item.location, {}, "failed", text, "call")
    session.config.hook.pytest_runtest_logreport(report=report)


def _run(session: pytest.Session, unit: Unit, connection: Connection[Any, Any]) -> NoReturn:
    """Run the tests of a unit, as its process, and send the results."""
    status = 1
    try:
        os.setpgid(0, 0)
        _Sender(session.config, connection).run(session, unit)
        status = 0
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
    finally:
        os._exit(status)


class _Sender:
    """The plugin of a worker: it sends the results."""

    def __init__(self, config: pytest.Config, connection: Connection[Any, Any]) -> None:
        self._config = config
        self._send = connection.send

    def run(self, session: pytest.Session, unit: Unit) -> None:
        plugins = self._config.pluginmanager
        plugins.unregister(plugins.get_plugin("terminalreporter"))
        if capture := plugins.get_plugin("capturemanager"):
            capture.stop_global_capturing()  # its files are shared with the other workers
            capture.start_global_capturing()
            capture.suspend_global_capture()
        factory = _temporary_folders(self._config)
        factory._basetemp = factory.mktemp(re.sub(r"\W+", "-", unit.name))
        plugins.register(self)
        for item, following in zip(unit.items, [*unit.items[1:], None], strict=True):
            self._send("begin")
            self._config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            self._send("end")
        if not session.testsfailed:
            shutil.rmtree(factory.getbasetemp(), ignore_errors=True)
        self._send("done")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._send(self._config.hook.pytest_report_to_serializable(config=self._config, report=report))
