"""A trace as a sequence chart in text: one line per event, and a description of the fault below a faulty event.

A long trace is reduced to its two ends and the events around its faults.
"""

from __future__ import annotations

import textwrap
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

import attrs

from dafka.text import escape_unprintable
from dafka_conformance.model import Event, Kind

FAULT_MARK = "✗"
OMITTED_MARK = "…"
TIMES_MARK = "\N{MULTIPLICATION SIGN}"
VALUE_WIDTH_MAX = 48
"""The maximum width of a field's value. Longer ones are truncated; the fault below the line shows the whole value."""

_ARROWS = {Kind.MESSAGE: "──▶", Kind.SUBSCRIPTION: "╌╌▷", Kind.BEACON: "··▶", Kind.LINE: "──▶"}
_NAME_WIDTH_MAX = 20
_WIDTH_MIN = 40


@attrs.frozen
class Omitted:
    """A number of omitted events of a trace, and how many of them are faulty."""

    count: int
    faulty: int = 0

    def __str__(self) -> str:
        return f"{self.count} more" + (f", {self.faulty} of them faulty" if self.faulty else "")


def select_events(length: int, faults: Mapping[int, str], events_max: int) -> list[int | Omitted]:
    """Return the indices of the events to show, in order, with the omitted ones between them.

    Faulty events have priority, then events near them (before rather than after) and at the two ends.

    Args:
        length: The number of events in the trace.
        faults: The indices of faulty events.
        events_max: The maximum number of events. A single event is shown rather than omitted.

    Returns:
        The indices of shown events and the numbers of omitted ones, in order.
    """
    if length <= events_max:
        return list(range(length))
    faulty = sorted(index for index in faults if 0 <= index < length)

    def remoteness(index: int) -> tuple[int, int]:
        following = bisect_left(faulty, index)
        distances = [min(index, length - 1 - index) + 1]
        if following < len(faulty):
            distances.append(faulty[following] - index)
        if following > 0:
            distances.append(2 * (index - faulty[following - 1]))
        return min(distances), index

    chosen = sorted(sorted(range(length), key=remoteness)[: max(events_max, 1)])
    shown: list[int | Omitted] = []
    following = 0
    for index in [*chosen, length]:
        gap = range(following, index)
        if len(gap) == 1:
            shown.append(following)
        elif gap:
            shown.append(Omitted(len(gap), sum(1 for place in faulty if place in gap)))
        if index < length:
            shown.append(index)
        following = index + 1
    return shown


def text_chart(
    trace: Sequence[Event], faults: Mapping[int, str], *, width: int = 100, events_max: int = 40
) -> list[str]:
    """Return the lines of a chart.

    A line has the time in seconds, the sender and receiver, the message, its count if it stands for several, and its
    fields.

    Args:
        trace: The events.
        faults: The description of each faulty event's fault, by the event's index.
        width: The maximum width of a line in characters; at least 40.
        events_max: The maximum number of events.

    Returns:
        The lines.
    """
    width = max(width, _WIDTH_MIN)
    shown = select_events(len(trace), faults, events_max)
    events = [trace[index] for index in shown if isinstance(index, int)]
    who_width = max((len(_who(event)) for event in events), default=0)
    time_width = max((len(_time(event)) for event in events), default=0)
    indent = " " * (2 + time_width + 2)
    lines = []
    for index in shown:
        if isinstance(index, Omitted):
            lines.append(f"{indent}{OMITTED_MARK} {index}")
            continue
        event = trace[index]
        mark = FAULT_MARK if index in faults else " "
        start = f"{mark} {_time(event):>{time_width}}  {_who(event):<{who_width}}  "
        lines.append(_cut(f"{start}{_what(event)}".rstrip(), width))
        if index in faults:
            lines.extend(_fault(event, faults[index], indent, width))
    return lines


def field_value(event: Event, name: str) -> str | None:
    """Return the value of an event's field; None if the event has no such field."""
    return next((value for key, value in event.fields if key == name), None)


def describe_fault(event: Event, text: str) -> str:
    """Return the description of an event's fault, after the wrong field and its value if there is one."""
    text = escape_unprintable(text)
    if not event.fault_field:
        return text
    value = field_value(event, event.fault_field)
    field = escape_unprintable(event.fault_field)
    return f"{field}: {text}" if value is None else f"{field}={escape_unprintable(value)}: {text}"


def _fault(event: Event, text: str, indent: str, width: int) -> Iterator[str]:
    yield from textwrap.wrap(
        describe_fault(event, text),
        width,
        initial_indent=f"{indent}{FAULT_MARK} ",
        subsequent_indent=f"{indent}  ",
    )


def _time(event: Event) -> str:
    return f"{event.at:.3f}"


def _who(event: Event) -> str:
    if event.kind is Kind.NOTE:
        return "·"
    sender, receiver = (_cut(escape_unprintable(name), _NAME_WIDTH_MAX) for name in (event.sender, event.receiver))
    return f"{sender} {_ARROWS[event.kind]} {receiver}".rstrip()


def _what(event: Event) -> str:
    parts = [escape_unprintable(event.label)]
    if event.count > 1:
        parts.append(f"{TIMES_MARK}{event.count}")
    parts.extend(
        f"{escape_unprintable(name)}={_cut(escape_unprintable(value), VALUE_WIDTH_MAX)}" for name, value in event.fields
    )
    return " ".join(parts)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + OMITTED_MARK
