"""Exactly once, though a task's process and then the whole application are killed while they publish."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
import trio
from pyspark import TaskContext

from dafka.spark.session import make_session
from tests.cli.harness import Dafka, Running
from tests.spark.cluster import tower_option
from tests.spark.fixtures import SETTINGS
from tests.spark.queries import HANG_S
from tests.spark.stores import read_store

ROWS = 5000
LINE_BYTES = 1000
"""The size of a row in bytes: a few hundred rows fill all buffers."""

TOPIC = "killed"
HEAD_ROWS = 1000
"""The number of rows that a task of the application publishes before it stops."""


def run_application(folder: Path, towers: str, topic: str) -> None:
    """Publish text files to a cluster, one in each micro-batch.

    Attempt N of a task stops after its first rows until a file `go-N` exists, so that it can be killed halfway.
    """

    def halt(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        go = folder / f"go-{context.attemptNumber()}"
        count = 0
        for batch in batches:
            count += batch.num_rows
            while count > HEAD_ROWS and not go.exists():
                time.sleep(0.05)
            yield batch

    # By default Spark would gather larger batches before the first rows are published, and split a file in two tasks.
    settings = {"spark.sql.execution.arrow.maxRecordsPerBatch": "200", "spark.sql.files.openCostInBytes": "128m"}
    session = make_session("killed", "local[2,4]", {**SETTINGS, **settings, "spark.log.level": "ERROR"})
    lines = session.readStream.format("text").option("maxFilesPerTrigger", "1").load(str(folder / "source"))
    writer = lines.mapInArrow(halt, lines.schema).writeStream.format("dafka").option("towers", towers)
    writer = writer.option("topic", topic).option("checkpointLocation", str(folder / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()


class Application:
    """The streaming application, which can be started again on the same source and checkpoint."""

    def __init__(self, folder: Path) -> None:
        self.command = Dafka(folder)
        self._store = folder / "store.db"
        self._folder = folder
        (folder / "source").mkdir()
        self.command.start_up("--storage", f"sqlite:{self._store}")
        self._up = set(self.command.processes())

    def add_file(self, name: str) -> list[bytes]:
        lines = [f"{name}-{number}-".ljust(LINE_BYTES, "x") for number in range(ROWS)]
        (self._folder / "source" / name).write_text("".join(f"{line}\n" for line in lines))
        return [line.encode() for line in lines]

    def start(self) -> Running:
        arguments = (str(self._folder), tower_option(self.command.options), TOPIC)
        return self.command.start(*arguments, command=(sys.executable, "-m", "tests.spark.test_write_retries"))

    def stored(self) -> list[bytes]:
        return [value for values in trio.run(read_store, self._store).values() for value in values]

    def wait(self, look: Callable[[], int | None], running: Running) -> int:
        """Wait until `look` returns a number that is not 0."""
        deadline = time.monotonic() + HANG_S
        while not (found := look()):
            assert running.process.poll() is None, running.errors
            assert time.monotonic() < deadline, running.errors
            time.sleep(0.1)
        return found

    def publishing(self, but: int = 0) -> int | None:
        """Return the id of a Python process of Spark, other than `but`, that publishes: it has ZeroMQ's threads."""
        found = (pid for pid in self.command.processes() if pid not in self._up and pid != but and _has_sockets(pid))
        return next(found, None)

    def kill(self, running: Running) -> None:
        """Kill the application with its Java process and all its workers."""
        for pid in self.command.processes():
            if pid not in self._up:
                os.kill(pid, signal.SIGKILL)
        running.process.wait()


def _has_sockets(pid: int) -> bool:
    try:
        return any(path.read_text().startswith("ZMQbg") for path in Path(f"/proc/{pid}/task").glob("*/comm"))
    except OSError:
        return False


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_killed_task_and_a_killed_application_publish_each_row_exactly_once(tmp_path: Path) -> None:
    application = Application(tmp_path)
    try:
        expected = application.add_file("first")
        running = application.start()
        assert application.wait(lambda: len(application.stored()), running) < ROWS
        task = application.wait(application.publishing, running)
        os.kill(task, signal.SIGKILL)
        (tmp_path / "go-0").touch()  # Spark notices the kill when it has more rows for the task
        application.wait(lambda: application.publishing(but=task), running)
        application.kill(running)

        expected += application.add_file("second")
        running = application.start()
        assert running.process.wait(HANG_S) == 0, running.errors
        assert sorted(application.stored()) == sorted(expected)
    finally:
        application.command.close()


if __name__ == "__main__":
    run_application(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
