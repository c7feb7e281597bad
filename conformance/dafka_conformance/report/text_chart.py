"""A trace as a sequence chart in text: one line an event, and under a faulty one what is wrong with it.

Of a long trace, the surroundings of its faults and its two ends are shown.
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
"""Longer values of a field are cut; the fault beneath the line shows the wrong one in full."""

_ARROWS = {Kind.MESSAGE: "──▶", Kind.SUBSCRIPTION: "╌╌▷", Kind.BEACON: "··▶", Kind.LINE: "──▶"}
_NAME_WIDTH_MAX = 20
_WIDTH_MIN = 40


@attrs.frozen
class Omitted:
    """Events of a trace that are left out: how many, and how many of them are faulty."""

    count: int
    faulty: int = 0

    def __str__(self) -> str:
        return f"{self.count} more" + (f", {self.faulty} of them faulty" if self.faulty else "")


def select_events(length: int, faults: Mapping[int, str], events_max: int) -> list[int | Omitted]:
    """The places of a trace that are worth showing, in order, with what is left out between them.

    Faulty events come first, then what is near them (rather before than after) and the two ends.

    Arguments:
        length: how many events the trace has.
        faults: the places that are faulty.
        events_max: how many to show; a single event that would be left out is shown too.
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
    """The lines of a chart, none wider than `width` (which counts as at least 40).

    A line is the time in seconds, who spoke to whom, the message, how many where it stands for several, and its fields.

    Arguments:
        trace: what was said.
        faults: the places in the trace of what is wrong, and what is wrong there.
        width: in characters.
        events_max: how many events to show at most.
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
    """What a field of an event holds, or None where it has no such field."""
    return next((value for key, value in event.fields if key == name), None)


def describe_fault(event: Event, text: str) -> str:
    """What is wrong with an event, after the field and its value where it is one field that is wrong."""
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
