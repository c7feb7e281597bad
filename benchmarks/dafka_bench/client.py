"""The client processes: their task, the contents they send, and how they report to the measuring process.

A client runs one role of a module of `dafka_bench.systems` (see `run_client`). It writes one line of JSON to standard
output per event, and waits for a line on standard input after it has reported that it is ready.

A content is ASCII: ten digits with the sequence of the record; if records are sent at a rate, twenty digits with the
time when it was made (`time.perf_counter_ns`, which all processes of a Linux machine share); then padding.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import attrs

from dafka_bench.results import percentiles

SEQUENCE_DIGITS = 10
TIMESTAMP_DIGITS = 20
TIMESTAMPED_SIZE_MIN = SEQUENCE_DIGITS + TIMESTAMP_DIGITS
TOPIC = "bench"
CHUNK_BYTES_MAX = 16 * 2**20
"""The maximum size of the contents that are sent at once, in bytes."""

PREPARED_BYTES_MAX = 512 * 2**20
"""Contents up to this total size, in bytes, are made before the measurement begins."""


@attrs.frozen(kw_only=True)
class Task:
    """The task of a client.

    Attributes:
        records: The number of records to send or to receive.
        size: The size of each content in bytes, at least 10.
        rate: The number of records to send per second; 0 for as fast as possible.
        opens_on_go: Whether the client connects only after `go`, so that connecting is measured too.
        from_beginning: Whether a consumer begins with the earliest record.
        consumers: The number of consumers of the records that are sent.
        stores: The number of stores that must acknowledge a record.
        topics: The number of topics to subscribe to.
        partitions: The number of partitions that hold the records.
        producers: The number of producers of the job `nodes` in this client; 0 for a client of another job.
        settings: The settings of the clients, such as the addresses of its servers.
    """

    records: int
    size: int = 100
    rate: int = 0
    opens_on_go: bool = False
    from_beginning: bool = False
    consumers: int = 0
    stores: int = 1
    topics: int = 1
    partitions: int = 1
    producers: int = 0
    settings: dict[str, str] = attrs.field(factory=dict)

    def to_json(self) -> str:
        """Return the task as one line of JSON."""
        return json.dumps(attrs.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Task:
        """Return the task from the result of `to_json`."""
        return cls(**json.loads(text))

    def make_contents(self, first: int, count: int) -> list[bytes]:
        """Return the contents of up to `count` records from a sequence on."""
        template = b"%%0%dd" % SEQUENCE_DIGITS + b"." * (self.size - SEQUENCE_DIGITS)
        return [template % sequence for sequence in range(first, min(first + count, self.records))]

    def make_chunks(self, count_max: int) -> Iterable[list[bytes]]:
        """Return all contents in chunks of at most `count_max` records and 16 MiB.

        They are made in advance unless they are too large, because making them takes longer than sending them.
        """
        count = max(1, min(count_max, CHUNK_BYTES_MAX // self.size))
        made = (self.make_contents(first, count) for first in range(0, self.records, count))
        return list(made) if self.records * self.size <= PREPARED_BYTES_MAX else made

    def make_timestamped_contents(self, first: int, count: int, now: int) -> list[bytes]:
        """Return contents as `make_contents` does, with the time `now` in nanoseconds."""
        padding = b"." * (self.size - TIMESTAMPED_SIZE_MIN)
        stamp = b"%0*d" % (TIMESTAMP_DIGITS, now)
        return [
            b"%0*d%b%b" % (SEQUENCE_DIGITS, sequence, stamp, padding)
            for sequence in range(first, min(first + count, self.records))
        ]

    def topic_names(self) -> list[str]:
        """Return the names of the topics."""
        return [TOPIC] if self.topics == 1 else [f"{TOPIC}-{number}" for number in range(self.topics)]


def parse_sequence(content: bytes) -> int:
    """Return the sequence in a content."""
    return int(content[:SEQUENCE_DIGITS])


def parse_timestamp(content: bytes) -> int:
    """Return the time at which a content was made, in nanoseconds. Only contents sent at a rate have it."""
    return int(content[SEQUENCE_DIGITS:TIMESTAMPED_SIZE_MIN])


PACE = "pace"
"""The command that makes several producers send at the rate of their task."""

COUNT = "count"
"""The command that makes several producers report how many records have been acknowledged."""

CHUNK_RECORDS = 10_000
"""The number of records that are sent at once."""

TICK_S = 0.001
"""How often a producer that sends at a rate sends the records that are due."""

SHARES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
"""The percentiles of latency that are measured."""


@attrs.frozen
class Usage:
    """The resources that a process has used.

    Attributes:
        cpu_s: Its processor time, in seconds.
        peak_bytes: Its peak resident memory, in bytes.
    """

    cpu_s: float
    peak_bytes: int


class Coordinator:
    """The connection of a client to the measuring process: reports `ready`, waits for `go`, and reports `done`."""

    def __init__(self) -> None:
        self._cpu_s = time.process_time()

    def ready(self) -> None:
        """Report that the client is ready. Processor time used so far does not count."""
        self._cpu_s = time.process_time()
        self._send({"event": "ready"})

    def wait_go(self) -> None:
        """Report that the client is ready, and wait for `go`. Exit if the measuring process is gone."""
        self.ready()
        if not sys.stdin.readline():
            sys.exit(1)

    def read_command(self) -> str:
        """Wait for the next command of the measuring process; "" if it is gone."""
        return sys.stdin.readline().rstrip("\n")

    def report_first_stored(self) -> None:
        """Report that the first record of one of several producers is acknowledged."""
        self._send({"event": "first-stored", "at": time.perf_counter_ns()})

    def report_acknowledged(self, records: int) -> None:
        """Report how many records have been acknowledged to all producers of the client."""
        self._send({"event": "acknowledged", "records": records, "at": time.perf_counter_ns()})

    def done(
        self,
        *,
        first: int,
        last: int,
        usage: Usage | None = None,
        figures: Mapping[str, float] | None = None,
    ) -> None:
        """Report that all records have been sent and acknowledged, or received.

        Args:
            first: The time at which the transfer began, in nanoseconds.
            last: The time at which it ended, in nanoseconds.
            usage: The resources that the transfer used, if another process did it.
            figures: Further results.
        """
        usage = usage or Usage(time.process_time() - self._cpu_s, read_peak_bytes())
        self._send({"event": "done", "first": first, "last": last, **attrs.asdict(usage), **(figures or {})})

    def _send(self, message: dict[str, object]) -> None:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()


def read_peak_bytes(process: int | str = "self") -> int:
    """Return the peak resident memory of a process, in bytes; 0 if the process is gone."""
    try:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0


class Pace:
    """Determines which records of a task are due, at a steady rate that begins now."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._started = time.perf_counter_ns()
        self._sent = 0

    @property
    def is_over(self) -> bool:
        """Whether all records have been returned."""
        return self._sent >= self._task.records

    def take_due(self) -> list[bytes]:
        """Return the contents to send now, with the current time."""
        now = time.perf_counter_ns()
        count = (now - self._started) * self._task.rate // 1_000_000_000 - self._sent
        contents = self._task.make_timestamped_contents(self._sent, count, now)
        self._sent += len(contents)
        return contents


