"""`dafka consume` saves positions of records that it has written out, and of no others."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, cast

import pytest
import trio

from dafka.cli import consume
from dafka.cli.consume import _Printer
from dafka.cli.lines import StreamError
from dafka.cli.record_lines import make_formatter
from dafka.cli.runner import Supervisor
from dafka.cli.selection import SelectedRecords
from dafka.records import Partition, RecordBatch
from dafka.roles import Consumer


class Records:
    """A consumer of existing records, which notes the saved positions, and the output that was written before each."""

    def __init__(self, batches: int, written: Callable[[], int]) -> None:
        self._batches = [RecordBatch(Partition("orders", "A"), 10 * first, [b"x"] * 10) for first in range(batches)]
        self._written = written
        self._position = 0
        self.saved: list[tuple[int, int]] = []

    async def next_batch(self, _records_max: int | None = None) -> RecordBatch:
        await trio.lowlevel.checkpoint()
        if not self._batches:
            await trio.sleep_forever()
        self._position += 10
        return self._batches.pop(0)

    async def save_positions(self) -> None:
        await trio.lowlevel.checkpoint()
        self.saved.append((self._position, self._written()))


class Unstopped:
    async def wait_unless_stopping(self, function: Callable[[], Awaitable[Any]]) -> Any:
        return await function()


async def print_records(records: Records, fd: int, count: int, supervisor: object) -> None:
    """Print records as `dafka consume` does."""
    selected, consumer = cast(SelectedRecords, records), cast(Consumer, records)
    printer = _Printer(consumer, selected, fd, make_formatter("value"), is_saving=True)
    with trio.fail_after(30):
        await printer.print_records(cast(Supervisor, supervisor), count, 1000.0)
    os.close(fd)


@pytest.mark.parametrize("save_s", [0.0, 1000.0])
async def test_positions_are_saved_after_the_output(save_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consume, "SAVE_S", save_s)
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    written = 0

    def count_written() -> int:
        nonlocal written
        with suppress(BlockingIOError):
            written += os.read(reading, 65536).count(b"\n")
        return written

    records = Records(3, count_written)
    await print_records(records, writing, 30, Unstopped())
    os.close(reading)
    assert records.saved[-1] == (30, 30)
    assert [position for position, end in records.saved if position > end] == []
    assert len(records.saved) == (4 if save_s == 0 else 1)


class StoppedByASignal(Unstopped):
    """Runs the first two waits. A signal ends the third one."""

    def __init__(self) -> None:
        self._waits = 0

    async def wait_unless_stopping(self, function: Callable[[], Awaitable[Any]]) -> Any:
        self._waits += 1
        return await super().wait_unless_stopping(function) if self._waits < 3 else None


async def test_positions_are_saved_when_it_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consume, "SAVE_S", 1000.0)
    records = Records(3, lambda: 20)
    await print_records(records, os.open(os.devnull, os.O_WRONLY), 1000, StoppedByASignal())
    assert records.saved == [(20, 20)]


async def test_nothing_is_saved_when_the_output_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consume, "SAVE_S", 0.0)
    records = Records(1, lambda: 0)
    fd = os.open("/dev/null", os.O_RDONLY)
    with pytest.raises(StreamError):
        await print_records(records, fd, 10, Unstopped())
    os.close(fd)
    assert records.saved == []
