"""How `dafka produce` ends when a record cannot be published: its exit status, and what it says about the others."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import attrs
import pytest
import trio

from dafka.cli import consume
from dafka.cli.consume import _Printer
from dafka.cli.lines import StreamError, read_lines
from dafka.cli.record_lines import LineFormat, make_formatter
from dafka.cli.runner import Supervisor, run
from dafka.cli.selection import SelectedRecords
from dafka.config import Config
from dafka.errors import DafkaError, DiscoveryError, StorageError, StorageSequenceError, UnacknowledgedError
from dafka.records import Partition, RecordBatch
from dafka.roles import Consumer
from tests.cli.programs import NotingBar, take_program

produce: Any = import_module("dafka.cli.produce")


@attrs.frozen
class Counts:
    records: int
    unacknowledged: int
    next_sequence: int


class Producer:
    """A producer that publishes some lines, and then fails."""

    events: Any = None

    def __init__(self, lines: int, acknowledged: int, error: DafkaError | None) -> None:
        self._lines = lines
        self._acknowledged = acknowledged
        self._error = error
        self._published = 0

    def statistics(self) -> Counts:
        return Counts(self._published, self._published - self._acknowledged, 100 + self._published)

    def publish(self, lines: int) -> None:
        self._published += lines

    async def wait_settled(self) -> None:
        await trio.lowlevel.checkpoint()

    async def send_many(self, lines: Sequence[bytes | None]) -> None:
        await trio.lowlevel.checkpoint()
        self.publish(min(len(lines), self._lines - self._published))
        if self._published == self._lines and self._error is not None:
            raise self._error
        if self._published == self._lines:
            await trio.sleep_forever()

    async def wait_acknowledged(self) -> None:
        await trio.lowlevel.checkpoint()
        if self.statistics().unacknowledged:
            raise UnacknowledgedError(self.statistics().unacknowledged, 100, 1)


@pytest.mark.parametrize(
    ("lines", "acknowledged", "error", "status", "sentence"),
    [
        (9, 5, None, 0, ""),
        (9, 3, None, 1, "Error: 2 records were not acknowledged by a store (from sequence 100); check with"),
        (3, 0, None, 1, "Error: 3 records were not acknowledged by a store (from sequence 100), and the rest of the"),
        (3, 1, StorageSequenceError("another process writes"), 2, "Error: another process writes"),
        (3, 1, StorageError("disk full"), 1, "Error: the spool failed: disk full; 2 published records are not"),
        (3, 1, DiscoveryError("no tower"), 1, "Error: 2 records were not acknowledged by a store (from sequence 101)"),
        (3, 3, DiscoveryError("no tower"), 1, "Error: no tower"),
    ],
)
def test_no_failure_looks_like_success(
    lines: int,
    acknowledged: int,
    error: DafkaError | None,
    status: int,
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """The producer fails after some of five lines, of which stores have acknowledged some."""
    config = Config().with_producer(close_timeout_ms=10)
    producer: Any = Producer(lines, acknowledged, error)
    monkeypatch.setattr(produce, "require_tower", lambda *_: nullcontext())
    (tmp_path / "input").write_bytes(b"0\n1\n2\n3\n4\n")

    async def program() -> int:
        with (tmp_path / "input").open() as file:
            await produce._publish(
                producer, read_lines(file.fileno()), LineFormat(), config, Supervisor(config, "producer")
            )
        return 0

    with pytest.raises(SystemExit) as ended:
        run(program)
    assert (ended.value.code, capsys.readouterr().err[: len(sentence)]) == (status, sentence)


async def test_produce_waits_for_room_as_long_as_it_is_configured(autojump_clock: Any) -> None:
    """Each record that finds room begins the time again."""
    started = trio.current_time()
    with pytest.raises(UnacknowledgedError):
        await produce._send(Producer(1, 0, None), [b"0", b"1"], Config().with_producer(close_timeout_ms=3000))
    assert trio.current_time() - started == pytest.approx(2 * 3.0, abs=0.001)


class SlowProducer:
    """A producer that has room for two records, and again for two when it was left alone."""

    def __init__(self) -> None:
        self.published: list[bytes] = []

    @property
    def records(self) -> int:
        return len(self.published)

    def statistics(self) -> SlowProducer:
        return self

    async def send_many(self, contents: Sequence[bytes]) -> None:
        self.published += contents[:2]
        assert len(self.published) <= 5
        await trio.lowlevel.checkpoint()
        if len(contents) > 2:
            await trio.sleep_forever()


async def test_lines_that_wait_for_room_are_published_once(autojump_clock: Any) -> None:
    producer = SlowProducer()
    lines = [b"%d" % number for number in range(5)]
    await produce._send(producer, lines, Config())
    assert producer.published == lines


# A command is stopped by a signal: its exit status tells whether it has published all of its input


class StoppedProducer:
    """A producer that calls a function when it has published, or while it waits for ACKs.

    Without them, the program is cancelled.
    """

    def __init__(
        self, stop: Callable[[], None], moment: str, scope: trio.CancelScope, *, is_acknowledged: bool
    ) -> None:
        self._stop = {moment: stop}
        self._scope = scope
        self._is_acknowledged = is_acknowledged
        self._published = 0

    def statistics(self) -> Counts:
        return Counts(self._published, 0 if self._is_acknowledged else self._published, self._published)

    async def send_many(self, lines: Sequence[bytes]) -> None:
        await trio.lowlevel.checkpoint()
        self._published += len(lines)
        self._stop.get("sending", nothing)()

    async def wait_acknowledged(self) -> None:
        self._stop.get("waiting", nothing)()
        if not self._is_acknowledged:
            self._scope.cancel()
        await trio.lowlevel.checkpoint()


def nothing() -> None:
    pass


@pytest.mark.parametrize(
    ("source", "moment", "is_acknowledged", "status"),
    [
        ("file", "never", True, 0),
        ("file", "sending", True, 1),  # the rest of it was not published
        ("file", "waiting", True, 0),
        ("file", "waiting", False, 1),
        ("file", "opening", True, 1),
        ("pipe", "sending", True, 0),  # it has no rest
        ("pipe", "sending", False, 1),
        ("pipe", "opening", True, 0),
        ("messages", "waiting", True, 0),
        ("messages", "waiting", False, 1),
        ("messages", "opening", True, 1),
    ],
)
async def test_a_job_that_is_stopped_is_done_if_all_of_the_input_is_stored(
    source: str,
    moment: str,
    is_acknowledged: bool,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    path, open_input = tmp_path / "input", produce._open_input
    descriptors: list[int] = []

    def note_input(path: str | None) -> int:
        descriptors.append(open_input(path))
        return descriptors[-1]

    monkeypatch.setattr(produce, "_open_input", note_input)
    if source == "file":
        path.write_bytes(b"0\n1\n")
    elif source == "pipe":
        os.mkfifo(path)
        descriptors.append(os.open(path, os.O_RDWR))
        os.write(descriptors[0], b"0\n1\n")
    taken = take_program("produce", "produce", "t", *(("0", "1") if source == "messages" else ("--file", str(path))))
    scope = trio.CancelScope()
    producer = StoppedProducer(taken.shutdown.begin, moment, scope, is_acknowledged=is_acknowledged)

    @asynccontextmanager
    async def open_producer(*_: object) -> AsyncIterator[object]:
        if moment == "opening":
            taken.shutdown.begin()
            scope.cancel()
            await trio.lowlevel.checkpoint()
        yield producer

    monkeypatch.setattr(produce, "open_producer", open_producer)
    monkeypatch.setattr(produce, "require_tower", lambda *_: nullcontext())
    found = None
    with scope:
        found = await taken.program()
    assert (taken.interrupted() if found is None else found) == status
    assert (found is None) == (moment == "opening" or not is_acknowledged)
    left = 0 if is_acknowledged else 2
    sentence = f"Interrupted: 2 published, {left} of them not acknowledged\n"
    assert capsys.readouterr().err == ("" if moment in ("never", "opening") else sentence)
    for descriptor in descriptors:
        os.close(descriptor)


@pytest.mark.parametrize("is_file", [True, False])
async def test_a_terminal_shows_ten_times_a_second_how_much_of_a_file_is_read(
    is_file: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, autojump_clock: Any
) -> None:
    """Nobody knows how much a pipe will have."""
    bar = NotingBar()
    monkeypatch.setattr(produce, "error_is_terminal", lambda: True)
    monkeypatch.setattr(produce, "make_progress_bar", lambda: bar)
    (tmp_path / "file").write_bytes(b"0" * 100)
    os.mkfifo(tmp_path / "pipe")
    fd = os.open(tmp_path / ("file" if is_file else "pipe"), os.O_RDONLY if is_file else os.O_RDWR)
    producer = Producer(2000, 500, None)
    producer.publish(1000)
    async with produce._show_progress(producer, fd):
        await trio.sleep(0.05)
        if is_file:
            os.read(fd, 60)
        producer.publish(500)
        await trio.sleep(0.1)
        producer.publish(500)
    os.close(fd)
    places = (0, 60, 60) if is_file else (0, 0, 0)
    sentences = ("1,000 published, 500 stored", "1,500 published, 500 stored", "2,000 published, 500 stored")
    assert bar.totals == [100 if is_file else None]
    assert bar.shown == [*zip(places, sentences, strict=True), (-1, "closed")]


async def test_nothing_is_shown_over_typed_lines_or_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produce, "make_progress_bar", None)
    master, terminal = os.openpty()
    reading, writing = os.pipe()
    for fd, is_terminal in ((None, True), (terminal, True), (reading, False)):
        monkeypatch.setattr(produce, "error_is_terminal", lambda is_terminal=is_terminal: is_terminal)
        async with produce._show_progress(Producer(0, 0, None), fd):
            await trio.lowlevel.checkpoint()
    for fd in (master, terminal, reading, writing):
        os.close(fd)


# `dafka consume` saves positions of records that it has written out, and of no others


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


async def print_records(records: Records, fd: int, count: int, supervisor: object, idle_exit_s: float = 1000.0) -> None:
    """Print records as `dafka consume` does."""
    selected, consumer = cast(SelectedRecords, records), cast(Consumer, records)
    printer = _Printer(consumer, selected, fd, make_formatter("value"), is_saving=True)
    with trio.fail_after(60):
        await printer.print_records(cast(Supervisor, supervisor), count, idle_exit_s)
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


async def test_positions_are_saved_within_a_second_although_no_further_records_come(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command ends when nothing has come for the time that it was told."""

    async def write(_fd: int, _data: bytes) -> None:
        await trio.lowlevel.checkpoint()  # no thread, which the clock would not wait for

    monkeypatch.setattr(consume, "write_bytes", write)
    started, times = trio.current_time(), list[float]()
    records = Records(2, lambda: len(times))
    save = records.save_positions

    async def save_positions() -> None:
        times.append(trio.current_time() - started)
        await save()

    records.save_positions = save_positions  # type: ignore[method-assign]
    await print_records(records, os.open(os.devnull, os.O_WRONLY), 1000, Unstopped(), idle_exit_s=20.0)
    assert trio.current_time() - started == pytest.approx(20.0)
    assert times == pytest.approx([consume.SAVE_S, 20.0])
    assert [position for position, _ in records.saved] == [20, 20]


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
