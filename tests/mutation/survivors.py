"""The known survivors: mutants that no test can notice, each with the reason; read from `survivors.toml`."""

from __future__ import annotations

import tomllib
from pathlib import Path

import attrs

from tests.mutation.scope import HERE


@attrs.frozen
class Survivor:
    """A known survivor, or several of one line that survive for one reason.

    Attributes:
        file: the file.
        function: the qualified name of the function or class that it is in.
        line: the lines that it changes, with their white space normalized.
        mutants: the lines of each mutant.
        reason: why no test can notice it.
    """

    file: str
    function: str
    line: str
    mutants: tuple[str, ...]
    reason: str

    def describes(self, file: str, function: str, before: str, after: str) -> bool:
        """Return whether this is a certain mutant."""
        is_here = (self.file, self.function, self.line) == (file, function, before)
        return is_here and after in self.mutants


def read_survivors(path: Path = HERE / "survivors.toml") -> tuple[Survivor, ...]:
    """Return all known survivors."""
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    return tuple(
        Survivor(file, entry["function"], entry["line"], tuple(entry["mutants"]), entry["reason"])
        for file, entries in table.items()
        for entry in entries
    )
