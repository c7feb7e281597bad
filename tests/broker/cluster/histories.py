"""Loads the histories that `history.py` describes, one log at a time. It knows nothing of dafka."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

AGAIN_S = 1.0
"""A client that makes sure of its position while records arrive goes back to it when the answer comes.

librdkafka 2 does: what a member was given so recently may be given to it again after its leader has changed.
"""

CONTENTS = "contents"
"""The name of the reader that reads every log from its first record to its end, after everything else."""

Event = Sequence[Any]
"""An event: its kind, and its fields."""


class Run(NamedTuple):
    """Records of one producer that follow one another in a log.

    Attributes:
        producer: The number of the producer.
        first: The number of the first one.
        length: How many they are.
        offset: The offset of the first one; -1 if it is not known.
        time: When they were sent, acknowledged or read.
    """

    producer: int
    first: int
    length: int
    offset: int
    time: float = 0.0

    @property
    def end(self) -> int:
        """The number after the last one."""
        return self.first + self.length

    @property
    def end_offset(self) -> int:
        """The offset after the last one."""
        return self.offset + self.length


class End(NamedTuple):
    """An answer to the question where a log ends."""

    reader: str
    begun: float
    time: float
    offset: int


class Assign(NamedTuple):
    """A member of a group was assigned a log, and told to continue at an offset; -1 for the beginning."""

    begun: float
    offset: int


class Commit(NamedTuple):
    """A member of a group has committed an offset, or has tried to."""

    begun: float
    time: float
    is_done: bool
    offset: int


class Group:
    """What happened to one group in one log.

    Attributes:
        assigns: When members were assigned the log.
        commits: The commits.
        gaps: Where a member was not given the next record.
        again: How many records members were given again within `AGAIN_S`.
        got: The records that members were given.
    """

    def __init__(self) -> None:
        self.assigns: list[Assign] = []
        self.commits: list[Commit] = []
        self.gaps: list[str] = []
        self.again = 0
        self.got: list[Run] = []
        self._due: dict[str, int] = {}
        self._recent: dict[str, deque[Run]] = {}

    def assign(self, member: str, begun: float, offset: int) -> None:
        self.assigns.append(Assign(begun, offset))
        self._due[member] = max(offset, 0)
        self._recent[member] = deque()

    def read(self, member: str, run: Run) -> None:
        due = self._due.get(member, run.offset)
        recent = self._recent.setdefault(member, deque())
        while recent and recent[0].time < run.time - AGAIN_S:
            recent.popleft()
        if recent and recent[0].offset <= run.offset < due:
            self.again += due - run.offset
        elif run.offset != due:
            self.gaps.append(f"{member} was given {run.offset} at {run.time:.3f} where {due} was due")
        self._due[member] = run.end_offset
        recent.append(run)
        self.got.append(run)


class Log:
    """The history of one log.

    Attributes:
        sent: How many records each producer has sent, or tried to.
        sends: What was sent.
        acknowledged: What was acknowledged.
        contents: What is in the log, by offset.
        end: Where it ends; -1 if it was not read to its end.
        ends: Answers to the question where it ends.
        groups: What happened to each group.
        fatal: Why producers gave up.
        bad: What readers got that is no whole record.
        reads: What each reader was given.
    """

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.sent: dict[int, int] = {}
        self.sends: list[Run] = []
        self.acknowledged: list[Run] = []
        self.contents: list[Run] = []
        self.end = -1
        self.ends: list[End] = []
        self.groups: dict[str, Group] = {}
        self.fatal: list[str] = []
        self.bad: list[str] = []
        self.reads: list[tuple[str, Run]] = []
        self._members: dict[str, str] = {}
        for event in events:
            self.add(event)

    def add(self, event: Event) -> None:
        """Take in an event. Those of one reader are in their order."""
        kind, *fields = event
        method = getattr(self, f"_{kind}", None)
        if method is not None:
            method(*fields)

    def _send(self, time: float, producer: int, log: int, first: int, count: int) -> None:
        self.sends.append(Run(producer, first, count, -1, time))
        self.sent[producer] = max(self.sent.get(producer, 0), first + count)

    def _ok(self, time: float, producer: int, log: int, first: int, count: int, offset: int) -> None:
        self.acknowledged.append(Run(producer, first, count, offset, time))

    def _fatal(self, time: float, producer: int, reason: str) -> None:
        self.fatal.append(f"producer {producer} gave up at {time:.3f}: {reason}")

    def _bad(self, time: float, reader: str, log: int, offset: int, reason: str) -> None:
        self.bad.append(f"{reader} got no whole record at {offset} of log {log}, at {time:.3f}: {reason}")

    def _end(self, begun: float, time: float, reader: str, log: int, offset: int) -> None:
        self.ends.append(End(reader, begun, time, offset))
        if reader == CONTENTS:
            self.end = max(self.end, offset)

    def _assign(self, begun: float, time: float, group: str, member: str, log: int, offset: int) -> None:
        self._members[member] = group
        self.groups.setdefault(group, Group()).assign(member, begun, offset)

    def _commit(self, begun: float, time: float, group: str, member: str, log: int, is_done: bool, offset: int) -> None:
        self.groups.setdefault(group, Group()).commits.append(Commit(begun, time, is_done, offset))

    def _read(self, time: float, reader: str, log: int, offset: int, producer: int, first: int, count: int) -> None:
        run = Run(producer, first, count, offset, time)
        if reader == CONTENTS:
            self.contents.append(run)
            return
        self.reads.append((reader, run))
        if reader in self._members:
            self.groups[self._members[reader]].read(reader, run)


def load(folder: Path) -> Iterator[tuple[int, Log]]:
    """Return each log with its history. Events without a log come as those of log -1."""
    files: dict[int, list[Path]] = {}
    for path in sorted(folder.glob("*.history")):
        log = path.name.split(".")[-2]
        files.setdefault(int(log) if log.isdigit() else -1, []).append(path)
    for number, paths in sorted(files.items()):
        yield number, Log(event for path in paths for event in _read(path))


def _read(path: Path) -> Iterator[Event]:
    """Return the events of a file, without a last line that a kill has cut."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            if line.endswith("\n"):
                yield json.loads(line)
