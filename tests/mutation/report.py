"""Writes the scores into their page, from the results of the files as they are."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Sequence

import attrs

from tests.mutation.mutants import digest, mutants_of, read
from tests.mutation.runner import Result, kept_results
from tests.mutation.scope import ROOT, Package, git, read_packages
from tests.mutation.survivors import Survivor, read_survivors

PAGE = ROOT / "docs" / "contributing" / "mutation-testing.md"
BEGIN, END = "<!-- scores: written by python -m tests.mutation --report -->\n", "<!-- end of scores -->\n"


@attrs.frozen
class Score:
    """The result of a package.

    Attributes:
        name: the package.
        mutants: all mutants of its files.
        outcomes: how many were run, by outcome.
        equivalent: how many of the survivors are known, each with its reason.
    """

    name: str
    mutants: int
    outcomes: Counter[str]
    equivalent: int

    @property
    def run(self) -> int:
        """How many mutants were run."""
        return self.outcomes.total()

    @property
    def killed(self) -> int:
        """How many were noticed: a test failed, or did not end."""
        return self.outcomes["killed"] + self.outcomes["timeout"]


def write_page() -> None:
    """Replace the scores in the page."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}{_describe(scores())}{END}{after}", encoding="utf-8")


def scores() -> list[Score]:
    """Return the score of each package."""
    results = kept_results()
    survivors = read_survivors()
    return [_score(package, list(results.values()), survivors) for package in read_packages()]


def is_alive(result: Result | None) -> bool:
    """Return whether a mutant has survived."""
    return result is not None and result.outcome in {"survived", "untested"}


def is_known(result: Result, survivors: Sequence[Survivor]) -> bool:
    """Return whether a mutant is a known survivor."""
    mutant = result.mutant
    return any(each.describes(mutant.file, mutant.function, result.before, result.after) for each in survivors)


def _score(package: Package, results: Sequence[Result], survivors: Sequence[Survivor]) -> Score:
    sources = {file: read(ROOT, file) for file in package.files}
    digests = {file: digest(source) for file, source in sources.items()}
    # A result of a mutant that has been left out of the scope since, such as that of a tuning number, does not count.
    mutants = {mutant for file, source in sources.items() for mutant in mutants_of(file, source)}
    own = [each for each in results if each.mutant in mutants and digests[each.mutant.file] == each.source]
    return Score(
        package.name,
        len(mutants),
        Counter(each.outcome for each in own),
        sum(is_known(each, survivors) for each in own if is_alive(each)),
    )


def _describe(found: Sequence[Score]) -> str:
    commit, date = git("rev-parse", "--short", "HEAD").strip(), datetime.datetime.now(tz=datetime.UTC).date()
    lines = [
        f"Run on {date}, on the code of commit {commit}.",
        "",
        "| package | mutants | run | a test failed | time-out | survived | of these equivalent | killed |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for each in found:
        alive = each.run - each.killed
        share = f"{100 * each.killed / each.run:.1f} %" if each.run else "not run"
        cells = [each.name, each.mutants, each.run, each.outcomes["killed"], each.outcomes["timeout"], alive]
        lines.append("| " + " | ".join(str(cell) for cell in [*cells, each.equivalent, share]) + " |")
    return "\n".join(lines) + "\n"
