"""A node that the suite plays: it says what the scenario tells it, and sees what the target subscribes to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import trio

from dafka_conformance.grammar import Grammar, Message, Value
from dafka_conformance.model import Dialect, Kind, Role
from dafka_conformance.testbed.known_records import KnownRecords, Partition, record_content
from dafka_conformance.testbed.message_checks import MessageChecks
from dafka_conformance.testbed.network import LOOPBACK, Sockets, new_address, track_handshakes
from dafka_conformance.testbed.trace import Trace

BATCH_COUNT = 2000
HEAD_INTERVAL_S = 1.0


class ScriptedPeer:
    """One played node.

    Attributes:
        label: what it is called in scenarios and reports: "P", "C2".
        role: its role.
        address: its address: 32 upper-case hexadecimal digits.
        endpoint: where others connect to it.
        topic: the topic that it publishes or consumes.
        subscriptions: how often the target has subscribed to each prefix here, less unsubscriptions.
        partition: the records of a producer.
        holds: other partitions that it can answer for, as a store does.
        answers: does it answer FETCHes and GET-HEADS by itself?
        beats: does it send HEADs at an interval, as a producer that has published something does?
    """

    def __init__(
        self,
        label: str,
        role: Role,
        topic: bytes,
        *,
        grammar: Grammar,
        dialect: Dialect,
        trace: Trace,
        message_checks: MessageChecks,
        known_records: KnownRecords,
        changed: Callable[[], None],
        target_label: str,
    ) -> None:
        self.label = label
        self.role = role
        self.topic = topic
        self.address = new_address()
        self.subscriptions: Counter[bytes] = Counter()
        self.partition = Partition(self.address, topic)
        self.holds: dict[bytes, Partition] = {}
        self.answers_requests = False
        self.sends_heads = False
        self.connected: set[str] = set()
        self._grammar = grammar
        self._dialect = dialect
        self._trace = trace
        self._message_checks = message_checks
        self._known_records = known_records
        self._changed = changed
        self._target_label = target_label
        self._sockets = Sockets()
        self._pub = self._sockets.publisher()
        self._sub = self._sockets.subscriber()
        self._monitor = self._sockets.monitor(self._sub)
        self._scope = trio.CancelScope()
        self._nursery: trio.Nursery | None = None
        self.endpoint = self._pub.bind(LOOPBACK)
        for prefix in self.own_subscriptions():
            self._sub.subscribe(prefix)

    def own_subscriptions(self) -> list[bytes]:
        """What a node of this role subscribes to (RFC 46, "ZeroMQ Subscriptions")."""
        own: Mapping[Role, Sequence[tuple[str, bytes]]] = {
            Role.PRODUCER: [("ACK", self.address), ("FETCH", self.address), ("GET-HEADS", self.topic)],
            Role.CONSUMER: [
                ("DIRECT-RECORD", self.address),
                ("DIRECT-HEAD", self.address),
                ("STORE-HELLO", self.address),
                ("RECORD", self.topic),
                ("HEAD", self.topic),
            ],
            Role.STORE: [
                ("RECORD", b""),
                ("HEAD", b""),
                ("DIRECT-RECORD", self.address),
                ("FETCH", b""),
                ("GET-HEADS", b""),
                # The RFC has the id alone; the C store adds its address, by which consumers learn of it.
                ("CONSUMER-HELLO", b"" if self._dialect is Dialect.RFC46 else self.address),
            ],
            Role.TOWER: [],
        }
        return [self._grammar.formats.id_of(name) + topic for name, topic in own[self.role]]

    async def run(self) -> None:
        """Works until it leaves, or is cancelled; then its sockets are closed."""
        with self._sockets, self._scope:
            async with trio.open_nursery() as self._nursery:
                nursery = self._nursery
                nursery.start_soon(self._take_subscriptions)
                nursery.start_soon(self._drain)
                nursery.start_soon(self._take_handshakes)
                nursery.start_soon(self._beat)

    def connect(self, endpoint: str) -> None:
        """Connects to one of the target's nodes."""
        self._sub.connect(endpoint)
        if self.role is Role.STORE and self._dialect is Dialect.LIBDAFKA:
            # The subscription with its address introduces it, as STORE-HELLO would.
            for address in self._message_checks.addresses:
                self._message_checks.note_sent(self.role, Message("STORE-HELLO", address, {"address": self.address}))

    def close(self) -> None:
        """Is gone, without a word."""
        self._scope.cancel()

    def is_subscribed(self, name: str, topic: bytes) -> bool:
        """Would a message with this topic reach the target?"""
        frame = self._grammar.formats.id_of(name) + topic
        return any(count > 0 and frame.startswith(prefix) for prefix, count in self.subscriptions.items())

    def add_records(self, count: int, partition: Partition | None = None) -> Partition:
        """Has the first `count` records of its own partition, or of another one's, without having said them."""
        held = partition or self.partition
        for sequence in range(held.head + 1, count):
            held.add(sequence, record_content(held.address, sequence))
        if held is not self.partition:
            self.holds[held.address] = held
        return held

    def send(self, name: str, topic: bytes, values: Mapping[str, Value]) -> None:
        """Says a message, and takes note of what it means for the target."""
        self._note(message := Message(name, topic, values))
        frames = self._grammar.formats.encode(message, self._dialect)
        self._trace.add_message(self.label, self._target_label, message, frames)
        self._message_checks.note_sent(self.role, message)
        self._pub.send_many([frames])

    def send_frames(self, frames: Sequence[bytes], label: str, fault: str = "") -> None:
        """Says what is no proper message."""
        place = self._trace.add_frames(self.label, self._target_label, label, frames)
        if fault:
            self._trace.events[place].fields = (("deliberately", fault),)
        self._pub.send_many([frames])

    async def send_records(
        self, sequences: Iterable[int], *, partition: Partition | None = None, requestor: bytes = b""
    ) -> None:
        """Says many RECORDs of its own, or (with a requestor) DIRECT-RECORDs of any partition, in batches.

        Contents that the partition does not have yet are made.
        """
        partition = partition or self.partition
        name, topic = ("DIRECT-RECORD", requestor) if requestor else ("RECORD", partition.topic)
        formats, known = self._grammar.formats, self._known_records.partition(partition.address, partition.topic)
        batch: list[list[bytes]] = []
        message = None
        for sequence in sequences:
            if sequence not in partition.contents:
                partition.add(sequence, record_content(partition.address, sequence))
            content = partition.contents[sequence]
            message = Message(
                name,
                topic,
                {"address": partition.address, "subject": partition.topic, "sequence": sequence, "content": content},
            )
            frames = formats.encode(message, self._dialect)
            known.add(sequence, content)
            self._trace.add_message(self.label, self._target_label, message, frames)
            batch.append(frames)
            if len(batch) >= BATCH_COUNT:
                self._message_checks.note_sent(self.role, message)
                self._pub.send_many(batch)
                batch = []
                await trio.lowlevel.checkpoint()
        if message is not None:
            self._message_checks.note_sent(self.role, message)
            self._pub.send_many(batch)
        await trio.lowlevel.checkpoint()

    def start_answer(self, message: Message) -> None:
        """As `answer`, beside whatever else happens, for as long as it has not left."""
        if self._nursery is not None:
            self._nursery.start_soon(self.answer_request, message)

    async def answer_request(self, message: Message) -> None:
        """Answers a FETCH or a GET-HEADS of the target with what it has, where it has anything."""
        held = {self.address: self.partition, **self.holds} if self.role is Role.PRODUCER else self.holds
        requestor = message.get_bytes("address")
        if message.name == "FETCH" and message.topic in held:
            partition, first = held[message.topic], message.get_number("sequence")
            if partition.topic == message["subject"]:
                end = first
                limit = first + message.get_number("count")
                while end < limit and end in partition.contents:
                    end += 1
                await self.send_records(range(first, end), partition=partition, requestor=requestor)
        elif message.name == "GET-HEADS":
            for partition in held.values():
                if partition.topic == message.topic and partition.head >= 0:
                    values: dict[str, Value] = {"address": partition.address, "subject": partition.topic}
                    self.send("DIRECT-HEAD", requestor, values | {"sequence": partition.head})

    def _note(self, message: Message) -> None:
        sequence = message.get_number("sequence")
        if message.name in {"RECORD", "DIRECT-RECORD"}:
            partition = self._known_records.partition(message.get_bytes("address"), message.get_bytes("subject"))
            partition.add(sequence, message.get_bytes("content"))
            if message["address"] == self.address:
                self.partition.add(sequence, message.get_bytes("content"))
        elif message.name == "FETCH":
            self._known_records.add_fetch(self.address, message.topic, sequence, message.get_number("count"))
        elif message.name in {"HEAD", "DIRECT-HEAD"}:
            self._known_records.partition(message.get_bytes("address"), message.get_bytes("subject"))

    async def _take_subscriptions(self) -> None:
        while True:
            for frames in await self._pub.receive_many():
                kind, prefix = frames[0][:1], frames[0][1:]
                self.subscriptions[prefix] += 1 if kind == b"\1" else -1
                label = "subscribe" if kind == b"\1" else "unsubscribe"
                self._trace.add_event(
                    Kind.SUBSCRIPTION,
                    self._target_label,
                    self.label,
                    label,
                    prefix=prefix[:1],
                    topic=prefix[1:],
                )
            self._changed()

    async def _drain(self) -> None:
        """What is said to it, the suite hears elsewhere: it only must not pile up."""
        while True:
            await self._sub.receive_many()

    async def _beat(self) -> None:
        while True:
            await trio.sleep(HEAD_INTERVAL_S)
            if self.sends_heads and self.partition.contents:
                about: dict[str, Value] = {"address": self.address, "subject": self.topic}
                self.send("HEAD", self.topic, about | {"sequence": max(self.partition.contents)})

    async def _take_handshakes(self) -> None:
        await track_handshakes(self._monitor, self.connected, self._changed)