class ReceivedRecords:
    """The records that a consumer received, and when. Checks that none is missing, repeated or out of order.

    Only the first and the last record of each batch are checked, so that checking costs little.

    Args:
        task: The task of the consumer.
        opened: The time at which the consumer began to connect, in nanoseconds.

    Attributes:
        count: The number of records received.
    """

    def __init__(self, task: Task, opened: int) -> None:
        self._task = task
        self._opened = opened
        self.count = 0
        self._first = self._last = self._first_count = 0
        self._is_ordered = task.partitions == 1 and task.topics == 1
        self._timestamped: list[tuple[int, Sequence[bytes]]] = []

    @property
    def is_complete(self) -> bool:
        """Whether all records have been received."""
        return self.count >= self._task.records

    def add_contents(self, contents: Sequence[bytes]) -> None:
        """Add contents that were received. Raise `ValueError` if they are not the next ones."""
        now = time.perf_counter_ns()
        if not self.count:
            self._first, self._first_count = now, len(contents)
        if self._is_ordered:
            for content, sequence in ((contents[0], self.count), (contents[-1], self.count + len(contents) - 1)):
                if parse_sequence(content) != sequence:
                    raise ValueError(f"expected record {sequence}, not {parse_sequence(content)}")
        self.count += len(contents)
        if self._task.rate:
            self._timestamped.append((now, contents))
        self._last = now

    def report(self, coordinator: Coordinator) -> None:
        """Report that all records were received."""
        figures: dict[str, float] = {"opened": self._opened, "first_count": self._first_count}
        if self._timestamped:
            delays = [now - parse_timestamp(content) for now, contents in self._timestamped for content in contents]
            figures.update(zip(SHARES, percentiles(delays, list(SHARES.values())), strict=True))
        coordinator.done(first=self._first, last=self._last, figures=figures)
