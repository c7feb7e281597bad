"""Everything that is said in a scenario, in order, for the report. Runs of alike records are one event."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from dafka_conformance.grammar import Message, Value
from dafka_conformance.model import Event, Kind

EVENTS_MAX = 4000
"""Beyond it only what is wrong is kept: a report shows a few dozen of them."""

_HEX_OCTETS_MAX = 96
_TEXT_MAX = 48
_RUN_MESSAGES = {"RECORD", "DIRECT-RECORD"}


class Trace:
    """The events of one scenario, and the names that its nodes go by."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.events: list[Event] = []
        self._clock = clock
        self._started_at = clock()
        self._names: dict[bytes, str] = {}
        self._last: tuple[object, ...] = ()
        self._next_sequence = -1

    def reset(self) -> None:
        """A new scenario begins: nothing has been said, and nobody has a name."""
        self.events = []
        self._names = {}
        self._last = ()
        self._started_at = self._clock()

    @property
    def now(self) -> float:
        """Seconds since the scenario began."""
        return self._clock() - self._started_at

    def name_node(self, address: bytes, label: str) -> None:
        """From now on this address is shown as `label`."""
        self._names[address] = label

    def show(self, octets: bytes) -> str:
        """Octets for reading: a node's label, or text, or what Python would print."""
        if octets in self._names:
            return self._names[octets]
        cut = octets[:_TEXT_MAX]
        text = cut.decode("ascii", "replace")
        text = text if text.isprintable() and text and "\ufffd" not in text else repr(cut)[2:-1] or '""'
        return text if len(octets) <= _TEXT_MAX else f"{text}… ({len(octets):,} octets)"

    def add_message(
        self, sender: str, receiver: str, message: Message, frames: Sequence[bytes], fault: str = ""
    ) -> int:
        """Adds a message; gives its place."""
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
        """Adds frames that are no message of the grammar; gives their place."""
        self._last = ()
        return self._add(Event(self.now, sender, receiver, Kind.MESSAGE, label, (), _hex(frames)), fault)

    def add_event(self, kind: Kind, sender: str, receiver: str, label: str, **fields: bytes | str) -> int:
        """Adds anything else; gives its place."""
        self._last = ()
        shown = tuple((name, self.show(value) if isinstance(value, bytes) else value) for name, value in fields.items())
        return self._add(Event(self.now, sender, receiver, kind, label, shown))

    def add_note(self, text: str) -> int:
        """Adds something that happened and was not said: a kill, a restart, a step of the scenario."""
        return self.add_event(Kind.NOTE, "", "", text)

    def mark_fault(self, place: int, fault: str, field: str = "") -> None:
        """Says what is wrong with an event."""
        if 0 <= place < len(self.events) and not self.events[place].fault:
            self.events[place].fault = fault
            self.events[place].fault_field = field

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
        frame[:_HEX_OCTETS_MAX].hex(" ").upper() + ("…" if len(frame) > _HEX_OCTETS_MAX else "") for frame in frames[:6]
    )


@attrs.frozen
class ReceivedMessage:
    """A message of the target, with its place in the trace."""

    message: Message
    event: int
    at: float
