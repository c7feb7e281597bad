"""How `dafka produce` ends when a record cannot be published: its exit status, and what it says about the others."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from dafka.cli.lines import read_lines
from dafka.cli.record_lines import LineFormat
from dafka.cli.runner import Supervisor, run
from dafka.config import Config
from dafka.errors import DafkaError, DiscoveryError, StorageError, StorageSequenceError, UnacknowledgedError

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

    async def wait_settled(self) -> None:
        await trio.lowlevel.checkpoint()

    async def send_many(self, lines: Sequence[bytes | None]) -> None:
        await trio.lowlevel.checkpoint()
        self._published += min(len(lines), self._lines - self._published)
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
