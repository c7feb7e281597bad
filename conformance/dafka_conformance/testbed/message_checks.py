"""Checks of every message of the target in every scenario: against the grammar and against what was sent to it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from dafka_conformance.grammar import FrameError, Grammar, Message
from dafka_conformance.grammar.positions import position_formats
from dafka_conformance.grammar.record_batches import batch_formats, read_content
from dafka_conformance.model import Dialect, Role
from dafka_conformance.testbed.known_records import KnownRecords, Partition
from dafka_conformance.testbed.trace import ReceivedMessage, Trace

_OWN_ADDRESS = {"RECORD", "HEAD", "FETCH", "GET-HEADS", "CONSUMER-HELLO", "STORE-HELLO"}
_PARTITION_IN_TOPIC = {"ACK", "FETCH"}
_PARTITION_IN_ADDRESS = {"DIRECT-RECORD", "DIRECT-HEAD"}
_TOPIC_IS = {
    "DIRECT-RECORD": "the requestor's address",
    "DIRECT-HEAD": "the requestor's address",
    "CONSUMER-HELLO": "the store's address",
    "STORE-HELLO": "the consumer's address",
}
_ALWAYS = ("grammar.roles", "grammar.dialect", "grammar.traffic", "topic-frame.first", "version.sent", "version.value")
_CONFORMS = {
    "RECORD": ("sequence.increment", "partition.one"),
    "HEAD": ("head.after-first-record", "head.last-offset"),
    "ACK": ("ack.no-gap",),
    "DIRECT-RECORD": ("direct-record.ascending", "direct-record.content", "fetch.count"),
    "DIRECT-HEAD": ("direct-head.last-offset",),
    "CONSUMER-HELLO": ("consumer-hello.not-empty",),
}
"""The clauses that the target follows if no message of this name has a fault."""
_READINGS = {b"\xaa\xa0": "prose", b"0": "prose"}
"""The readings of the signature and the version that a target may follow instead of the suite's."""
_POSITION_ID = position_formats().id_of("DIRECT-POSITION")
_ADDRESS_BYTES = 32
_LARGE = 2**40
_SMALL = 2**24
"""A number above the former whose bytes in reverse order are one below the latter was written in the wrong order."""
_FAULT_CLAUSES = {"signature": "signature.sent", "version": "version.sent", "id": "topic-frame.first"}


class FaultReport(Protocol):
    """A function that records the fault of an event of the trace."""

    def __call__(self, clause: str, message: str, event: int, field: str = "", reading: str = "") -> None:
        """Record a violation of `clause` by the event at this index of the trace."""


