"""Counts the results of mutants, and writes the page about those of a sample."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Sequence

import attrs

from tests.mutation.runner import Result
from tests.mutation.scope import ROOT, git, read_rooms
from tests.mutation.survivors import Survivor, read_survivors

PAGE = ROOT / "docs" / "contributing" / "mutation-results.md"

AIM = 0.92
"""The share of the mutants of a sample that tests of their own rooms notice."""


@attrs.frozen
class Score:
    """The results of the mutants of a room, or of all.

    Attributes:
        name: the room.
        results: the results.
        survivors: those that survived without being known.
    """

    name: str
    results: Sequence[Result]
    survivors: Sequence[Result]

    @property
    def share(self) -> float:
        """The share of the mutants that were noticed, or that no test can notice."""
        return 1 - len(self.survivors) / len(self.results) if self.results else 1.0


def score(name: str, results: Sequence[Result]) -> Score:
    """Return the score of mutants."""
    known = read_survivors()
    return Score(name, results, [each for each in results if is_alive(each) and not is_known(each, known)])


def write_page(results: Sequence[Result], seed: int) -> None:
    """Write the page with the results of a sample."""
    PAGE.write_text(describe_sample(results, seed), encoding="utf-8")


def is_alive(result: Result | None) -> bool:
    """Return whether a mutant has survived."""
    return result is not None and result.outcome in {"survived", "untested"}


def is_known(result: Result, survivors: Sequence[Survivor]) -> bool:
    """Return whether a mutant is a known survivor."""
    mutant = result.mutant
    return any(each.describes(mutant.file, mutant.function, result.before, result.after) for each in survivors)


def describe_sample(results: Sequence[Result], seed: int) -> str:
    """Return the page about the results of a sample."""
    commit, date = git("rev-parse", "--short", "HEAD").strip(), datetime.datetime.now(tz=datetime.UTC).date()
    room_of = {file: room.name for room in read_rooms() for file in room.files}
    by_room: dict[str, list[Result]] = {}
    for each in results:
        by_room.setdefault(room_of[each.mutant.file], []).append(each)
    total = score("all", results)
    lines = [
        "# Results of mutation testing",
        "",
        f"A random sample of {len(results)} mutants of all of `dafka/`, each run with the tests of its own room only:",
        f"see [Mutation testing](mutation-testing.md). Written by `make mutants-sample` on {date}, on the code of",
        f"commit {commit}, with seed {seed}. Noticed: **{total.share:.1%}** (aim: at least {AIM:.0%}).",
        "",
        "| room | mutants | a test failed | time-out | equivalent | survived | noticed |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in (*(score(name, by_room[name]) for name in sorted(by_room)), total):
        outcomes = Counter(result.outcome for result in row.results)
        equivalent = outcomes["survived"] + outcomes["untested"] - len(row.survivors)
        cells = [row.name, len(row.results), outcomes["killed"], outcomes["timeout"], equivalent, len(row.survivors)]
        lines.append("| " + " | ".join(map(str, [*cells, f"{row.share:.0%}"])) + " |")
    lines += ["", "## Survivors", ""]
    for result in sorted(total.survivors, key=lambda each: (each.mutant.file, each.mutant.line)):
        mutant = result.mutant
        lines += [f"`{mutant.file}:{mutant.line}`, {mutant.function or 'module'} ({result.outcome})", "", "```diff"]
        lines += [f"- {result.before}", f"+ {result.after}", "```", ""]
    return "\n".join(lines if total.survivors else [*lines, "None.", ""])
