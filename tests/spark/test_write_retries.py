"""Exactly once, whatever is killed: a task's process, or the whole application, while it publishes."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from tests.cli.harness import Dafka, Running
from tests.spark.store_process import read_store, tower_option

ROWS = 5000
LINE_OCTETS = 1000
"""So large that a few hundred rows fill every buffer on their way."""
DEADLINE_S = 100
"""A busy machine starts Spark in half a minute."""

TOPIC = "killed"
APPLICATION = "tests.spark.write_application"


class Application:
    """The streaming application over one source and checkpoint, started as often as wanted."""

    def __init__(self, folder: Path) -> None:
        self.command = Dafka(folder)
        self._store = folder / "store.db"
        self._folder = folder
        (folder / "source").mkdir()
        self.command.start_up("--storage", f"sqlite:{self._store}")
        self._up = set(self.command.processes())

    def add_file(self, name: str) -> list[bytes]:
        lines = [f"{name}-{number}-".ljust(LINE_OCTETS, "x") for number in range(ROWS)]
        (self._folder / "source" / name).write_text("".join(f"{line}\n" for line in lines))
        return [line.encode() for line in lines]

    def start(self) -> Running:
        arguments = (str(self._folder), tower_option(self.command.options), TOPIC)
        return self.command.start(*arguments, command=(sys.executable, "-m", APPLICATION))

    def let_go(self, attempt: int) -> None:
        (self._folder / f"go-{attempt}").touch()

    def held(self) -> list[bytes]:
        return [value for values in trio.run(read_store, self._store).values() for value in values]

    def wait_publishing(self, running: Running, but: int = 0) -> int:
        """Waits for the process of a task that publishes, and that is not this one."""
        return self._wait(lambda: next(iter(self._publishing() - {but}), None), running)

    def wait_held(self, running: Running) -> int:
        """Waits until something is stored; gives how much."""
        return self._wait(lambda: len(self.held()) or None, running)

    def _wait(self, look: Callable[[], int | None], running: Running) -> int:
        deadline = time.monotonic() + DEADLINE_S
        while (found := look()) is None:
            assert running.process.poll() is None, running.errors
            assert time.monotonic() < deadline, running.errors
            time.sleep(0.1)
        return found

    def _publishing(self) -> set[int]:
        """Spark's Python processes that have ZeroMQ's threads."""
        return {pid for pid in self.command.processes() if pid not in self._up and _has_sockets(pid)}

    def wait_end(self, running: Running) -> None:
        """Waits until it ends by itself, without an error."""
        assert running.process.wait(DEADLINE_S) == 0, running.errors

    def kill(self, running: Running) -> None:
        """The application, with its JVM and all of its processes, at once."""
        for pid in self.command.processes():
            if pid not in self._up:
                os.kill(pid, signal.SIGKILL)
        running.process.wait()


def _has_sockets(pid: int) -> bool:
    try:
        return any(path.read_text().startswith("ZMQbg") for path in Path(f"/proc/{pid}/task").glob("*/comm"))
    except OSError:
        return False


@pytest.mark.timeout(400)
def test_killed_task_and_killed_application_publish_each_row_once(tmp_path: Path) -> None:
    application = Application(tmp_path)
    try:
        expected = application.add_file("first")
        running = application.start()
        held = application.wait_held(running)
        assert held < ROWS
        task = application.wait_publishing(running)
        os.kill(task, signal.SIGKILL)
        application.let_go(0)  # Spark notices when it has more rows for the task
        application.wait_publishing(running, but=task)
        application.kill(running)

        expected += application.add_file("second")
        application.wait_end(application.start())
        assert sorted(application.held()) == sorted(expected)
    finally:
        application.command.close()
