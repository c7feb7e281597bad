"""A scripted peer: a node of the suite that sends what the scenario says and records the target's subscriptions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import trio

from dafka_conformance.grammar import Grammar, Message, Value
from dafka_conformance.grammar.positions import POSITION_COMMANDS, position_formats
from dafka_conformance.grammar.record_batches import (
    BATCH_OF,
    BatchRecord,
    batch_formats,
    read_content,
    write_batch,
    write_content,
)
from dafka_conformance.model import Dialect, Kind, Role
from dafka_conformance.testbed.known_records import KnownRecords, Partition, record_content
from dafka_conformance.testbed.message_checks import MessageChecks
from dafka_conformance.testbed.network import Loopback, Sockets, new_address, track_handshakes
from dafka_conformance.testbed.trace import Trace

BATCH_COUNT = 2000
"""The number of records that are sent between two checkpoints."""

HEAD_INTERVAL_S = 1.0
"""The interval of a scripted producer's HEADs."""


class ScriptedPeer:
    """A scripted peer.

    Attributes:
        label: Its name in scenarios and reports, such as "P" or "C2".
        role: Its role.
        address: Its address: 32 upper-case hexadecimal digits.
        endpoint: The endpoint that others connect to.
        topic: The topic that it publishes or consumes.
        subscriptions: The number of the target's subscriptions to each prefix at this peer, minus unsubscriptions.
        partition: The records of a producer.
        stored_partitions: The partitions that it answers for in addition to its own, as a store does.
        answers_requests: Whether it answers FETCHes and GET-HEADS by itself.
        answers_in_batches: Whether it answers FETCHes with a batch of all records that it has of the partition.
        sends_heads: Whether it sends HEADs at an interval, as a producer with records does.
        connected: The endpoints that it is connected to.

    Args:
        label: Its name.
        role: Its role.
        topic: Its topic.
        loopback: Gives its endpoint.
        grammar: The grammar.
        dialect: The dialect that it sends.
        trace: The trace that its messages are added to.
        message_checks: The checks, which it reports its messages to.
        known_records: The records that it adds its own to.
        changed: Called when the target subscribes or connects.
        target_label: The target's label in the trace.
        returning: The closed peer that it is: it gets that peer's address, endpoint and records.
    """

    def __init__(
        self,
        label: str,
        role: Role,
        topic: bytes,
        *,
        loopback: Loopback,
        grammar: Grammar,
        dialect: Dialect,
        trace: Trace,
        message_checks: MessageChecks,
        known_records: KnownRecords,
        changed: Callable[[], None],
        target_label: str,
        returning: ScriptedPeer | None = None,
    ) -> None:
        self.label = label
        self.role = role
        self.topic = topic
        self.address: bytes = returning.address if returning else new_address()
        self.subscriptions: Counter[bytes] = Counter()
        self.partition: Partition = returning.partition if returning else Partition(self.address, topic)
        self.stored_partitions: dict[bytes, Partition] = {}
        self.answers_requests = False
        self.answers_in_batches = False
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
        self._sub = self._sockets.target_subscriber()
        self._monitor = self._sockets.monitor(self._sub)
        self._scope = trio.CancelScope()
        self._nursery: trio.Nursery | None = None
        self._asked: dict[bytes, list[Message]] = {}
        self.endpoint: str = self._pub.bind(returning.endpoint) if returning else loopback.bind(self._pub)
        for prefix in self.own_subscriptions():
            self._sub.subscribe(prefix)

    def own_subscriptions(self) -> list[bytes]:
        """Return the subscriptions of a node of this role (RFC 46, "ZeroMQ Subscriptions")."""
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
                # The RFC has only the id; the C store adds its address, which introduces it to consumers.
                ("CONSUMER-HELLO", b"" if self._dialect is Dialect.RFC46 else self.address),
            ],
            Role.TOWER: [],
        }
        return [self._grammar.formats.id_of(name) + topic for name, topic in own[self.role]]

    async def run(self) -> None:
        """Send and receive until `close` or cancelled, then close the sockets."""
        with self._sockets, self._scope:
            async with trio.open_nursery() as self._nursery:
                nursery = self._nursery
                nursery.start_soon(self._receive_subscriptions)
                nursery.start_soon(self._drain)
                nursery.start_soon(self._receive_handshakes)
                nursery.start_soon(self._send_heads)

    def connect(self, endpoint: str) -> None:
        """Connect to a node of the target."""
        self._sub.connect(endpoint)
        if self.role is Role.STORE and self._dialect is Dialect.LIBDAFKA:
            # In libdafka, this subscription introduces the store, as STORE-HELLO does in the RFC.
            for address in self._message_checks.addresses:
                self._message_checks.record_sent(self.role, Message("STORE-HELLO", address, {"address": self.address}))

    def disconnect(self, endpoint: str) -> None:
        """Disconnect from a node of the target that has ended: its endpoint may soon be another node's."""
        self._sub.disconnect(endpoint)
        self.connected.discard(endpoint)

    def close(self) -> None:
        """Close the sockets without notice."""
        self._scope.cancel()

    def is_subscribed(self, name: str, topic: bytes) -> bool:
        """Return whether the target is subscribed at this peer to a message with this topic."""
        frame = self._grammar.formats.id_of(name) + topic
        return any(count > 0 and frame.startswith(prefix) for prefix, count in self.subscriptions.items())

    def subscribed_topics(self, name: str) -> set[bytes]:
        """Return the topics of the target's subscriptions at this peer to a message, of RFC 46 or with batches."""
        formats = batch_formats() if name in BATCH_OF.values() else self._grammar.formats
        formats = position_formats() if name in POSITION_COMMANDS else formats
        return {
            prefix[1:]
            for prefix, count in self.subscriptions.items()
            if count > 0 and prefix[:1] == formats.id_of(name)
        }

    def add_records(self, count: int, partition: Partition | None = None) -> Partition:
        """Add the records 0 to `count` - 1 of its own partition, or of another one, without sending them."""
        held = partition or self.partition
        for sequence in range(held.head + 1, count):
            held.add(sequence, record_content(held.address, sequence))
        if held is not self.partition:
            self.stored_partitions[held.address] = held
        return held

    def send(self, name: str, topic: bytes, values: Mapping[str, Value]) -> None:
        """Send a message and add its content to what the target can know."""
        self._add_known(message := Message(name, topic, values))
        frames = self._grammar.formats.encode(message, self._dialect)
        self._trace.add_message(self.label, self._target_label, message, frames)
        self._message_checks.record_sent(self.role, message)
        self._pub.send_many([frames])

    def ask_position(self, store: bytes, partition: Partition, time_ms: int) -> None:
        """Send a GET-POSITION to a store."""
        values: dict[str, Value] = {"address": self.address, "partition": partition.address}
        message = Message("GET-POSITION", store, {**values, "subject": partition.topic, "time": time_ms})
        frames = position_formats().encode(message, self._dialect)
        self._trace.add_message(self.label, self._target_label, message, frames)
        self._pub.send_many([frames])

    def send_frames(self, frames: Sequence[bytes], label: str, fault: str = "") -> None:
        """Send frames that are not a valid message."""
        self._message_checks.record_malformed()
        index = self._trace.add_frames(self.label, self._target_label, label, frames)
        if fault:
            self._trace.events[index].fields = (("deliberately", fault),)
        self._pub.send_many([frames])

    async def send_records(
        self, sequences: Iterable[int], *, partition: Partition | None = None, requestor: bytes = b""
    ) -> None:
        """Send RECORDs of its own partition, or DIRECT-RECORDs of any partition to a requestor.

        Args:
            sequences: The records to send. Missing ones are created.
            partition: Their partition; its own by default.
            requestor: The address that the DIRECT-RECORDs go to. Empty to send RECORDs.
        """
        partition = partition or self.partition
        name, topic = ("DIRECT-RECORD", requestor) if requestor else ("RECORD", partition.topic)
        formats = self._grammar.formats
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
            self._known_records.add_sent(partition.address, partition.topic, sequence, content)
            self._trace.add_message(self.label, self._target_label, message, frames)
            batch.append(frames)
            if len(batch) >= BATCH_COUNT:
                self._message_checks.record_sent(self.role, message)
                self._pub.send_many(batch)
                batch = []
                await trio.lowlevel.checkpoint()
        if message is not None:
            self._message_checks.record_sent(self.role, message)
            self._pub.send_many(batch)
        await trio.lowlevel.checkpoint()

    def send_batch(
        self,
        first: int,
        records: Sequence[BatchRecord],
        *,
        partition: Partition | None = None,
        requestor: bytes = b"",
        compression: int = 0,
    ) -> None:
        """Send records as a RECORD-BATCH of its own partition, or as a DIRECT-RECORD-BATCH to a requestor.

        Args:
            first: The sequence of the first record.
            records: The records. Sequences that already have a content keep that in what the target can know.
            partition: Their partition; its own by default.
            requestor: The address that the DIRECT-RECORD-BATCH goes to. Empty to send a RECORD-BATCH.
            compression: The number of the compression.
        """
        partition = partition or self.partition
        single = "DIRECT-RECORD" if requestor else "RECORD"
        name, topic = BATCH_OF[single], requestor or partition.topic
        header: dict[str, Value] = {"address": partition.address, "subject": partition.topic}
        for sequence, record in enumerate(records, first):
            content = write_content(record)
            partition.add(sequence, content)
            self._known_records.add_sent(partition.address, partition.topic, sequence, content)
            alike = Message(single, topic, {**header, "sequence": sequence, "content": content})
            self._message_checks.record_sent(self.role, alike)
        batch = write_batch(first, records, compression)
        message = Message(name, topic, {**header, "content": batch})
        frames = batch_formats().encode(message, Dialect.RFC46)
        shown = Message(name, topic, {**header, "sequence": first, "content": batch})
        self._trace.add_message(self.label, self._target_label, shown, frames)
        self._pub.send_many([frames])

    def send_batch_bytes(self, batch: bytes, fault: str) -> None:
        """Send bytes that are not a valid batch as a RECORD-BATCH of its own partition; `fault` describes them."""
        message = Message(
            BATCH_OF["RECORD"], self.topic, {"address": self.address, "subject": self.topic, "content": batch}
        )
        self.send_frames(batch_formats().encode(message, Dialect.RFC46), message.name, fault)

    def start_answer(self, message: Message) -> None:
        """Answer a request in the background, after those before it of the same node, unless the peer is closed.

        A request replaces a waiting one that it repeats: on a busy machine, a node may repeat its FETCH many times
        while the peer sends the records of the first one.
        """
        if self._nursery is None:
            return
        requestor = message.get_bytes("address")
        asked = self._asked.get(requestor)
        if asked is not None:
            asked[:] = [*(each for each in asked if not _repeats(message, each)), message]
        else:
            self._asked[requestor] = [message]
            self._nursery.start_soon(self._answer_requests, requestor)

    async def _answer_requests(self, requestor: bytes) -> None:
        asked = self._asked[requestor]
        while asked:
            await self.answer_request(asked.pop(0))
        del self._asked[requestor]

    async def answer_request(self, message: Message) -> None:
        """Answer the target's FETCH or GET-HEADS with the records or heads that the peer has."""
        own = {self.address: self.partition} if self.role is Role.PRODUCER else {}
        held = {**own, **self.stored_partitions}
        requestor = message.get_bytes("address")
        if message.name == "FETCH" and message.topic in held:
            partition, first = held[message.topic], message.get_number("sequence")
            if partition.topic == message["subject"] and self.answers_in_batches:
                records = [read_content(partition.contents[sequence]) for sequence in range(partition.head + 1)]
                self.send_batch(0, records, partition=partition, requestor=requestor)
            elif partition.topic == message["subject"]:
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

    def _add_known(self, message: Message) -> None:
        sequence = message.get_number("sequence")
        if message.name in {"RECORD", "DIRECT-RECORD"}:
            address, topic, content = map(message.get_bytes, ("address", "subject", "content"))
            self._known_records.add_sent(address, topic, sequence, content)
            if message["address"] == self.address:
                self.partition.add(sequence, content)
        elif message.name == "FETCH":
            self._known_records.add_fetch(self.address, message.topic, sequence, message.get_number("count"))
        elif message.name in {"HEAD", "DIRECT-HEAD"}:
            self._known_records.partition(message.get_bytes("address"), message.get_bytes("subject"))

    async def _receive_subscriptions(self) -> None:
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
        """Discard what arrives: the target's messages are read from the `TargetListener`."""
        while True:
            await self._sub.receive_many()

    async def _send_heads(self) -> None:
        while True:
            await trio.sleep(HEAD_INTERVAL_S)
            if self.sends_heads and self.partition.contents:
                about: dict[str, Value] = {"address": self.address, "subject": self.topic}
                self.send("HEAD", self.topic, about | {"sequence": max(self.partition.contents)})

    async def _receive_handshakes(self) -> None:
        await track_handshakes(self._monitor, self.connected, self._changed)


def _repeats(request: Message, earlier: Message) -> bool:
    """Return whether a request asks again for something that an earlier one of the same node asked for."""
    if (request.name, request.topic, request.values.get("subject")) != (
        earlier.name,
        earlier.topic,
        earlier.values.get("subject"),
    ):
        return False
    first, before = request.get_number("sequence"), earlier.get_number("sequence")
    is_apart = first >= before + earlier.get_number("count") or before >= first + request.get_number("count")
    return request.name != "FETCH" or not is_apart
