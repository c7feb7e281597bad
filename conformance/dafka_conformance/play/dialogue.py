"""The grammar's sentences, played: the target must say its terminals, and the suite says the others'."""

from __future__ import annotations

from itertools import count

from dafka_conformance.grammar import Message, NamedSentence, Value
from dafka_conformance.model import Dialect, Role
from dafka_conformance.play.casting import Cast, Line, cast
from dafka_conformance.play.scenario import Scenario
from dafka_conformance.stage.ledger import Partition, content_of
from dafka_conformance.stage.peer import Peer
from dafka_conformance.stage.stage import Stage
from dafka_conformance.targets.base import Ability

_CLAUSES = {
    "STORE-HELLO": "store-hello.sent",
    "CONSUMER-HELLO": "consumer-hello.sent",
    "GET-HEADS": "get-heads.sent",
    "FETCH": "fetch.sent",
    "ACK": "ack.sent",
    "RECORD": "record.command",
    "HEAD": "head.interval",
    "DIRECT-RECORD": "direct-record.sent",
}

_NEEDS = {
    Role.PRODUCER: frozenset({Ability.FEED}),
    Role.CONSUMER: frozenset({Ability.COLLECT}),
    Role.STORE: frozenset[Ability](),
}

_topic_numbers = count(1)


def clause_of(message: str, role: Role) -> str:
    """The clause that says that a node of this role sends this message."""
    return f"direct-head.{role.title}" if message == "DIRECT-HEAD" else _CLAUSES.get(message, f"grammar.{message}")


def scenarios(sentences: list[NamedSentence]) -> list[Scenario]:
    """Every sentence for every role that can take part in it."""
    return [
        _scenario(part)
        for role in (Role.STORE, Role.CONSUMER, Role.PRODUCER)
        for sentence in sentences
        for part in cast(sentence, role)
    ]


def _scenario(part: Cast) -> Scenario:
    spoken = {line.message for line in part.lines if line.is_target}
    # Who asks for heads does so once, when it begins.
    starts = "GET-HEADS" in spoken
    return Scenario(
        part.name,
        f"A {part.role.title} takes its part in: {part.sentence}",
        part.role,
        ("grammar.traffic", *sorted(clause_of(name, part.role) for name in spoken)),
        lambda stage: _Playing(stage, part).play(),
        needs=_NEEDS[part.role] | ({Ability.START} if starts else set()),
        shares=not starts,
        starts=starts,
        script=tuple(
            f"then {part.role.value}:{line.message}" if line.is_target else f"when {line.speaker}:{line.message}"
            for line in part.lines
        ),
    )


