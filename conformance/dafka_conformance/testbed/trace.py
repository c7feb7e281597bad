"""The trace of a scenario: every message and event in order, for the report. A run of similar records is one event."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from dafka_conformance.grammar import Message, Value
from dafka_conformance.model import Event, Kind

EVENTS_MAX = 4000
"""The maximum number of events without a fault. Later ones are dropped, since a report shows a few dozen only."""

_HEX_BYTES_MAX = 96
_TEXT_MAX = 48
_RUN_MESSAGES = {"RECORD", "DIRECT-RECORD"}


class Trace:
    """The events of one scenario, and the labels of its nodes."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.events: list[Event] = []
        self._clock = clock
        self._started_at = clock()
        self._names: dict[bytes, str] = {}
        self._last: tuple[object, ...] = ()
        self._next_sequence = -1

    def reset(self) -> None:
        """Remove all events and labels, for a new scenario."""
        self.events = []
        self._names = {}
        self._last = ()
        self._started_at = self._clock()

    @property
    def now(self) -> float:
        """The seconds since the scenario began."""
        return self._clock() - self._started_at

    def name_node(self, address: bytes, label: str) -> None:
        """Show this address as `label` from now on."""
        self._names[address] = label

    def show(self, value: bytes) -> str:
        """Return bytes as readable text: a node's label, plain text, or escaped as in a Python literal."""
        if value in self._names:
            return self._names[value]
        cut = value[:_TEXT_MAX]
        text = cut.decode("ascii", "replace")
        text = text if text.isprintable() and text and "\ufffd" not in text else repr(cut)[2:-1] or '""'
        return text if len(value) <= _TEXT_MAX else f"{text}… ({len(value):,} bytes)"

    def add_message(
        self, sender: str, receiver: str, message: Message, frames: Sequence[bytes], fault: str = ""
    ) -> int:
        """Add a message and return its index."""
        sequence = message.values.get("sequence")
        key = (sender, receiver, message.name, message.topic, message.values.get("address"))
        if message.name in _RUN_MESSAGES and isinstance(sequence, int) and not fault:
            if key == self._last and sequence == self._next_sequence and self.events:
                self._next_sequence += 1
                self._extend(self.events[-1], sequence)
                return len(self.events) - 1
            self._last, self._next_sequence = key, sequence + 1
        else:
            self._last = ()
        fields = [("topic", self.show(message.topic))]
        fields += [(name, self._show_value(value)) for name, value in message.values.items()]
        return self._add(
            Event(self.now, sender, receiver, Kind.MESSAGE, message.name, tuple(fields), _hex(frames)), fault
        )

    def add_frames(self, sender: str, receiver: str, label: str, frames: Sequence[bytes], fault: str = "") -> int:
        """Add frames that are not a message of the grammar, and return their index."""
        self._last = ()
        return self._add(Event(self.now, sender, receiver, Kind.MESSAGE, label, (), _hex(frames)), fault)

    def add_event(self, kind: Kind, sender: str, receiver: str, label: str, **fields: bytes | str) -> int:
        """Add any other event and return its index."""
        self._last = ()
        shown = tuple((name, self.show(value) if isinstance(value, bytes) else value) for name, value in fields.items())
        return self._add(Event(self.now, sender, receiver, kind, label, shown))

    def add_note(self, text: str) -> int:
        """Add an event that is not a message, such as a kill, a restart or a step of the scenario."""
        return self.add_event(Kind.NOTE, "", "", text)

    def mark_fault(self, index: int, fault: str, field: str = "") -> None:
        """Mark an event as faulty, unless it already is."""
        if 0 <= index < len(self.events) and not self.events[index].fault:
            self.events[index].fault = fault
            self.events[index].fault_field = field

    def _add(self, event: Event, fault: str = "") -> int:
        event.fault = fault
        if len(self.events) >= EVENTS_MAX and not fault and event.kind is not Kind.NOTE:
            self._last = ()
            return len(self.events) - 1
        self.events.append(event)
        return len(self.events) - 1

    def _extend(self, event: Event, sequence: int) -> None:
        event.count += 1
        if event.fault:
            return
        fields = dict(event.fields)
        fields["sequence"] = f"{fields['sequence'].partition('..')[0]}..{sequence}"
        event.fields = tuple(fields.items())

    def _show_value(self, value: Value) -> str:
        if isinstance(value, int):
            return str(value)
        if isinstance(value, bytes):
            return self.show(value)
        shown = ", ".join(self.show(each) for each in value[:8])
        return f"[{shown}{', …' if len(value) > 8 else ''}]"


def _hex(frames: Sequence[bytes]) -> tuple[str, ...]:
    return tuple(
        frame[:_HEX_BYTES_MAX].hex(" ").upper() + ("…" if len(frame) > _HEX_BYTES_MAX else "") for frame in frames[:6]
    )


@attrs.frozen
class ReceivedMessage:
    """A message from the target, with its index in the trace and the time of arrival in seconds."""

    message: Message
    event: int
    at: float
