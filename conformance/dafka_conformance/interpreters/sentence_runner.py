"""Runs the grammar's sentences as scenarios: the target must send its terminals, and the suite sends the others."""

from __future__ import annotations

from itertools import count

from dafka_conformance.grammar import Message, NamedSentence, Value
from dafka_conformance.interpreters.sentence_parts import SentencePart, SentenceStep, assign_parts
from dafka_conformance.model import Dialect, Role
from dafka_conformance.scenario import Scenario
from dafka_conformance.targets.base import Ability
from dafka_conformance.testbed.known_records import Partition, record_content
from dafka_conformance.testbed.scripted_peer import ScriptedPeer
from dafka_conformance.testbed.testbed import Testbed

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
    """Return the clause that demands this message from this role."""
    return f"direct-head.{role.title}" if message == "DIRECT-HEAD" else _CLAUSES.get(message, f"grammar.{message}")


def sentence_scenarios(sentences: list[NamedSentence]) -> list[Scenario]:
    """Return a scenario for every sentence and every role that takes part in it."""
    return [
        _scenario(part)
        for role in (Role.STORE, Role.CONSUMER, Role.PRODUCER)
        for sentence in sentences
        for part in assign_parts(sentence, role)
    ]


def _scenario(part: SentencePart) -> Scenario:
    spoken = {step.message for step in part.steps if step.is_target}
    # A consumer requests heads once, when it starts.
    starts_target = "GET-HEADS" in spoken
    return Scenario(
        part.name,
        f"A {part.role.title} takes its part in the sentence {part.sentence}",
        part.role,
        ("grammar.traffic", *sorted(clause_of(name, part.role) for name in spoken)),
        lambda testbed: _SentenceRunner(testbed, part).run(),
        needs=_NEEDS[part.role] | ({Ability.START} if starts_target else set()),
        shares_target=not starts_target,
        starts_target=starts_target,
        script=tuple(
            f"then {part.role.value}:{step.message}" if step.is_target else f"when {step.sender}:{step.message}"
            for step in part.steps
        ),
    )


