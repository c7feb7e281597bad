"""What other brokers tell in the messages that a broker's store receives, as effects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import attrs

from dafka import wire
from dafka.broker.core.metadata.brokers import BROKERS_TOPIC
from dafka.broker.core.metadata.cluster_state import METADATA_TOPIC
from dafka.broker.core.partition_address import INDEX_TOPIC
from dafka.broker.core.rounds import (
    CHECKS_TOPIC,
    ROUNDS_TOPIC,
    SEPARATOR,
    CheckAnswer,
    Round,
    RoundReply,
    read_check,
    read_round,
)
from dafka.protocol.actions import Effect
from dafka.protocol.presence.identity import owner_of
from dafka.records import Partition


@attrs.frozen
class HeartbeatsReceived(Effect):
    """Brokers have sent heartbeats, or records, which count as heartbeats."""

    brokers: frozenset[str]


@attrs.frozen
class IndexesAcknowledged(Effect):
    """Other replicas have acknowledged index records of this broker.

    `ends` has the sequence after the last acknowledged record, by partition of an index and by broker.
    """

    ends: Mapping[tuple[Partition, str], int]


@attrs.frozen
class IndexesAnnounced(Effect):
    """Leaders have announced partitions of indexes, as they can have missed the acknowledgements of this broker."""

    partitions: frozenset[Partition]


@attrs.frozen
class RoundsReceived(Effect):
    """Messages of lease rounds have arrived, each with the address of its sender.

    Several brokers have the same address if the disk of one of them was cloned.
    """

    asked: Sequence[tuple[str, Round]]
    answers: Sequence[tuple[str, RoundReply]]


@attrs.frozen
class StoreChecked(Effect):
    """Other brokers tell what they remember of the store of this one.

    Attributes:
        met: Brokers that are heard, and have not checked the store. The machine is held.
        answers: The answers of brokers that check it, each with the address of its sender.
        ends: How far others have partitions that this broker has written.
    """

    met: frozenset[str]
    answers: Sequence[tuple[str, CheckAnswer]]
    ends: Mapping[Partition, int]


@attrs.frozen
class HighWatermarksAnnounced(Effect):
    """Leaders have announced the high watermarks of logs that others observe, by the partition of their index."""

    offsets: Mapping[Partition, int]


@attrs.frozen
class MessagesReceived(Effect):
    """Other brokers have sent messages, each with the address of its sender; see `BrokerMessenger`."""

    messages: Sequence[tuple[str, bytes]]


@attrs.define
class BrokerNews:
    """The news in the messages of one call of `BrokerMachine.receive`, for the broker with an address."""

    _address: str
    met: set[str] = attrs.field(factory=set)
    heartbeats: set[str] = attrs.field(factory=set)
    acknowledgements: dict[tuple[Partition, str], int] = attrs.field(factory=dict)
    announced: set[Partition] = attrs.field(factory=set)
    rounds: dict[tuple[str, str], Round] = attrs.field(factory=dict)  # by broker and start
    answers: dict[str, RoundReply] = attrs.field(factory=dict)
    checks: list[tuple[str, CheckAnswer]] = attrs.field(factory=list)
    ends: dict[Partition, int] = attrs.field(factory=dict)
    high_watermarks: dict[Partition, int] = attrs.field(factory=dict)
    messages: list[tuple[str, bytes]] = attrs.field(factory=list)

    def effects(self) -> Iterator[Effect]:
        """Yield the effects, in the order in which they are executed."""
        if self.heartbeats:
            yield HeartbeatsReceived(frozenset(self.heartbeats))
        if self.acknowledgements:
            yield IndexesAcknowledged(self.acknowledgements)
        if self.announced:
            yield IndexesAnnounced(frozenset(self.announced))
        if self.rounds or self.answers:
            yield RoundsReceived([(each[0], found) for each, found in self.rounds.items()], [*self.answers.items()])
        if self.met or self.checks or self.ends:
            yield StoreChecked(frozenset(self.met), self.checks, self.ends)
        if self.high_watermarks:
            yield HighWatermarksAnnounced(self.high_watermarks)
        if self.messages:
            yield MessagesReceived(self.messages)

    def record(self, message: wire.BatchedMessage) -> bool:
        """Record the news in a message, and return whether it has nothing else."""
        if isinstance(message, wire.RecordRun):
            # Under load, the explicit heartbeats of a broker wait behind its records, so these are heartbeats, too.
            address = message.batch.partition.address
            if message.requestor is None and SEPARATOR in address:
                self.heartbeats.add(owner_of(address))
            return False
        if isinstance(message, wire.Ack):
            self._record_ack(message)
            return True
        if isinstance(message, wire.BrokerMessage):
            self.messages.append((message.address, message.content))
            return True
        if isinstance(message, wire.Head):
            if message.subject == BROKERS_TOPIC:
                self.heartbeats.add(message.address)
            elif message.subject == INDEX_TOPIC:
                self.announced.add(Partition(message.subject, message.address))
        return False

    def _record_ack(self, message: wire.Ack) -> None:
        if message.subject == ROUNDS_TOPIC:
            self._record_round(message)
        elif message.subject.startswith(CHECKS_TOPIC):
            self._record_check(message)
        elif message.subject == METADATA_TOPIC and message.address != self._address:
            index = Partition(INDEX_TOPIC, message.partition.removeprefix(f"{METADATA_TOPIC}{SEPARATOR}"))
            self.high_watermarks[index] = max(message.sequence, self.high_watermarks.get(index, 0))
        elif message.subject == INDEX_TOPIC and message.address:
            key = Partition(message.subject, message.partition), message.address
            self.acknowledgements[key] = max(message.sequence + 1, self.acknowledgements.get(key, 0))

    def _record_round(self, message: wire.Ack) -> None:
        found = read_round(message)
        if isinstance(found, Round):
            self.rounds[message.address, found.claim.start] = found
        elif found is not None and message.address != self._address and owner_of(message.partition) == self._address:
            self.answers[message.address] = found

    def _record_check(self, message: wire.Ack) -> None:
        found = read_check(message)
        if message.address == self._address or owner_of(message.partition) != self._address:
            return
        if isinstance(found, CheckAnswer):
            self.checks.append((message.address, found))
        elif found is not None:
            self.ends[found[0]] = max(found[1], self.ends.get(found[0], 0))


def announce_high_watermark(broker: str, index: Partition, offset: int) -> wire.Ack:
    """Return the message with which a leader announces the high watermark of the log with this index partition."""
    return wire.Ack(f"{METADATA_TOPIC}{SEPARATOR}{index.address}", METADATA_TOPIC, offset, broker)
