"""The layout of a sequence chart in SVG: the lifelines, a row for each event, and the text next to it.

All values are in pixels; the HTML template draws them. From left to right: the time, the lifelines with arrows and
message names, and the fields.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

import attrs

from dafka.text import escape_unprintable
from dafka_conformance.model import Event, Kind, Role, ScenarioResult
from dafka_conformance.report.text_chart import TIMES_MARK, Omitted, describe_fault, select_events

LANES_MAX = 10
"""The maximum number of lifelines. More nodes share the last one, called `others`."""

FIELDS_LETTERS_MAX = 76
VALUE_LETTERS_MAX = 26
FRAME_LETTERS_MAX = 96
"""The maximum length of a frame in the tooltip, in hexadecimal digits."""

_TIME_X = 62
_LANE_WIDTH = 136
_LANE_START = _TIME_X + 74
_HEAD_HEIGHT = 52
_ROW_HEIGHT = 30
_LINE_HEIGHT = 17
_LETTER_WIDTH = 7.3
_OTHERS = "others"


@attrs.frozen
class Lane:
    """A lifeline: its label, its position, and whether it is the target's."""

    label: str
    x: int
    is_target: bool


@attrs.frozen
class Field:
    """A field next to an arrow."""

    text: str
    is_faulty: bool


@attrs.frozen
class Row:
    """An event, or omitted events.

    Attributes:
        y: The vertical position of the arrow.
        height: The height of the row with the fault's lines.
        kind: The kind of drawing: a `Kind`'s value, or `omitted`.
        time: The time in seconds.
        label: The message's name, a note's text, or the number of omitted events.
        x_from: The start of the arrow.
        x_to: The tip of the arrow.
        fields: The fields next to the arrow.
        frames: The raw frames, for the tooltip.
        fault: The description of the fault, in lines that fit; empty if there is none.
    """

    y: int
    height: int
    kind: str
    time: str = ""
    label: str = ""
    x_from: int = 0
    x_to: int = 0
    fields: tuple[Field, ...] = ()
    frames: str = ""
    fault: tuple[str, ...] = ()

    @property
    def tip(self) -> int:
        """The horizontal offset from the arrow's tip to the back of its head."""
        return -8 if self.x_to >= self.x_from else 8


@attrs.frozen
class Diagram:
    """A laid out chart.

    Attributes:
        width: The width in pixels.
        height: The height in pixels.
        lanes: The lifelines from left to right.
        rows: The events from top to bottom.
        fields_x: The horizontal position of the fields.
        events: The shown events, each with its fault, for the table below the chart.
    """

    width: int
    height: int
    lanes: tuple[Lane, ...]
    rows: tuple[Row, ...]
    fields_x: int
    events: tuple[tuple[Event, str], ...]


def draw_chart(result: ScenarioResult, faults: Mapping[int, str], events_max: int) -> Diagram:
    """Lay out a scenario's trace.

    Args:
        result: The scenario's result with its trace.
        faults: The description of each faulty event's fault, by the event's index.
        events_max: The maximum number of events.

    Returns:
        The laid out chart.
    """
    shown = select_events(len(result.trace), faults, events_max)
    events = [result.trace[index] for index in shown if isinstance(index, int)]
    lanes = _lanes(events, result.role)
    places = {lane.label: lane.x for lane in lanes}
    fields_x = lanes[-1].x + 84 if lanes else _LANE_START
    rows: list[Row] = []
    y = _HEAD_HEIGHT + _ROW_HEIGHT
    for index in shown:
        if isinstance(index, Omitted):
            row = Row(y, _ROW_HEIGHT, "omitted", label=f"… {index}", x_from=_LANE_START)
        else:
            row = _row(result.trace[index], faults.get(index, ""), y, places)
        rows.append(row)
        y += row.height
    return Diagram(
        width=fields_x + int(FIELDS_LETTERS_MAX * _LETTER_WIDTH) + 16,
        height=y,
        lanes=lanes,
        rows=tuple(rows),
        fields_x=fields_x,
        events=tuple((result.trace[index], faults.get(index, "")) for index in shown if isinstance(index, int)),
    )


def target_label(role: Role, labels: Sequence[str]) -> str:
    """Return the target's label in a trace; empty if the target sent nothing."""
    return next((label for label in (role.value, role.title, f"{role.value}1") if label in labels), "")


def _lanes(events: Sequence[Event], role: Role) -> tuple[Lane, ...]:
    """Return the lifelines in the order of first appearance, with the target's input first and its output last."""
    labels = list(
        dict.fromkeys(
            label
            for event in events
            if event.kind is not Kind.NOTE
            for label in (event.sender, event.receiver)
            if label
        )
    )
    labels.sort(key=lambda label: {"input": 0, "output": 2}.get(label, 1))
    target = target_label(role, labels)
    if len(labels) > LANES_MAX:
        first = [label for label in labels if label != target][: LANES_MAX - 2]
        labels = [*([target] if target else []), *first, _OTHERS]
    return tuple(Lane(label, _LANE_START + place * _LANE_WIDTH, label == target) for place, label in enumerate(labels))


def _row(event: Event, fault: str, y: int, places: Mapping[str, int]) -> Row:
    lines = tuple(textwrap.wrap(describe_fault(event, fault), FIELDS_LETTERS_MAX - 2)) if fault else ()
    height = _ROW_HEIGHT + _LINE_HEIGHT * len(lines) + (6 if lines else 0)
    time = f"{event.at:.3f}"
    if event.kind is Kind.NOTE:
        return Row(y, height, "note", time, label=truncate(event.label, FIELDS_LETTERS_MAX), fault=lines)
    others = places.get(_OTHERS, _LANE_START)
    x_from = places.get(event.sender, others)
    x_to = places.get(event.receiver, others) if event.receiver else x_from
    return Row(
        y,
        height,
        event.kind.value,
        time,
        label=truncate(event.label, 16) + (f" {TIMES_MARK}{event.count}" if event.count > 1 else ""),
        x_from=x_from,
        x_to=x_to if x_to != x_from else x_from + _LANE_WIDTH // 2,
        fields=_fields(event),
        frames="\n".join(truncate(frame, FRAME_LETTERS_MAX) for frame in event.frames[:4]),
        fault=lines,
    )


def _fields(event: Event) -> tuple[Field, ...]:
    """Return as many fields as fit; the faulty one always does."""
    fields = []
    room = FIELDS_LETTERS_MAX
    faulty = [(name, value) for name, value in event.fields if name == event.fault_field]
    reserved = sum(len(_field(name, value)) + 1 for name, value in faulty)
    for name, value in event.fields:
        is_faulty = name == event.fault_field
        text = _field(name, value)
        if is_faulty:
            reserved = 0
        elif len(text) + 2 + reserved > room:
            continue
        room -= len(text) + 1
        fields.append(Field(text, is_faulty))
    if len(fields) < len(event.fields):
        fields.append(Field("…", False))
    return tuple(fields)


def _field(name: str, value: str) -> str:
    return f"{truncate(name, 20)}={truncate(value, VALUE_LETTERS_MAX)}"


def truncate(text: str, letters_max: int) -> str:
    """Return a printable text of at most this many letters."""
    text = escape_unprintable(text)
    return text if len(text) <= letters_max else f"{text[: letters_max - 1]}…"
