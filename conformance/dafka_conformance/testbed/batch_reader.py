"""A connection to the target as a node makes it that knows the companion specifications.

It subscribes to record batches and single records, or to answers where the records of a time begin. The specifications
judge a publisher by what it sends on each connection. So the scripted peers and the
testbed's listener stay nodes of RFC 46, and a batch reader is one more connection beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
import trio

from dafka_conformance.grammar import FrameError, Grammar, Message
from dafka_conformance.grammar.positions import POSITION_COMMANDS, position_formats
from dafka_conformance.grammar.record_batches import (
    BATCH_OF,
    BatchFormatError,
    DecodedBatch,
    batch_formats,
    read_batch,
)
from dafka_conformance.model import Dialect, Kind
from dafka_conformance.testbed.message_checks import FaultReport
from dafka_conformance.testbed.network import Sockets, track_handshakes
from dafka_conformance.testbed.trace import Trace

READER_LABEL = "R"
"""The label of a batch reader in traces."""


@attrs.frozen
class ReadMessage:
    """A message on the connection.

    Attributes:
        message: The message.
        event: Its index in the trace.
        batch: The batch in a RECORD-BATCH or a DIRECT-RECORD-BATCH; None in any other message.
    """

    message: Message
    event: int
    batch: DecodedBatch | None = None

    @property
    def sequences(self) -> range:
        """The sequences of the records in it."""
        if self.batch is None:
            first = self.message.get_number("sequence")
            return range(first, first + 1)
        return range(self.batch.base_offset, self.batch.base_offset + len(self.batch.records))


class BatchReader:
    """A connection that subscribes to record batches.

    Attributes:
        received: The well-formed messages so far, in order.
        has_batches: Whether any batch has arrived, well-formed or not.
        connected: The endpoints that it is connected to.

    Args:
        sockets: Opens its sockets.
        grammar: The grammar of RFC 46.
        trace: The trace that the batches are added to. The testbed's listener adds all other messages.
        target_label: The target's label in the trace.
        report: Called for each malformed batch.
        changed: Called when a message has arrived or an endpoint is connected.
    """

    def __init__(
        self,
        sockets: Sockets,
        grammar: Grammar,
        trace: Trace,
        target_label: str,
        report: FaultReport,
        changed: Callable[[], None],
    ) -> None:
        self.received: list[ReadMessage] = []
        self.has_batches = False
        self.connected: set[str] = set()
        self._grammar = grammar
        self._trace = trace
        self._target_label = target_label
        self._report = report
        self._changed = changed
        self._socket = sockets.target_subscriber()
        self._monitor = sockets.monitor(self._socket)

    def connect(self, endpoint: str) -> None:
        """Connect to an endpoint of the target."""
        self._socket.connect(endpoint)

    def subscribe(self, name: str, topic: bytes) -> None:
        """Subscribe to a message, after the subscriptions so far."""
        formats = batch_formats() if name in BATCH_OF.values() else self._grammar.formats
        formats = position_formats() if name in POSITION_COMMANDS else formats
        prefix = formats.id_of(name) + topic
        self._trace.add_event(
            Kind.SUBSCRIPTION, READER_LABEL, self._target_label, "subscribe", prefix=prefix[:1], topic=topic
        )
        self._socket.subscribe(prefix)

    def messages(self, name: str, since: int = 0) -> list[ReadMessage]:
        """Return the messages with this name so far."""
        return [each for each in self.received[since:] if each.message.name == name]

    async def run(self) -> None:
        """Receive until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(track_handshakes, self._monitor, self.connected, self._changed)
            while True:
                for frames in await self._socket.receive_many():
                    self._take(frames)
                self._changed()

    def _take(self, frames: Sequence[bytes]) -> None:
        if frames[0][:1] in batch_formats().by_id:
            self.has_batches = True
            self._take_batch(frames)
            return
        formats = self._grammar.formats
        is_position = frames[0][:1] in position_formats().by_id
        if is_position:
            formats = position_formats()
        try:
            message, _, others = formats.decode_any(frames)
        except FrameError as fault:
            if is_position:  # the listener reports all others
                index = self._trace.add_frames(self._target_label, READER_LABEL, fault.message, frames)
                self._report(f"grammar.{fault.message}", f"{fault.message}: {fault}", index, fault.field)
            return
        if is_position and others:
            index = self._trace.add_message(self._target_label, READER_LABEL, message, frames)
            self._report(f"grammar.{message.name}", f"{message.name}: {others[0]}", index, others[0].field)
            return
        index = self._trace.add_message(self._target_label, READER_LABEL, message, frames)
        self.received.append(ReadMessage(message, index))

    def _take_batch(self, frames: Sequence[bytes]) -> None:
        formats = batch_formats()
        name = formats.by_id[frames[0][:1]].name
        try:
            message, dialect, others = formats.decode_any(frames)
            if dialect is not Dialect.RFC46:
                raise FrameError(name, "frames", f"{name} has {len(frames)} frames, expected 3 in every dialect")
        except FrameError as fault:
            index = self._trace.add_frames(self._target_label, READER_LABEL, name, frames)
            self._report(f"grammar.{name}", f"{name}: {fault}", index, fault.field)
            return
        try:
            batch = read_batch(message.get_bytes("content"))
        except BatchFormatError as fault:
            index = self._trace.add_message(self._target_label, READER_LABEL, message, frames)
            self._report(fault.clause, f"{name}: {fault}", index, "content")
            return
        shown = Message(name, message.topic, {**message.values, "sequence": batch.base_offset})
        index = self._trace.add_message(self._target_label, READER_LABEL, shown, frames)
        for other in others:
            self._report(f"grammar.{name}", f"{name}: {other}", index, other.field)
        self.received.append(ReadMessage(message, index, batch))
