"""The table of a run, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from rich.box import SIMPLE_HEAD
from rich.table import Table

from dafka.bench.model import Results
from dafka.bench.report.numbers import figure, spread


def to_table(results: Results) -> Table:
    """Medians with their range, and the median of the ratios to the base with theirs.

    The rows of a figure stand below its name and unit; where less is better, that says so.
    """
    table = Table(box=SIMPLE_HEAD, title=f"ratios are to {results.base}", title_justify="left")
    table.add_column("")
    for name in ("median", "range", "ratio", "range"):
        table.add_column(name, justify="right", no_wrap=True)
    for (job, name), rows in groupby(results.rows(), key=lambda row: (row.job, row.figure)):
        found = list(rows)
        better = "" if found[0].is_higher_better else ", less is better"
        table.add_section()
        table.add_row(f"{job}: {name} [{found[0].unit}{better}]".replace("[", "\\["), style="bold")
        for row in found:
            ratio = (figure(row.ratio.median), spread(row.ratio)) if row.ratio else ("", "")
            table.add_row(f"  {row.system}", figure(row.value.median), spread(row.value), *ratio)
    return table


def notes(results: Results) -> Iterator[str]:
    """What is not in the table, and why: a sentence each."""
    for name, reason in results.left_out.items():
        yield f"left out: {name}: {reason}"
    for failure in results.failures:
        yield f"failed in round {failure.round}: {failure.job}, {failure.system}: {failure.reason}"
