"""Reports of a run: a table for the terminal, JSON, and a plot as SVG."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from itertools import groupby

import attrs
from rich.box import SIMPLE_HEAD
from rich.table import Table

from dafka.extras import require_extra
from dafka_bench.results import Results, Row, Spread

VERSION = 1
"""The version of the JSON document, incremented when a key is renamed or removed."""

ROW_HEIGHT = 18
GROUP_HEAD = 26
LABEL_WIDTH = 260
BAR_WIDTH = 420
VALUE_WIDTH = 260
TITLE_HEIGHT = 36
LINE_HEIGHT = 16
LINE_LENGTH = 140
"""The longest line below the title, in characters."""

COLORS = ("#3b6ea5", "#c8553d", "#588b5b", "#8d6a9f", "#c9a227", "#4f9d9d", "#7a7a7a", "#a85c7a")


def to_table(results: Results) -> Table:
    """Return a table of medians and ranges, with ratios to the base.

    The systems are listed below the name and unit of each figure, with a note if lower values are better.
    """
    table = Table(box=SIMPLE_HEAD, title=f"ratios are to {results.base}", title_justify="left")
    table.add_column("")
    for name in ("median", "range", "ratio", "range"):
        table.add_column(name, justify="right", no_wrap=True)
    for (job, name), rows in groupby(results.rows(), key=lambda row: (row.job, row.figure)):
        found = list(rows)
        better = "" if found[0].is_higher_better else ", lower is better"
        table.add_section()
        table.add_row(f"{job}: {name} [{found[0].unit}{better}]".replace("[", "\\["), style="bold")
        for row in found:
            ratio = (format_figure(row.ratio.median), format_spread(row.ratio)) if row.ratio else ("", "")
            table.add_row(f"  {row.system}", format_figure(row.value.median), format_spread(row.value), *ratio)
    return table


def notes(results: Results) -> Iterator[str]:
    """Yield a sentence about each system and job that is not in the table."""
    for name, reason in results.left_out.items():
        yield f"left out: {name}: {reason}"
    for failure in results.failures:
        yield f"failed in round {failure.round}: {failure.job}, {failure.system}: {failure.reason}"


def format_figure(value: float) -> str:
    """Format a value with at least three significant digits."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def format_spread(values: Spread) -> str:
    """Format the lowest and the highest value."""
    return f"{format_figure(values.low)} - {format_figure(values.high)}"


def to_json(results: Results) -> str:
    """Return the results as JSON: settings, machine, summary, and every sample."""
    samples = [
        {"job": sample.job, "system": sample.system, "round": sample.round, **attrs.asdict(sample.measured)}
        for sample in results.samples
    ]
    document = {
        "version": VERSION,
        "date": results.date,
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


@attrs.frozen
class _PlotBar:
    label: str
    text: str
    color: str
    y: int
    length: float
    low: float
    high: float


@attrs.frozen
class _PlotGroup:
    title: str
    y: int
    bars: list[_PlotBar]


def to_svg(results: Results) -> str:
    """Return a plot with a bar for every figure of every system, relative to the largest value of the figure.

    Args:
        results: The results of a run.

    Returns:
        The plot as SVG.

    Raises:
        MissingExtraError: If the extra `bench` is not installed.
    """
    lines = list(describe_run(results))
    top = TITLE_HEIGHT + LINE_HEIGHT * len(lines) + ROW_HEIGHT
    groups = list(_groups(results, top))
    height = groups[-1].bars[-1].y + 2 * ROW_HEIGHT if groups else top + ROW_HEIGHT
    with require_extra("bench", "a plot"):
        import jinja2  # noqa: PLC0415 (an extra)

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("dafka_bench", "."), autoescape=True, undefined=jinja2.StrictUndefined
    )
    return environment.get_template("plot.svg.jinja").render(
        title="Benchmark of " + " and ".join(results.systems),
        lines=lines,
        groups=groups,
        width=LABEL_WIDTH + BAR_WIDTH + VALUE_WIDTH,
        height=height,
        left=LABEL_WIDTH,
        thickness=ROW_HEIGHT - 6,
    )


def describe_run(results: Results) -> Iterator[str]:
    """Yield lines that name the jobs, the date and the machine."""
    settings = dict(results.settings)
    nodes = settings.pop("nodes", {})
    if isinstance(nodes, Mapping):
        settings |= nodes
    yield from textwrap.wrap(f"{results.date or 'undated'}: {_describe(settings)}", LINE_LENGTH)
    yield f"bars: medians of all rounds; lines: from the lowest to the highest; ratios: to {results.base}"
    yield from textwrap.wrap(f"machine: {_describe(results.machine)}", LINE_LENGTH)


def _describe(values: Mapping[str, object]) -> str:
    return "; ".join(f"{name.replace('_', ' ')} {_format_value(value)}" for name, value in values.items())


def _format_value(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_format_value, value))
    return f"{value:,g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def _groups(results: Results, top: int) -> Iterator[_PlotGroup]:
    colors = {name: COLORS[number % len(COLORS)] for number, name in enumerate(results.systems)}
    y = top
    for (job, name), rows in groupby(results.rows(), key=lambda row: (row.job, row.figure)):
        found = list(rows)
        longest = max(row.value.high for row in found) or 1.0
        better = "" if found[0].is_higher_better else ", lower is better"
        bars = [
            _bar(row, colors[row.system], y + GROUP_HEAD + number * ROW_HEIGHT, BAR_WIDTH / longest)
            for number, row in enumerate(found)
        ]
        yield _PlotGroup(f"{job}: {name} ({found[0].unit}{better})", y, bars)
        y += GROUP_HEAD + len(found) * ROW_HEIGHT + 8


def _bar(row: Row, color: str, y: int, scale: float) -> _PlotBar:
    ratio = f"  ({format_figure(row.ratio.median)} of base)" if row.ratio else ""
    value = row.value
    text = format_figure(value.median) + ratio
    return _PlotBar(row.system, text, color, y, value.median * scale, value.low * scale, value.high * scale)
