"""A run as an SVG: a bar for every figure of every system, as long as its share of the figure's largest."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

import attrs
import jinja2

from dafka.bench.model import Results, Row
from dafka.bench.report.numbers import figure

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
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("dafka.bench.report", "."), autoescape=True, undefined=jinja2.StrictUndefined
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
