"""The timeline of a run: faults, output of nodes, and problems, a line each."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TextIO

SAID_MAX = 20_000
"""Lines of one node that are recorded. Further ones are only counted."""

TRACEBACK = ("Traceback", "Fatal Python error", "Assertion failed")
"""Texts that no node may print, whatever happens to it."""


class Timeline:
    """Writes the timeline.

    Attributes:
        problems: The problems so far.
    """

    def __init__(self, path: Path, echo: TextIO | None = None) -> None:
        """Create the file. With `echo`, everything but the output of nodes is shown there too."""
        self.problems: list[str] = []
        self._file = path.open("w", encoding="utf-8", buffering=1)
        self._begun = time.monotonic()
        self._echo = echo
        self._said: dict[str, int] = {}
        self._faults: list[tuple[str, float]] = []
        self._healed: dict[str, list[float]] = {}

    @property
    def now(self) -> float:
        return time.monotonic() - self._begun

    def fault(self, text: str) -> None:
        """Note that a fault begins: its kind, and whom it hits."""
        self._faults.append((text, time.monotonic()))
        self._write("FAULT", text)

    def healed(self, text: str) -> None:
        """Note that a fault of a kind has ended, with its consequences."""
        self._healed.setdefault(text, []).append(time.monotonic())
        self._write("healed", text)

    def faults_between(self, begin: float, end: float) -> list[str]:
        """Return the faults that were there at some time between two, by `time.monotonic`."""
        found = []
        for text, begun in self._faults:
            healed = (each for each in self._healed.get(text.partition(":")[0], ()) if each >= begun)
            if begun <= end and next(healed, end) >= begin:
                found.append(text)
        return found

    def note(self, text: str) -> None:
        self._write("note", text)

    def problem(self, text: str) -> None:
        self.problems.append(f"at {self.now:.1f} s: {text}")
        self._write("PROBLEM", text)

    def said(self, node: str, line: str) -> None:
        self._said[node] = self._said.get(node, 0) + 1
        if self._said[node] <= SAID_MAX:
            self._write("said", f"{node}: {line}", is_shown=False)
        if line.startswith(TRACEBACK):
            self.problem(f"{node} said {line!r}")

    def close(self) -> None:
        for node, count in self._said.items():
            if count > SAID_MAX:
                self.note(f"{node} said {count - SAID_MAX} lines more")
        self._file.close()

    def _write(self, kind: str, text: str, *, is_shown: bool = True) -> None:
        line = f"{self.now:9.3f} {kind:7} {text}"
        self._file.write(line + "\n")
        if self._echo is not None and is_shown:
            print(line, file=self._echo, flush=True)
