"""What holds for every message of the target, whatever the scenario: all are held against grammar and ledger."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from dafka_conformance.grammar import FrameError, Grammar, Message
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
    "RECORD": ("sequence.increment",),
    "HEAD": ("head.after-first-record", "head.last-offset"),
    "ACK": ("ack.no-gap",),
    "DIRECT-RECORD": ("direct-record.ascending", "direct-record.content", "fetch.count"),
    "DIRECT-HEAD": ("direct-head.last-offset",),
    "CONSUMER-HELLO": ("consumer-hello.not-empty",),
}
"""What a message conforms to when nothing was found wrong with any of its name."""
_FAULT_CLAUSES = {"signature": "signature.sent", "version": "version.sent", "id": "topic-frame.first"}


class FaultReport(Protocol):
    """A function that records what is wrong with an event of the trace."""

    def __call__(self, clause: str, message: str, event: int, field: str = "", reading: str = "") -> None:
        """Record a violation of `clause` by the event at this index of the trace."""


class MessageChecks:
    """Listens to the target, and reports what is wrong.

    Attributes:
        addresses: the target's own addresses, as its beacons tell them.
        peers: the addresses of the nodes that the suite plays, with their roles.
        is_alone: are the target and the suite's nodes all that there is? If not, what concerns others is not judged.
        names: the messages that were heard and in which nothing was wrong, for the clauses that they conform to.
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
        """A new scenario begins: what the target still says to or of the nodes of earlier ones does not matter."""
        self._past |= self.peers.keys()
        self.peers = {}
        self.message_names = set()

    def note_sent(self, role: Role, message: Message) -> None:
        """A node that the suite plays said this to the target."""
        self._recognizer.accept(role, message)

    def published_count(self, partition: bytes) -> int:
        """How many records the target has published."""
        return self._next_sequence.get(partition, 0)

    def check_message(self, frames: Sequence[bytes], label: str) -> ReceivedMessage | None:
        """The target said this; None where it is no message at all, or is left over from an earlier scenario."""
        try:
            message, dialect = self._grammar.formats.decode(frames)
        except FrameError as fault:
            name = fault.message or "no message of the grammar"
            place = self._trace.add_frames(label, "", name, frames)
            clause = _FAULT_CLAUSES.get(fault.field, f"grammar.{fault.message}")
            self._report(clause, f"{name}: {fault}", place, fault.field)
            return None
        if self._past and not self._past.isdisjoint((message.topic, message.get_bytes("address"))):
            return None
        if not self.is_alone and self._concerns_others(message):
            return None
        place = self._trace.add_message(label, self._receiver(message), message, frames)
        if dialect is not self._dialect:
            text = f"{message.name} is written in the dialect {dialect.value}, told to speak {self._dialect.value}"
            self._report("grammar.dialect", text, place, "frames")
        self._check_speaker(message, place)
        self._check_address(message, place)
        self._check_topic(message, place)
        check = self._checks.get(message.name)
        if check is not None:
            check(message, place)
        self.message_names.add(message.name)
        return ReceivedMessage(message, place, self._trace.now)

    def checked_clauses(self) -> set[str]:
        """The clauses that were held against what was heard; which of them failed was reported."""
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
        return clauses

    def _concerns_others(self, message: Message) -> bool:
        """Is it about, or to, a node that is neither the target's nor the suite's?"""
        named = message.get_bytes("address") if message.name in _PARTITION_IN_ADDRESS else message.topic
        is_address = message.name in _PARTITION_IN_TOPIC | _PARTITION_IN_ADDRESS | _TOPIC_IS.keys()
        known = self.addresses | self.peers.keys() | self._known_records.partitions.keys()
        return is_address and re.fullmatch(rb"[0-9A-F]{32}", named) is not None and named not in known

    def _receiver(self, message: Message) -> str:
        return self._trace.show(message.topic) if message.topic in self.peers else ""

    def _check_speaker(self, message: Message, place: int) -> None:
        key = (message.name, message.topic, message.get_bytes("address"))
        if key == self._last_accepted and message.name == "DIRECT-RECORD":
            return  # another one of the same answer, of which there may be many
        roles = self._recognizer.roles_of(message.name)
        # A store that asks other stores for their heads takes a consumer's part.
        may_be = {self._role} | ({Role.CONSUMER} if self._role is Role.STORE else set())
        if not roles & may_be:
            allowed = " or ".join(sorted(role.title for role in roles)) or "nobody"
            text = f"a {self._role.title} said {message.name}, which the grammar lets {allowed} say"
            self._report("grammar.roles", text, place)
            return
        accepted = [self._recognizer.accept(role, message) for role in roles & may_be]
        if not any(accepted):
            about = self._trace.show(message.topic)
            text = f"{message.name} ({about}) came without what must precede it in the rule DAFKA"
            self._report("grammar.traffic", text, place)
            return
        self._last_accepted = key

    def _check_address(self, message: Message, place: int) -> None:
        """The sender's own address where the message is about itself, the producer's where it is about a partition."""
        name, address = message.name, message.get_bytes("address")
        shown = self._trace.show(address)
        if name in _OWN_ADDRESS and self.addresses and address not in self.addresses:
            text = f"the address of {name} is {shown}, not the sender's own"
            self._report(f"{name.lower()}.address", text, place, "address")
        if name == "ACK" and self._dialect is Dialect.RFC46 and address not in self.addresses:
            reading = "partition" if address == message.topic else ""
            text = f"the address of ACK is {shown}, not that of the store that acknowledges"
            self._report("ack.address", text, place, "address", reading)
        if name in _PARTITION_IN_ADDRESS and address not in self._known_records.partitions:
            text = f"the address of {name} is {shown}, which is no partition's"
            self._report(f"{name.lower()}.address", text, place, "address")

    def _check_topic(self, message: Message, place: int) -> None:
        """The topic frame, and the subject: both name what the message is about."""
        name, topic, subject = message.name, message.topic, message.get_bytes("subject")
        shown = self._trace.show(topic)
        reading = "prose" if topic in self.addresses or topic == message.get_bytes("address") else ""
        if name in {"RECORD", "HEAD"} and topic != subject:
            text = f"the topic frame of {name} is {shown}, not the topic {self._trace.show(subject)}"
            self._report(f"topic.{name}", text, place, "topic", reading)
        elif name in _TOPIC_IS and topic not in self.peers:
            text = f"the topic frame of {name} is {shown}, not {_TOPIC_IS[name]}"
            self._report(f"topic.{name}", text, place, "topic", reading)
        elif name in _PARTITION_IN_TOPIC and topic not in self._known_records.partitions:
            text = f"the topic frame of {name} is {shown}, which is no partition's address"
            self._report(f"topic.{name}", text, place, "topic", reading)
        partition = self._partition_of(message)
        if partition is not None and subject != partition.topic:
            wanted = self._trace.show(partition.topic)
            text = f"the subject of {name} is {self._trace.show(subject)}, not the partition's topic {wanted}"
            self._report("subject.sent", text, place, "subject")
        if name == "CONSUMER-HELLO" and message["subjects"] == ():
            text = "CONSUMER-HELLO names no topic: a consumer without topics sends none"
            self._report("consumer-hello.not-empty", text, place, "subjects", "libdafka")

    def _partition_of(self, message: Message) -> Partition | None:
        if message.name in _PARTITION_IN_TOPIC:
            return self._known_records.partitions.get(message.topic)
        return (
            self._known_records.partitions.get(message.get_bytes("address"))
            if message.name in _PARTITION_IN_ADDRESS
            else None
        )

    def _check_record(self, message: Message, place: int) -> None:
        address, sequence = message.get_bytes("address"), message.get_number("sequence")
        expected = self._next_sequence.get(address, 0)
        self._next_sequence[address] = max(expected, sequence + 1)
        if sequence != expected:
            clause = "sequence.increment" if expected else "sequence.first"
            self._report(clause, f"RECORD has the offset {sequence}, expected {expected}", place, "sequence")
        self._known_records.partition(address, message.get_bytes("subject")).add(sequence, message.get_bytes("content"))

    def _check_head(self, message: Message, place: int) -> None:
        expected = self._next_sequence.get(message.get_bytes("address"), 0) - 1
        sequence = message.get_number("sequence")
        if expected < 0:
            self._report("head.after-first-record", "HEAD was sent before the first RECORD", place)
        elif sequence != expected:
            text = f"HEAD has the offset {sequence}, the last published record's is {expected}"
            self._report("head.last-offset", text, place, "sequence")

    def _check_ack(self, message: Message, place: int) -> None:
        partition = self._partition_of(message)
        if partition is not None and message.get_number("sequence") > partition.head:
            have = f"only 0..{partition.head} were sent without a gap" if partition.head >= 0 else "0 was never sent"
            text = f"ACK of {message.get_number('sequence')}, of which {have}"
            self._report("ack.no-gap", text, place, "sequence")

    def _check_direct_head(self, message: Message, place: int) -> None:
        partition = self._partition_of(message)
        if partition is not None and message.get_number("sequence") > partition.head:
            text = (
                f"DIRECT-HEAD has the offset {message.get_number('sequence')}, the partition's head is {partition.head}"
            )
            self._report("direct-head.last-offset", text, place, "sequence")

    def _check_direct_record(self, message: Message, place: int) -> None:
        address, sequence = message.get_bytes("address"), message.get_number("sequence")
        requests = list(self._known_records.fetch_requests(message.topic, address))
        if not requests:
            return  # the order of messages is the recogniser's
        before = self._known_records.note_answer(message.topic, address, sequence)
        if not any(request.covers(sequence) for request in requests):
            asked = ", ".join(f"{each.sequence}..{each.sequence + each.count - 1}" for each in requests[-3:])
            text = f"DIRECT-RECORD {sequence} was not asked for: the FETCHes were for {asked}"
            self._report("fetch.count", text, place, "sequence")
        elif before is not None and sequence != before + 1 and all(each.sequence != sequence for each in requests):
            text = f"DIRECT-RECORD {sequence} came after {before}: answers are sent in ascending order, without a gap"
            self._report("direct-record.ascending", text, place, "sequence")
        partition = self._known_records.partitions.get(address)
        content = partition.contents.get(sequence) if partition else None
        if content is not None and content != message.get_bytes("content"):
            text = (
                f"DIRECT-RECORD {sequence} has the content {self._trace.show(message.get_bytes('content'))}, "
                f"the record's is {self._trace.show(content)}"
            )
            self._report("direct-record.content", text, place, "content")


def universal_clauses(grammar: Grammar) -> set[str]:
    """The clauses that everything a target says is held against, whatever the scenario."""
    clauses = {"beacon.interval", "publisher.bound", "subscriber.connects"}
    for dialect in Dialect:
        checks = MessageChecks(grammar, Role.STORE, dialect, KnownRecords(), Trace(lambda: 0.0), lambda *_: None)
        checks.message_names |= grammar.formats.by_name.keys()
        clauses |= checks.checked_clauses()
    return clauses
