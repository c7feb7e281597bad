"""What a client process is told to do, and the contents that it sends or expects.

Contents are of ASCII digits and padding: ten that tell the record's sequence and, where records are paced, twenty that
tell when it was made (`time.perf_counter_ns`, which all processes of a Linux machine share).
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import attrs

from dafka.bench.results import percentiles

SEQUENCE_DIGITS = 10
STAMP_DIGITS = 20
STAMPED_SIZE_MIN = SEQUENCE_DIGITS + STAMP_DIGITS
TOPIC = "bench"
CHUNK_BYTES_MAX = 16 * 2**20
PREPARED_BYTES_MAX = 64 * 2**20


@attrs.frozen(kw_only=True)
class Task:
    """Attributes:
    records: how many to send, or to receive.
    size: of each content, in octets, at least 10.
    rate: records to send in a second; 0 for as fast as they go.
    opens_on_go: the client opens only when it is told to go: what is measured includes the opening.
    from_beginning: a consumer begins with the earliest record.
    consumers: how many are to receive what is sent.
    stores: how many must have acknowledged a record.
    topics: to subscribe to.
    partitions: that records are spread over.
    settings: what the system tells its clients: where its servers are, and whatever else they need.
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
    settings: dict[str, str] = attrs.field(factory=dict)

    def to_json(self) -> str:
        """As one line of text."""
        return json.dumps(attrs.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Task:
        """From what `to_json` gave."""
        return cls(**json.loads(text))

    def contents(self, first: int, count: int) -> list[bytes]:
        """The contents of records from a sequence on, none beyond the last one."""
        template = b"%%0%dd" % SEQUENCE_DIGITS + b"." * (self.size - SEQUENCE_DIGITS)
        return [template % sequence for sequence in range(first, min(first + count, self.records))]

    def chunks(self, count_max: int) -> Iterable[list[bytes]]:
        """All contents, at most so many or 16 MiB at a time: made here and now, unless that is too much to keep.

        What a producer sends is there before the clock starts: making it takes longer than sending it.
        """
        count = max(1, min(count_max, CHUNK_BYTES_MAX // self.size))
        made = (self.contents(first, count) for first in range(0, self.records, count))
        return list(made) if self.records * self.size <= PREPARED_BYTES_MAX else made

    def stamped_contents(self, first: int, count: int, now: int) -> list[bytes]:
        """Likewise, made at a time in nanoseconds."""
        padding = b"." * (self.size - STAMPED_SIZE_MIN)
        stamp = b"%0*d" % (STAMP_DIGITS, now)
        return [
            b"%0*d%b%b" % (SEQUENCE_DIGITS, sequence, stamp, padding)
            for sequence in range(first, min(first + count, self.records))
        ]

    def topic_names(self) -> list[str]:
        """The topics' names."""
        return [TOPIC] if self.topics == 1 else [f"{TOPIC}-{number}" for number in range(self.topics)]


def parse_sequence(content: bytes) -> int:
    """The sequence that a content tells."""
    return int(content[:SEQUENCE_DIGITS])


def parse_timestamp(content: bytes) -> int:
    """When a paced record was made, in nanoseconds."""
    return int(content[SEQUENCE_DIGITS:STAMPED_SIZE_MIN])


CHUNK_RECORDS = 10_000
"""Contents are sent so many at a time."""

TICK_S = 0.001
"""A paced producer looks this often for what is due."""

SHARES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}


@attrs.frozen
class Usage:
    """What a process has cost: seconds of the processor, and the peak of resident memory in octets."""

    cpu_s: float
    peak_bytes: int


class Control:
    """Says `ready`, waits for the word to go, says what was `done` and what it cost."""

    def __init__(self) -> None:
        self._cpu_s = time.process_time()

    def ready(self) -> None:
        """The client can go; what it cost so far does not count."""
        self._cpu_s = time.process_time()
        self._say({"event": "ready"})

    def wait_go(self) -> None:
        """Says `ready`, and waits to be told to go; ends the process where nobody is there to tell."""
        self.ready()
        if not sys.stdin.readline():
            sys.exit(1)

    def done(
        self,
        *,
        first: int,
        last: int,
        usage: Usage | None = None,
        figures: Mapping[str, float] | None = None,
    ) -> None:
        """All records are sent and acknowledged, or received.

        Arguments:
            first: when it began, in nanoseconds.
            last: when it was over.
            usage: what it cost, where another process did it.
            figures: what else is known.
        """
        usage = usage or Usage(time.process_time() - self._cpu_s, read_peak_bytes())
        self._say({"event": "done", "first": first, "last": last, **attrs.asdict(usage), **(figures or {})})

    def _say(self, message: dict[str, object]) -> None:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()


def read_peak_bytes(process: int | str = "self") -> int:
    """The peak of a process's resident memory, in octets; 0 where it is gone."""
    try:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0


class Pace:
    """Which records of a task are due, at a steady rate from its making on."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._started = time.perf_counter_ns()
        self._sent = 0

    @property
    def is_over(self) -> bool:
        """Have all been given?"""
        return self._sent >= self._task.records

    def due(self) -> list[bytes]:
        """The contents to send now, stamped with now."""
        now = time.perf_counter_ns()
        count = (now - self._started) * self._task.rate // 1_000_000_000 - self._sent
        contents = self._task.stamped_contents(self._sent, count, now)
        self._sent += len(contents)
        return contents


class ReceivedRecords:
    """What a consumer received, and when; sees that nothing is missing, doubled or out of order.

    Only the two ends of each run of one partition are looked at, so that looking costs little.

    Attributes:
        count: how many have come.
    """

    def __init__(self, task: Task, opened: int) -> None:
        self._task = task
        self._opened = opened
        self.count = 0
        self._first = self._last = self._first_count = 0
        self._is_ordered = task.partitions == 1 and task.topics == 1
        self._stamped: list[tuple[int, Sequence[bytes]]] = []

    @property
    def is_complete(self) -> bool:
        """Are all there?"""
        return self.count >= self._task.records

    def take(self, contents: Sequence[bytes]) -> None:
        """Some have come. Raises `ValueError` for others than those that follow."""
        now = time.perf_counter_ns()
        if not self.count:
            self._first, self._first_count = now, len(contents)
        if self._is_ordered:
            for content, sequence in ((contents[0], self.count), (contents[-1], self.count + len(contents) - 1)):
                if parse_sequence(content) != sequence:
                    raise ValueError(f"record {sequence} was expected, and {parse_sequence(content)} came")
        self.count += len(contents)
        if self._task.rate:
            self._stamped.append((now, contents))
        self._last = now

    def report(self, control: Control) -> None:
        """Says that all are there."""
        figures: dict[str, float] = {"opened": self._opened, "first_count": self._first_count}
        if self._stamped:
            delays = [now - parse_timestamp(content) for now, contents in self._stamped for content in contents]
            figures.update(zip(SHARES, percentiles(delays, list(SHARES.values())), strict=True))
        control.done(first=self._first, last=self._last, figures=figures)