class _Playing:
    """A cast sentence on a stage."""

    def __init__(self, stage: Stage, part: Cast) -> None:
        self._stage = stage
        self._part = part
        self._role = part.role
        # A store keeps what it was given: each sentence has a topic of its own, where the target's can be chosen.
        self._topic = b"%b.%d" % (stage.topic, next(_topic_numbers)) if part.role is Role.STORE else stage.topic
        self._partitions: list[Partition] = []
        self._first = 0
        self._fetch: Message | None = None
        self._since = 0

    async def play(self) -> None:
        """Raises `UnmetError` where the target does not say its part."""
        if self._stage.node is None:
            await self._stage.start()
        for index in range(self._part.partition_count):
            await self._prepare(index, self._part.of_partition(index))
        for line in self._part.lines:
            if not line.is_target and line.speaker not in self._stage.peers:
                await self._stage.join(line.speaker, self._topic)
        self._since = 0 if self._role is Role.CONSUMER else len(self._stage.heard)
        for line in self._part.lines:
            if line.is_target:
                await self._hear(line, self._partitions[line.partition])
            else:
                await self._say(line, self._stage.peers[line.speaker], self._partitions[line.partition])
        if self._role is Role.CONSUMER:
            await self._hand_on()

    # What must be so before the sentence begins

    async def _prepare(self, index: int, lines: list[Line]) -> None:
        """The partition is as its first line supposes: its records are where they are to be fetched from."""
        missing = max(line.missing for line in lines)
        first = lines[0].message
        speaks = {line.message for line in lines if line.is_target}
        if self._role is Role.PRODUCER and speaks:
            await self._feed(missing if first in {"RECORD", "HEAD"} else max(missing, 1))
            return
        producer = await self._stage.join(f"P{index + 1}", self._topic)
        producer.hold(max(missing + (first == "RECORD"), 1))
        self._partitions.append(producer.partition)
        if self._role is Role.CONSUMER and first == "DIRECT-HEAD" and missing == 0:
            await self._stage.publish(producer, 0, 0)
            await self._deliver(producer.partition, 1)
        elif self._role is Role.STORE and speaks & {"DIRECT-HEAD", "DIRECT-RECORD"}:
            last = max(missing, 1) - 1
            await self._stage.publish(producer, 0, last)
            await self._stage.expect("ACK", "ack.sent", lambda message: _acks(message, producer.partition, last))

    async def _feed(self, number: int) -> None:
        """The target has published this many records that nobody acknowledged."""
        stage = self._stage
        if not stage.peers:
            await stage.join("S2", self._topic)
        published = stage.watch.published(stage.address)
        if number:
            await stage.feed([content_of(stage.address, published + index) for index in range(number)])
            last = published + number - 1
            await stage.expect("RECORD", "record.command", lambda message: message["sequence"] == last)
        self._partitions.append(stage.ledger.partition(stage.address, self._topic))

    # The suite's lines. What its own nodes say to each other, the target does not hear.

    async def _say(self, line: Line, peer: Peer, partition: Partition) -> None:
        stage, name = self._stage, line.message
        about: dict[str, Value] = {"address": partition.address, "subject": partition.topic}
        if name == "RECORD":
            await stage.publish(peer, line.missing, line.missing)
        elif name == "HEAD":
            await stage.say(peer, name, partition.topic, **about, sequence=max(line.missing, 1) - 1)
        elif name == "DIRECT-HEAD" and self._role is Role.CONSUMER:
            await stage.say(peer, name, stage.address, **about, sequence=max(line.missing, 1) - 1)
        elif name == "FETCH" and line.is_for_target:
            await self._say_fetch(line, peer, partition)
        elif name == "DIRECT-RECORD" and self._fetch is not None:
            await self._say_direct_record(line, peer, partition)
        elif name == "ACK" and self._role is Role.PRODUCER:
            sender: dict[str, Value] = {"address": peer.address} if stage.dialect is Dialect.RFC46 else {}
            is_last = line is self._part.lines[-1]
            head = stage.ledger.partition(partition.address, partition.topic).head
            sequence = head if is_last else self._first + line.turn - 1
            await stage.say(peer, name, partition.address, **sender, subject=partition.topic, sequence=sequence)
        elif name == "GET-HEADS":
            await stage.say(peer, name, self._topic, address=peer.address)
        elif name == "CONSUMER-HELLO" and self._role is Role.STORE:
            # A store that is several nodes greets from the one that answers.
            hello = await stage.expect("STORE-HELLO", "store-hello.sent", lambda message: message.topic == peer.address)
            store = hello.message.octets("address")
            await stage.say(peer, name, store, address=peer.address, subjects=(self._topic,))
        elif name == "STORE-HELLO" and self._role is Role.CONSUMER:
            await stage.say(peer, name, stage.address, address=peer.address)

    async def _say_fetch(self, line: Line, peer: Peer, partition: Partition) -> None:
        head = self._stage.ledger.partition(partition.address, partition.topic).head
        first = head - line.missing + 1 if self._role is Role.PRODUCER else 0
        self._first = first
        await self._stage.say(
            peer,
            "FETCH",
            partition.address,
            address=peer.address,
            subject=partition.topic,
            sequence=first,
            count=line.missing,
        )

    async def _say_direct_record(self, line: Line, peer: Peer, partition: Partition) -> None:
        assert self._fetch is not None
        if not _fetches(self._fetch, partition, line.turn):
            again = await self._stage.expect(
                "FETCH",
                "fetch.pages",
                lambda message: _fetches(message, partition, line.turn),
                what=f"FETCH of {line.turn}",
            )
            self._fetch = again.message
        requestor = self._fetch.octets("address")
        await self._stage.reach(peer, "DIRECT-RECORD", requestor)
        await peer.say_records([line.turn], partition=partition, requestor=requestor)

    # The target's lines

    async def _hear(self, line: Line, partition: Partition) -> None:
        stage, name = self._stage, line.message
        clause = clause_of(name, self._role)
        if name in {"RECORD", "HEAD"}:
            await self._hear_published(name, clause)
        elif name == "FETCH":
            heard = await stage.expect(
                name, clause, lambda message: _fetches(message, partition, 0), what="FETCH from 0 on"
            )
            self._fetch = heard.message
        elif name == "ACK":
            last = line.turn - 1 if line.turn else line.missing
            await stage.expect(name, clause, lambda message: _acks(message, partition, last), what=f"ACK of {last}")
        elif name == "DIRECT-HEAD":
            await self._hear_head(clause, partition)
        elif name == "DIRECT-RECORD":
            sequence = self._first + line.turn
            await stage.expect(
                name,
                clause,
                lambda message: message["address"] == partition.address and message["sequence"] == sequence,
                since=self._since,
                what=f"DIRECT-RECORD {sequence}",
            )
        elif name == "GET-HEADS":
            await stage.expect(name, clause, lambda message: message.topic == self._topic)
        elif name == "CONSUMER-HELLO":
            store = stage.peers["S2"].address
            await stage.expect(name, clause, lambda message: message.topic == store and self._is_told(message))
        elif name == "STORE-HELLO":
            consumer = stage.peers["C"].address
            await stage.expect(name, clause, lambda message: message.topic == consumer)
        else:
            await stage.expect(name, clause, since=self._since)

    def _is_told(self, message: Message) -> bool:
        subjects = message["subjects"]
        return isinstance(subjects, tuple) and self._topic in subjects

    async def _hear_published(self, name: str, clause: str) -> None:
        stage, address = self._stage, self._stage.address
        published = stage.watch.published(address)
        if name == "RECORD" or not published:
            await stage.feed([content_of(address, published)])
            await stage.expect("RECORD", "record.command", lambda message: message["sequence"] == published)
        if name == "HEAD":
            await stage.expect(name, clause, lambda message: message["address"] == address, since=self._since)

    async def _hear_head(self, clause: str, partition: Partition) -> None:
        stage = self._stage
        if "C" not in stage.peers:
            await stage.join("C", self._topic)
        consumer = stage.peers["C"]
        requests = {"GET-HEADS", "CONSUMER-HELLO"} if self._role is Role.STORE else {"GET-HEADS"}
        if not requests & {line.message for line in self._part.lines}:
            # The rule lets a DIRECT-HEAD come unasked, which nobody is obliged to send: it is asked for.
            await stage.say(consumer, "GET-HEADS", self._topic, address=consumer.address)
        head = stage.ledger.partition(partition.address, partition.topic).head
        await stage.expect(
            "DIRECT-HEAD",
            clause,
            lambda message: (
                (message.topic, message["address"], message["sequence"]) == (consumer.address, partition.address, head)
            ),
            what=f"DIRECT-HEAD of {head}",
        )

    # What must be so at the end

    async def _hand_on(self) -> None:
        """Every record that was missing, and the one that made it miss them, has been handed on."""
        for index, partition in enumerate(self._partitions):
            lines = self._part.of_partition(index)
            if any(line.message == "FETCH" for line in lines):
                self._stage.peers[f"P{index + 1}"].answers = True
                await self._deliver(partition, lines[0].missing + (lines[0].message == "RECORD"))

    async def _deliver(self, partition: Partition, number: int) -> None:
        await self._stage.expect_delivered([partition.contents[sequence] for sequence in range(number)])


def _acks(message: Message, partition: Partition, sequence: int) -> bool:
    return message.topic == partition.address and message.number("sequence") >= sequence


def _fetches(message: Message, partition: Partition, sequence: int) -> bool:
    first = message.number("sequence")
    is_of_partition = message.topic == partition.address and message["subject"] == partition.topic
    return is_of_partition and first <= sequence < first + message.number("count")