class MessageChecks:
    """Checks each message of the target and reports its faults.

    Attributes:
        addresses: The target's own addresses, from its beacons.
        peers: The roles of the scripted peers, by address.
        is_alone: Whether the cluster has no nodes beside the target and the peers. If it has, messages about those
            nodes are not checked.
        consumed_topic: The only topic that the target consumes, if it is a consumer; otherwise empty.
        message_names: The names of the messages that arrived, for the clauses that they follow.
        positioned: The addresses of the nodes that DIRECT-POSITIONs were sent to.

    Args:
        grammar: The grammar.
        role: The target's role.
        dialect: The dialect that it must send.
        known_records: The records and FETCHes that were sent to it.
        trace: The trace that the messages are added to.
        report: Called for each fault.
    """

    def __init__(
        self,
        grammar: Grammar,
        role: Role,
        dialect: Dialect,
        known_records: KnownRecords,
        trace: Trace,
        report: FaultReport,
    ) -> None:
        self.addresses: set[bytes] = set()
        self.is_alone = True
        self.consumed_topic = b""
        self.peers: dict[bytes, Role] = {}
        self.message_names: set[str] = set()
        self._grammar = grammar
        self._role = role
        self._dialect = dialect
        self._known_records = known_records
        self._trace = trace
        self._report = report
        self._recognizer = grammar.recognizer()
        self._next_sequence: dict[bytes, int] = {}
        self._partition = b""
        self._has_malformed = False
        self.positioned: set[bytes] = set()
        self._has_sent_large = False
        self._past: set[bytes] = set()
        self._last_accepted: tuple[str, bytes, bytes] | None = None
        self._checks: Mapping[str, Callable[[Message, int], None]] = {
            "RECORD": self._check_record,
            "HEAD": self._check_head,
            "ACK": self._check_ack,
            "DIRECT-RECORD": self._check_direct_record,
            "DIRECT-HEAD": self._check_direct_head,
        }

    def begin_scenario(self) -> None:
        """Prepare for another scenario. Messages to or about the previous scenarios' peers are ignored from now on."""
        self._past |= self.peers.keys()
        self.peers = {}
        self.message_names = set()
        self._has_malformed = False

    def record_malformed(self) -> None:
        """Record that the target was sent a malformed message in this scenario.

        If it does not discard the message, it sends messages to and about nodes that do not exist. The scenario reports
        that; they are not wrong by themselves.
        """
        self._has_malformed = True

    def record_sent(self, role: Role, message: Message) -> None:
        """Add a message that a scripted peer sent to the target."""
        self._has_sent_large |= message.get_number("sequence") >= _LARGE
        self._recognizer.accept(role, message)

    def published_count(self, partition: bytes) -> int:
        """Return how many records the target has published in a partition."""
        return self._next_sequence.get(partition, 0)

    def record_position(self, frames: Sequence[bytes]) -> bool:
        """Record a DIRECT-POSITION; it is judged on the connection that subscribed to it. False for other messages."""
        is_position = bool(frames) and frames[0][:1] == _POSITION_ID
        if is_position:
            self.positioned.add(frames[0][1 : 1 + _ADDRESS_BYTES])
        return is_position

    def check_message(self, frames: Sequence[bytes], label: str) -> ReceivedMessage | None:
        """Check the frames of a message of the target.

        Args:
            frames: The frames.
            label: The target's label in the trace.

        Returns:
            The message. None if it is not a valid message, has its sequence in the wrong byte order, or concerns an
            earlier scenario or an unrelated node.
        """
        try:
            message, dialect, others = self._grammar.formats.decode_any(frames)
        except FrameError as fault:
            batch = batch_formats().by_id.get(frames[0][:1]) if frames and not fault.message else None
            name = fault.message or (batch.name if batch is not None else "an unknown message")
            index = self._trace.add_frames(label, "", name, frames)
            if batch is not None and len(frames) == batch.frame_count(Dialect.RFC46):
                text = f"{name} was sent to a connection that had subscribed to everything, but not to {name}"
                self._report("batch.subscribers-only", text, index)
                return None
            clause = _FAULT_CLAUSES.get(fault.field, f"grammar.{fault.message}")
            self._report(clause, f"{name}: {fault}", index, fault.field)
            return None
        if self._past and not self._past.isdisjoint((message.topic, message.get_bytes("address"))):
            return None
        if not self.is_alone and self._concerns_others(message):
            return None
        index = self._trace.add_message(label, self._receiver(message), message, frames)
        if self._is_reversed(message):
            number = message.get_number("sequence")
            text = (
                f"the sequence of {message.name} is {number:,}, which is {_reverse(number):,} with its bytes in "
                "reverse order: numbers are big-endian"
            )
            self._report("number.byte-order", text, index, "sequence")
            return None
        if dialect is not self._dialect:
            text = f"{message.name} is in the dialect {dialect.value}, expected {self._dialect.value}"
            self._report("grammar.dialect", text, index, "frames")
        for other in others:
            reading = _READINGS.get(other.found, "")
            self._report(f"{other.field}.value", f"{message.name}: {other}", index, other.field, reading)
        self._check_role(message, index)
        self._check_address(message, index)
        self._check_topic(message, index)
        check = self._checks.get(message.name)
        if check is not None:
            check(message, index)
        self.message_names.add(message.name)
        return ReceivedMessage(message, index, self._trace.now)

    def checked_clauses(self) -> set[str]:
        """Return the clauses that the messages so far were checked against. Violations are reported separately."""
        clauses = set(_ALWAYS if self.message_names else ())
        if self.message_names and self._dialect is Dialect.RFC46:
            clauses |= {"signature.sent", "signature.value"}
        for name in self.message_names:
            clauses |= {f"grammar.{name}", f"topic.{name}", *_CONFORMS.get(name, ())}
            fields = self._grammar.formats.by_name[name].field_names
            if "address" in fields and name != "ACK":
                clauses.add(f"{name.lower()}.address")
            elif name == "ACK" and self._dialect is Dialect.RFC46:
                clauses.add("ack.address")
            if "subject" in fields:
                clauses.add("subject.sent")
            if "sequence" in fields:
                clauses.add("number.byte-order")
        return clauses

    def _is_reversed(self, message: Message) -> bool:
        """Return whether a sequence is a small one in reverse, unless the target may have got a large one."""
        number = message.get_number("sequence")
        is_own = message.name in {"RECORD", "HEAD"} or not (self._has_sent_large or self._has_malformed)
        return number >= _LARGE and _reverse(number) < _SMALL and is_own

    def _concerns_others(self, message: Message) -> bool:
        """Return whether a message is to or about a node that is neither the target's nor the suite's."""
        named = message.get_bytes("address") if message.name in _PARTITION_IN_ADDRESS else message.topic
        is_address = message.name in _PARTITION_IN_TOPIC | _PARTITION_IN_ADDRESS | _TOPIC_IS.keys()
        known = self.addresses | self.peers.keys() | self._known_records.partitions.keys()
        return is_address and re.fullmatch(rb"[0-9A-F]{32}", named) is not None and named not in known

    def _receiver(self, message: Message) -> str:
        return self._trace.show(message.topic) if message.topic in self.peers else ""

    def _check_role(self, message: Message, index: int) -> None:
        key = (message.name, message.topic, message.get_bytes("address"))
        if key == self._last_accepted and message.name == "DIRECT-RECORD":
            return  # another record of the same answer
        roles = self._recognizer.roles_of(message.name)
        # A store that requests other stores' heads acts as a consumer.
        may_be = {self._role} | ({Role.CONSUMER} if self._role is Role.STORE else set())
        if not roles & may_be:
            allowed = " or ".join(sorted(role.title for role in roles)) or "no role"
            text = f"a {self._role.title} sent {message.name}, which the grammar allows for {allowed}"
            self._report("grammar.roles", text, index)
            return
        accepted = [self._recognizer.accept(role, message) for role in roles & may_be]
        if not any(accepted) and not self._has_malformed:
            about = self._trace.show(message.topic)
            text = f"{message.name} ({about}) was sent without the message that must precede it in the rule DAFKA"
            self._report("grammar.traffic", text, index)
            return
        self._last_accepted = key

    def _check_address(self, message: Message, index: int) -> None:
        """Check the address field: the sender's own, or the producer's if the message is about a partition."""
        name, address = message.name, message.get_bytes("address")
        shown = self._trace.show(address)
        if name == "RECORD" and self._partition not in {b"", address}:
            text = f"RECORD is in the partition {shown}, but earlier ones are in {self._trace.show(self._partition)}"
            self._report("partition.one", text, index, "address")
        elif name in _OWN_ADDRESS and self.addresses and address not in self.addresses:
            text = f"the address of {name} is {shown}, not the sender's own"
            self._report(f"{name.lower()}.address", text, index, "address")
        if name == "ACK" and self._dialect is Dialect.RFC46 and address not in self.addresses:
            reading = "partition" if address == message.topic else ""
            text = f"the address of ACK is {shown}, not that of the store that sent it"
            self._report("ack.address", text, index, "address", reading)
        is_unknown = address not in self._known_records.partitions and not self._has_malformed
        if name in _PARTITION_IN_ADDRESS and is_unknown:
            text = f"the address of {name} is {shown}, which is not a partition"
            self._report(f"{name.lower()}.address", text, index, "address")

    def _check_topic(self, message: Message, index: int) -> None:
        """Check the topic frame and the subject."""
        name, topic, subject = message.name, message.topic, message.get_bytes("subject")
        shown = self._trace.show(topic)
        reading = "grammar" if topic == subject else ""
        if topic in self.addresses or topic == message.get_bytes("address"):
            reading = "prose"
        if name in {"RECORD", "HEAD"} and topic != subject:
            text = f"the topic frame of {name} is {shown}, not the topic {self._trace.show(subject)}"
            self._report(f"topic.{name}", text, index, "topic", reading)
        elif name in _TOPIC_IS and topic not in self.peers and not self._has_malformed:
            text = f"the topic frame of {name} is {shown}, not {_TOPIC_IS[name]}"
            self._report(f"topic.{name}", text, index, "topic", reading)
        elif name in _PARTITION_IN_TOPIC and topic not in self._known_records.partitions and not self._has_malformed:
            text = f"the topic frame of {name} is {shown}, which is not a partition's address"
            self._report(f"topic.{name}", text, index, "topic", reading)
        partition = self._partition_of(message)
        if partition is not None and self.consumed_topic not in {b"", partition.topic}:
            own, other = self._trace.show(self.consumed_topic), self._trace.show(partition.topic)
            self._report("subject.exact", f"a consumer of {own} requested records of {other}", index)
        elif partition is not None and subject != partition.topic:
            wanted = self._trace.show(partition.topic)
            text = f"the subject of {name} is {self._trace.show(subject)}, not the partition's topic {wanted}"
            self._report("subject.sent", text, index, "subject")
        if name == "CONSUMER-HELLO" and message["subjects"] == ():
            text = "CONSUMER-HELLO has no topic: a consumer without topics must not send it"
            self._report("consumer-hello.not-empty", text, index, "subjects", "libdafka")

    def _partition_of(self, message: Message) -> Partition | None:
        if message.name in _PARTITION_IN_TOPIC:
            return self._known_records.partitions.get(message.topic)
        return (
            self._known_records.partitions.get(message.get_bytes("address"))
            if message.name in _PARTITION_IN_ADDRESS
            else None
        )

    def _check_record(self, message: Message, index: int) -> None:
        address, sequence = message.get_bytes("address"), message.get_number("sequence")
        self._partition = self._partition or address
        expected = self._next_sequence.get(address, 0)
        self._next_sequence[address] = max(expected, sequence + 1)
        if sequence != expected:
            clause = "sequence.increment" if expected else "sequence.first"
            self._report(clause, f"RECORD has the offset {sequence}, expected {expected}", index, "sequence")
        self._known_records.partition(address, message.get_bytes("subject")).add(sequence, message.get_bytes("content"))

    def _check_head(self, message: Message, index: int) -> None:
        expected = self._next_sequence.get(message.get_bytes("address"), 0) - 1
        sequence = message.get_number("sequence")
        if expected < 0:
            self._report("head.after-first-record", "HEAD was sent before the first RECORD", index)
        elif sequence != expected:
            text = f"HEAD has the offset {sequence}, expected {expected}, the last published record's"
            self._report("head.last-offset", text, index, "sequence")

    def _check_ack(self, message: Message, index: int) -> None:
        partition = self._partition_of(message)
        if partition is not None and message.get_number("sequence") > partition.head:
            head = partition.head
            have = f"only 0..{head} were sent without a gap" if head >= 0 else "record 0 was never sent"
            text = f"ACK of {message.get_number('sequence')}, but {have}"
            self._report("ack.no-gap", text, index, "sequence")

    def _check_direct_head(self, message: Message, index: int) -> None:
        partition = self._partition_of(message)
        if partition is None:
            return
        # A producer that has left out a sequence counts further from the record after it.
        head = max(partition.head, self._next_sequence.get(message.get_bytes("address"), 0) - 1)
        if (sequence := message.get_number("sequence")) > head:
            text = f"DIRECT-HEAD has the offset {sequence}, but the partition's head is {head}"
            self._report("direct-head.last-offset", text, index, "sequence")

    def _check_direct_record(self, message: Message, index: int) -> None:
        address, sequence = message.get_bytes("address"), message.get_number("sequence")
        requests = list(self._known_records.fetch_requests(message.topic, address))
        if not requests:
            return  # the recognizer reports an answer without a request
        before = self._known_records.record_answer(message.topic, address, sequence)
        if not any(request.covers(sequence) for request in requests):
            asked = ", ".join(f"{each.sequence}..{each.sequence + each.count - 1}" for each in requests[-3:])
            text = f"DIRECT-RECORD {sequence} was not requested: the FETCHes were for {asked}"
            self._report("fetch.count", text, index, "sequence")
        elif before is not None and sequence != before + 1 and all(each.sequence != sequence for each in requests):
            text = f"DIRECT-RECORD {sequence} was sent after {before}: answers must be in ascending order without gaps"
            self._report("direct-record.ascending", text, index, "sequence")
        partition = self._known_records.partitions.get(address)
        content = partition.contents.get(sequence) if partition else None
        # The scenario judges what a node keeps of malformed messages.
        found = message.get_bytes("content")
        if not self._has_malformed and content is not None and read_content(content) != read_content(found):
            text = (
                f"DIRECT-RECORD {sequence} has the content {self._trace.show(found)}, "
                f"expected {self._trace.show(content)}"
            )
            self._report("direct-record.content", text, index, "content")


def _reverse(number: int) -> int:
    """Return the number of 8 bytes that has the bytes of another one in reverse order."""
    return int.from_bytes(number.to_bytes(8, "big"), "little")


def universal_clauses(grammar: Grammar) -> set[str]:
    """Return the clauses that are checked in every scenario, because they concern every message of the target."""
    clauses = {"beacon.interval", "publisher.bound", "subscriber.connects"}
    for dialect in Dialect:
        checks = MessageChecks(grammar, Role.STORE, dialect, KnownRecords(), Trace(lambda: 0.0), lambda *_: None)
        checks.message_names |= grammar.formats.by_name.keys()
        clauses |= checks.checked_clauses()
    return clauses
