"""The table of a run, for a terminal."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby

import attrs
from rich.box import SIMPLE_HEAD
from rich.table import Table

from dafka.bench.results import Results, Row, Spread
from dafka.extras import require_extra


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


def figure(value: float) -> str:
    """With three digits that count, at least."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def spread(values: Spread) -> str:
    """From the lowest to the highest."""
    return f"{figure(values.low)} - {figure(values.high)}"


VERSION = 1
"""Changes when a key is renamed or removed."""


def to_json(results: Results) -> str:
    """The document, with a line end."""
    samples = [
        {"job": sample.job, "system": sample.system, "round": sample.round, **attrs.asdict(sample.measured)}
        for sample in results.samples
    ]
    document = {
        "version": VERSION,
        "settings": dict(results.settings),
        "machine": dict(results.machine),
        "systems": list(results.systems),
        "base": results.base,
        "left_out": dict(results.left_out),
        "failures": [attrs.asdict(failure) for failure in results.failures],
        "summary": [{**attrs.asdict(row), "is_higher_better": row.is_higher_better} for row in results.rows()],
        "samples": samples,
    }
    return json.dumps(document, indent=2) + "\n"


ROW_HEIGHT = 18
GROUP_HEAD = 26
LABEL_WIDTH = 260
BAR_WIDTH = 420
VALUE_WIDTH = 260
COLOURS = ("#3b6ea5", "#c8553d", "#588b5b", "#8d6a9f", "#c9a227", "#4f9d9d", "#7a7a7a", "#a85c7a")


@attrs.frozen
class _Bar:
    label: str
    text: str
    colour: str
    y: int
    length: float
    low: float
    high: float


@attrs.frozen
class _Group:
    title: str
    y: int
    bars: list[_Bar]


def to_svg(results: Results) -> str:
    """The picture, as a text to be written in UTF-8."""
    groups = list(_groups(results))
    height = groups[-1].bars[-1].y + 2 * ROW_HEIGHT if groups else ROW_HEIGHT
    with require_extra("bench", "a plot"):
        import jinja2  # noqa: PLC0415 (an extra)

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("dafka.bench", "."), autoescape=True, undefined=jinja2.StrictUndefined
    )
    return environment.get_template("plot.svg.jinja").render(
        groups=groups,
        width=LABEL_WIDTH + BAR_WIDTH + VALUE_WIDTH,
        height=height,
        left=LABEL_WIDTH,
        thickness=ROW_HEIGHT - 6,
    )


def _groups(results: Results) -> Iterator[_Group]:
    colours = {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(results.systems)}
    y = 4
    for (job, name), rows in groupby(results.rows(), key=lambda row: (row.job, row.figure)):
        found = list(rows)
        longest = max(row.value.high for row in found) or 1.0
        better = "" if found[0].is_higher_better else ", less is better"
        bars = [
            _bar(row, colours[row.system], y + GROUP_HEAD + number * ROW_HEIGHT, BAR_WIDTH / longest)
            for number, row in enumerate(found)
        ]
        yield _Group(f"{job}: {name} ({found[0].unit}{better})", y, bars)
        y += GROUP_HEAD + len(found) * ROW_HEIGHT + 8


def _bar(row: Row, colour: str, y: int, scale: float) -> _Bar:
    ratio = f"  ({figure(row.ratio.median)} of base)" if row.ratio else ""
    value = row.value
    text = figure(value.median) + ratio
    return _Bar(row.system, text, colour, y, value.median * scale, value.low * scale, value.high * scale)