class _SentenceRunner:
    """Runs one sentence on a testbed."""

    def __init__(self, testbed: Testbed, part: SentencePart) -> None:
        self._testbed = testbed
        self._part = part
        self._role = part.role
        # A store keeps its records, so each sentence uses a new topic.
        self._topic = b"%b.%d" % (testbed.topic, next(_topic_numbers)) if part.role is Role.STORE else testbed.topic
        self._partitions: list[Partition] = []
        self._first = 0
        self._fetch: Message | None = None
        self._since = 0

    async def run(self) -> None:
        """Run the sentence. Raise `UnmetError` if the target does not send one of its messages."""
        if self._testbed.node is None:
            await self._testbed.start()
        for index in range(self._part.partition_count):
            await self._prepare(index, self._part.of_partition(index))
        for step in self._part.steps:
            if not step.is_target and step.sender not in self._testbed.peers:
                await self._testbed.add_peer(step.sender, self._topic)
        self._since = 0 if self._role is Role.CONSUMER else len(self._testbed.received)
        for step in self._part.steps:
            if step.is_target:
                await self._expect_target(step, self._partitions[step.partition])
            else:
                await self._send(step, self._testbed.peers[step.sender], self._partitions[step.partition])
        if self._role is Role.CONSUMER:
            await self._check_delivery()

    # Preconditions

    async def _prepare(self, index: int, steps: list[SentenceStep]) -> None:
        """Create the state that the partition's first message requires: its records are available for fetching."""
        missing = max(step.missing for step in steps)
        first = steps[0].message
        speaks = {step.message for step in steps if step.is_target}
        if self._role is Role.PRODUCER and speaks:
            await self._feed(missing if first in {"RECORD", "HEAD"} else max(missing, 1))
            return
        producer = await self._testbed.add_peer(f"P{index + 1}", self._topic)
        producer.add_records(max(missing + (first == "RECORD"), 1))
        self._partitions.append(producer.partition)
        if self._role is Role.CONSUMER and first == "DIRECT-HEAD" and missing == 0:
            await self._testbed.publish(producer, 0, 0)
            await self._deliver(producer.partition, 1)
        elif self._role is Role.STORE and speaks & {"DIRECT-HEAD", "DIRECT-RECORD"}:
            last = max(missing, 1) - 1
            await self._testbed.publish(producer, 0, last)
            await self._testbed.expect("ACK", "ack.sent", lambda message: _acks(message, producer.partition, last))

    async def _feed(self, number: int) -> None:
        """Make the target publish this many records, and acknowledge none."""
        testbed = self._testbed
        if not testbed.peers:
            await testbed.add_peer("S2", self._topic)
        published = testbed.message_checks.published_count(testbed.address)
        if number:
            await testbed.feed([record_content(testbed.address, published + index) for index in range(number)])
            last = published + number - 1
            await testbed.expect("RECORD", "record.command", lambda message: message["sequence"] == last)
        self._partitions.append(testbed.known_records.partition(testbed.address, self._topic))

    # The suite's steps. Messages between the suite's own nodes do not reach the target.

    async def _send(self, step: SentenceStep, peer: ScriptedPeer, partition: Partition) -> None:
        testbed, name = self._testbed, step.message
        about: dict[str, Value] = {"address": partition.address, "subject": partition.topic}
        if name == "RECORD":
            await testbed.publish(peer, step.missing, step.missing)
        elif name == "HEAD":
            await testbed.send(peer, name, partition.topic, **about, sequence=max(step.missing, 1) - 1)
        elif name == "DIRECT-HEAD" and self._role is Role.CONSUMER:
            await testbed.send(peer, name, testbed.address, **about, sequence=max(step.missing, 1) - 1)
        elif name == "FETCH" and step.is_for_target:
            await self._send_fetch(step, peer, partition)
        elif name == "DIRECT-RECORD" and self._fetch is not None:
            await self._send_direct_record(step, peer, partition)
        elif name == "ACK" and self._role is Role.PRODUCER:
            sender: dict[str, Value] = {"address": peer.address} if testbed.dialect is Dialect.RFC46 else {}
            is_last = step is self._part.steps[-1]
            head = testbed.known_records.partition(partition.address, partition.topic).head
            sequence = head if is_last else self._first + step.answer_count - 1
            await testbed.send(peer, name, partition.address, **sender, subject=partition.topic, sequence=sequence)
        elif name == "GET-HEADS":
            await testbed.send(peer, name, self._topic, address=peer.address)
        elif name == "CONSUMER-HELLO" and self._role is Role.STORE:
            # If the store consists of several nodes, the hello comes from the one that answers.
            hello = await testbed.expect(
                "STORE-HELLO", "store-hello.sent", lambda message: message.topic == peer.address
            )
            store = hello.message.get_bytes("address")
            await testbed.send(peer, name, store, address=peer.address, subjects=(self._topic,))
        elif name == "STORE-HELLO" and self._role is Role.CONSUMER:
            await testbed.send(peer, name, testbed.address, address=peer.address)

    async def _send_fetch(self, step: SentenceStep, peer: ScriptedPeer, partition: Partition) -> None:
        head = self._testbed.known_records.partition(partition.address, partition.topic).head
        first = head - step.missing + 1 if self._role is Role.PRODUCER else 0
        self._first = first
        await self._testbed.send(
            peer,
            "FETCH",
            partition.address,
            address=peer.address,
            subject=partition.topic,
            sequence=first,
            count=step.missing,
        )

    async def _send_direct_record(self, step: SentenceStep, peer: ScriptedPeer, partition: Partition) -> None:
        assert self._fetch is not None
        if not _fetches(self._fetch, partition, step.answer_count):
            again = await self._testbed.expect(
                "FETCH",
                "fetch.pages",
                lambda message: _fetches(message, partition, step.answer_count),
                what=f"FETCH of {step.answer_count}",
            )
            self._fetch = again.message
        requestor = self._fetch.get_bytes("address")
        await self._testbed.wait_subscribed(peer, "DIRECT-RECORD", requestor)
        await peer.send_records([step.answer_count], partition=partition, requestor=requestor)

    # The target's messages

    async def _expect_target(self, step: SentenceStep, partition: Partition) -> None:
        testbed, name = self._testbed, step.message
        clause = clause_of(name, self._role)
        if name in {"RECORD", "HEAD"}:
            await self._expect_published(name, clause)
        elif name == "FETCH":
            received = await testbed.expect(
                name, clause, lambda message: _fetches(message, partition, 0), what="FETCH from 0 on"
            )
            self._fetch = received.message
        elif name == "ACK":
            last = step.answer_count - 1 if step.answer_count else step.missing
            await testbed.expect(name, clause, lambda message: _acks(message, partition, last), what=f"ACK of {last}")
        elif name == "DIRECT-HEAD":
            await self._expect_head(clause, partition)
        elif name == "DIRECT-RECORD":
            sequence = self._first + step.answer_count
            await testbed.expect(
                name,
                clause,
                lambda message: message["address"] == partition.address and message["sequence"] == sequence,
                since=self._since,
                what=f"DIRECT-RECORD {sequence}",
            )
        elif name == "GET-HEADS":
            await testbed.expect(name, clause, lambda message: message.topic == self._topic)
        elif name == "CONSUMER-HELLO":
            store = testbed.peers["S2"].address
            await testbed.expect(name, clause, lambda message: message.topic == store and self._names_topic(message))
        elif name == "STORE-HELLO":
            consumer = testbed.peers["C"].address
            await testbed.expect(name, clause, lambda message: message.topic == consumer)
        else:
            await testbed.expect(name, clause, since=self._since)

    def _names_topic(self, message: Message) -> bool:
        subjects = message["subjects"]
        return isinstance(subjects, tuple) and self._topic in subjects

    async def _expect_published(self, name: str, clause: str) -> None:
        testbed, address = self._testbed, self._testbed.address
        published = testbed.message_checks.published_count(address)
        if name == "RECORD" or not published:
            await testbed.feed([record_content(address, published)])
            await testbed.expect("RECORD", "record.command", lambda message: message["sequence"] == published)
        if name == "HEAD":
            await testbed.expect(name, clause, lambda message: message["address"] == address, since=self._since)

    async def _expect_head(self, clause: str, partition: Partition) -> None:
        testbed = self._testbed
        if "C" not in testbed.peers:
            await testbed.add_peer("C", self._topic)
        consumer = testbed.peers["C"]
        requests = {"GET-HEADS", "CONSUMER-HELLO"} if self._role is Role.STORE else {"GET-HEADS"}
        if not requests & {step.message for step in self._part.steps}:
            # The rule allows an unrequested DIRECT-HEAD, but no clause demands it: request it.
            await testbed.send(consumer, "GET-HEADS", self._topic, address=consumer.address)
        head = testbed.known_records.partition(partition.address, partition.topic).head
        await testbed.expect(
            "DIRECT-HEAD",
            clause,
            lambda message: (
                (message.topic, message["address"], message["sequence"]) == (consumer.address, partition.address, head)
            ),
            what=f"DIRECT-HEAD of {head}",
        )

    # Postconditions

    async def _check_delivery(self) -> None:
        """Check that every missing record, and the one that revealed the gap, is delivered."""
        for index, partition in enumerate(self._partitions):
            steps = self._part.of_partition(index)
            if any(step.message == "FETCH" for step in steps):
                producer = self._testbed.peers[f"P{index + 1}"]
                producer.answers_requests = producer.sends_heads = True  # a consumer may have dropped a later record
                await self._deliver(partition, steps[0].missing + (steps[0].message == "RECORD"))

    async def _deliver(self, partition: Partition, number: int) -> None:
        await self._testbed.expect_delivered([partition.contents[sequence] for sequence in range(number)])


def _acks(message: Message, partition: Partition, sequence: int) -> bool:
    return message.topic == partition.address and message.get_number("sequence") >= sequence


def _fetches(message: Message, partition: Partition, sequence: int) -> bool:
    first = message.get_number("sequence")
    is_of_partition = message.topic == partition.address and message["subject"] == partition.topic
    return is_of_partition and first <= sequence < first + message.get_number("count")
