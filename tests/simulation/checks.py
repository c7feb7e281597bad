"""The promises that a simulated cluster must keep, checked at every moment and at the end. Checks change nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dafka import wire
from dafka.protocol import Event, ForgetPartitions, PartitionHalted, RecordsUnrecoverable, ResetPosition
from dafka.protocol.machines.commit_queue import StorageWork
from dafka.protocol.ordering.reassembler import ReceiveCapacity
from dafka.records import Partition, RecordBatch
from tests.simulation.disk import check_contents, describe
from tests.simulation.nodes import SimulatedNode
from tests.simulation.roles import SimulatedConsumer, SimulatedProducer, SimulatedStore
from tests.simulation.violations import Violation

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

LATEST_SLACK_S = 1.0
"""Seconds after which a `latest` consumer that entered its block must get every record. Subscriptions take a moment."""

RUN_BYTES = 64 * 1024
"""Bytes by which a batch in flight may exceed a limit that has just been reached."""


class Checks:
    """The checks, and what they must remember, such as the end of what each producer has published."""

    def __init__(self, cluster: Cluster) -> None:
        self.published_ends: dict[Partition, int] = {}
        self._cluster = cluster
        self._delivered: dict[tuple[str, Partition], int] = {}
        self._given: dict[tuple[str, Partition], int] = {}
        self._gone: dict[tuple[str, Partition], int] = {}
        self._sent: dict[tuple[str, Partition], int] = {}
        self._halted: set[tuple[str, Partition]] = set()
        self._begins: dict[str, dict[Partition, int]] = {}
        self._made_at: dict[Partition, list[tuple[float, int]]] = {}

    # At every moment

    def on_published(self, producer: SimulatedProducer, batch: RecordBatch) -> None:
        if batch.first_sequence != (end := self.published_ends.get(producer.partition, 0)):
            raise Violation("not the next sequence", f"{producer.name} at {end}: {describe(batch)}")
        self.published_ends[producer.partition] = batch.end_sequence
        self._made_at.setdefault(batch.partition, []).append((self._cluster.clock.now, batch.first_sequence))
        self._cluster.note(f"{producer.name} publishes {describe(batch)}")

    def on_sent(self, node: SimulatedNode, messages: Sequence[wire.BatchedMessage]) -> None:
        """Count the messages that a node publishes, and check that it may publish them."""
        counts = node.sent
        for message in messages:
            if isinstance(message, wire.RecordRun):
                counts["record" if message.requestor is None else "direct-record"] += len(message.batch)
                check_contents([message.batch])
                if message.requestor is None:
                    self._published_in_order(node, message.batch)
                continue
            counts[type(message).__name__] += 1
            if isinstance(message, wire.Ack):
                self._acknowledged(node, message)
            elif isinstance(message, wire.DirectHead) and node.name in self._cluster.disks:
                self._announced(node, message)
            elif isinstance(message, wire.Head):
                partition = Partition(message.subject, message.address)
                if message.sequence >= self.published_ends.get(partition, 0):
                    raise Violation("HEAD of no record", f"{node.name}: {message}")
        if self._cluster.is_noting:
            for message in messages:
                self._cluster.note(f"{node.name} sends {_name(message)}")

    def _published_in_order(self, node: SimulatedNode, batch: RecordBatch) -> None:
        """Check that records are published once and in order. Those that a spool holds back are announced instead."""
        expected = self._sent.get((node.address, batch.partition), 0)
        is_spooled = getattr(node, "spool", None) is not None
        if batch.first_sequence < expected or (batch.first_sequence > expected and not is_spooled):
            raise Violation("not published in order", f"{node.name} at {expected}: {describe(batch)}")
        self._sent[node.address, batch.partition] = batch.end_sequence

    def _acknowledged(self, node: SimulatedNode, ack: wire.Ack) -> None:
        partition = Partition(ack.subject, ack.partition)
        end = self._cluster.disks[node.name].end(partition)
        if ack.sequence >= end:
            raise Violation("ACK before durable", f"{node.name} acknowledges {ack.sequence} of {partition}, has {end}")

    def _announced(self, node: SimulatedNode, head: wire.DirectHead) -> None:
        partition = Partition(head.subject, head.address)
        if head.sequence >= self._cluster.disks[node.name].end(partition):
            raise Violation("DIRECT-HEAD before durable", f"{node.name}: {head}")

    def on_stored(self, store: SimulatedStore, work: StorageWork) -> None:
        if isinstance(work, ResetPosition):
            self._cluster.note(f"{store.name} skips {work.partition} to {work.next_sequence}")
            return
        if isinstance(work, ForgetPartitions):
            for partition in work.partitions:
                self._cluster.note(f"{store.name} forgets {partition}")
            return
        assert isinstance(work, list), "only brokers delete partitions with records"
        for batch in work:
            if batch.end_sequence > self.published_ends.get(batch.partition, 0):
                raise Violation("stored but never published", f"{store.name}: {describe(batch)}")
            self._cluster.note(f"{store.name} has stored {describe(batch)}")

    def on_delivered(self, consumer: SimulatedConsumer, batch: RecordBatch) -> None:
        """Check what a consumer's machine delivers: in order, once, and with the right content."""
        check_contents([batch])
        self._in_order(self._delivered, consumer, batch)

    def on_given(self, consumer: SimulatedConsumer, batch: RecordBatch) -> None:
        check_contents([batch])
        self._in_order(self._given, consumer, batch)
        self._cluster.note(f"{consumer.name} is given {describe(batch)}")

    def on_saved(self, consumer: SimulatedConsumer, positions: Mapping[Partition, int]) -> None:
        for partition, position in positions.items():
            if partition.topic in consumer.machine.topics and position != self._given.get(
                (consumer.address, partition), position
            ):
                raise Violation("position too far", f"{consumer.name} saves {position} of {partition}")

    def _in_order(
        self, seen: dict[tuple[str, Partition], int], consumer: SimulatedConsumer, batch: RecordBatch
    ) -> None:
        partition = batch.partition
        if partition.topic not in consumer.machine.topics:
            raise Violation("another topic's record", f"{consumer.name}: {describe(batch)}")
        key = (consumer.address, partition)
        expected = seen.get(key)
        if expected is None:
            expected = self._first(consumer, partition, batch.first_sequence)
        if batch.first_sequence != expected and batch.first_sequence != self._gone.get(key, -1):
            kind = "given twice" if batch.first_sequence < expected else "gap at a consumer"
            raise Violation(kind, f"{consumer.name} expects {expected}: {describe(batch)}")
        seen[key] = batch.end_sequence

    def _first(self, consumer: SimulatedConsumer, partition: Partition, first_sequence: int) -> int:
        """Return the sequence at which a consumer must begin."""
        if partition in consumer.begins:
            return consumer.begins[partition]
        if consumer.since is not None:
            due = max(self._first_since(partition, consumer.since), self._dropped(partition))
            if first_sequence > due:
                raise Violation("time began late", f"{consumer.name} begins {partition} at {first_sequence}, not {due}")
            return first_sequence
        if consumer.is_earliest:
            return 0
        end = self._begins.get(consumer.address, {}).get(partition)
        if end is not None and first_sequence > end:
            raise Violation("latest began late", f"{consumer.name} begins {partition} at {first_sequence}, not {end}")
        return first_sequence

    def _first_since(self, partition: Partition, since: float) -> int:
        """Return the first record that was made at a time or later, or the end of the partition.

        Simulated records have no timestamps: if the clock of a store is wrong, none is due.
        """
        if any(step.kind == "clock jump" for step in self._cluster.plan.steps):
            return self.published_ends.get(partition, 0)
        found = [sequence for time, sequence in self._made_at.get(partition, ()) if time >= since]
        return min(found, default=self.published_ends.get(partition, 0))

    def on_settled(self, node: SimulatedNode) -> None:
        self._cluster.note(f"{node.name} has settled")
        if self._cluster.plan.is_calm and node.name in self._cluster.consumers:
            self._cluster.clock.after(LATEST_SLACK_S, self._begin, node.address)

    def _begin(self, address: str) -> None:
        """From now on, expect a `latest` consumer to get everything, also of producers yet to come."""
        begins: dict[Partition, int] = {}
        for name in self._cluster.plan.producers:
            for partition in self._cluster.partitions_of(name):
                begins[partition] = self.published_ends.get(partition, 0)
        self._begins[address] = begins

    def on_unsubscribed(self, consumer: SimulatedConsumer, topic: str) -> None:
        """Forget a topic that a consumer unsubscribes from. If it subscribes again, it starts from the beginning."""
        for seen in (self._delivered, self._given, self._gone):
            for key in [key for key in seen if key[0] == consumer.address and key[1].topic == topic]:
                del seen[key]
        consumer.begins = {p: begin for p, begin in consumer.begins.items() if p.topic != topic}

    def on_notified(self, node: SimulatedNode, event: Event) -> None:
        self._cluster.note(f"{node.name}: {event}")
        if isinstance(event, (RecordsUnrecoverable, PartitionHalted)):
            dropped = self._dropped(event.partition)
            if event.end_sequence > dropped:
                raise Violation("gave up recoverable records", f"{node.name}: {event}, dropped up to {dropped}")
            if isinstance(event, PartitionHalted):
                self._halted.add((node.name, event.partition))
            else:
                self._gone[node.address, event.partition] = event.end_sequence

    def _dropped(self, partition: Partition) -> int:
        """Return the end of the records that a node may have dropped."""
        ends = [disk.dropped.get(partition, 0) for disk in self._cluster.disks.values()]
        return max([*ends, self._cluster.dropped_end(partition)])

    def on_bounded(self, node: SimulatedNode) -> None:
        machine, config = node.role_machine, self._cluster.plan.config
        responder = getattr(machine, "responder", None)
        if responder is not None and len(responder) > config.fetch.replies_max:
            raise Violation("memory", f"{node.name} is answering {len(responder)} ranges")
        limit, size = config.store.pending_bytes_max, getattr(machine, "pending_bytes", 0)
        if not 0 <= size <= 2 * limit + config.fetch.ahead_bytes_max + RUN_BYTES:
            raise Violation("memory", f"{node.name}: {size} bytes are not durable at a limit of {limit}")
        held, limit = getattr(machine, "capacity", None), config.consumer.buffer_bytes_max
        if isinstance(held, ReceiveCapacity) and not 0 <= held.buffered_bytes <= held.held_bytes <= limit + RUN_BYTES:
            raise Violation("memory", f"{node.name} holds {held.held_bytes} bytes at a limit of {limit}")
        reassembler = getattr(machine, "reassembler", None)
        if reassembler is not None:
            ahead = sum(cursor.ahead_bytes for cursor in reassembler.cursors.values())
            if ahead > config.fetch.ahead_bytes_max:
                raise Violation("memory", f"{node.name} keeps {ahead} bytes ahead of gaps")

    def check_copies(self) -> None:
        """Check that acknowledged records are durable in as many stores as their producer requires."""
        cluster = self._cluster
        min_stores = cluster.plan.config.producer.min_stores
        for producer in cluster.producers.values():
            end = producer.machine.acknowledged_end
            ends = [disk.end(producer.partition) for disk in cluster.disks.values()]
            if end and min_stores and sum(each >= end for each in ends) < min_stores:
                raise Violation("acknowledged and not durable", f"{producer.partition} {end}, stores have {ends}")

    # At the end

    def find_missing(self) -> str:
        """Return what is still missing somewhere, in a few words; empty if every node has everything."""
        cluster = self._cluster
        for partition in self.published_ends:
            end = cluster.final_end(partition)
            for store in cluster.stores.values():
                found = store.disk.end(partition)
                # Stores do not tell each other where a partition ended of which they have no records any more.
                is_gone = not cluster.is_alive(partition) and not self._is_stored(partition, found)
                if found != end and (store.name, partition) not in self._halted and not is_gone:
                    return f"{store.name} has {partition} up to {found}, not {end}"
                if store.commits:
                    return f"{store.name} is writing"
            for consumer in cluster.consumers.values():
                if (missing := self._missing(consumer, partition, end)) is not None:
                    return missing
        has_stores = len(cluster.stores) >= cluster.plan.config.producer.min_stores
        for producer in cluster.producers.values() if has_stores else ():
            if producer.to_publish:
                return f"{producer.name} cannot publish {producer.to_publish} more records"
            if producer.machine.unacknowledged:
                return f"{producer.name} lacks ACKs for {producer.machine.unacknowledged} records"
        return ""

    def _missing(self, consumer: SimulatedConsumer, partition: Partition, end: int) -> str | None:
        if partition.topic not in consumer.machine.topics:
            return None
        given = self._given.get((consumer.address, partition), 0)
        position = given or self._begin_of(consumer, partition)
        position = max(position, self._gone.get((consumer.address, partition), 0))
        waits_for_stores = partition in consumer.machine.timed_start and not self._cluster.stores
        if position >= end or waits_for_stores:
            return None
        cursor = consumer.machine.reassembler.cursors.get(partition)
        if cursor is None and self.has_ended(partition):
            # A consumer that finds a dead producer late asks stores for it, and waits for it until discovery loses it.
            is_expected = consumer.machine.reassembler.gap_resolver.has_node(partition.address)
            return f"{consumer.name} still expects {partition.address}" if is_expected else None
        may_begin_late = not consumer.is_earliest or (consumer.since is not None and not self._is_stored(partition))
        if may_begin_late and cursor is not None and not given and cursor.next_sequence >= end:
            return None
        if not consumer.is_earliest and cursor is None and not self._cluster.is_alive(partition):
            return None
        return f"{consumer.name} was given {partition} up to {position}, not {end}"

    def _begin_of(self, consumer: SimulatedConsumer, partition: Partition) -> int:
        """Return the first sequence that a consumer must be given of a partition."""
        if partition in consumer.begins or consumer.since is None:
            return consumer.begins.get(partition, 0)
        return self._first_since(partition, consumer.since)

    def has_ended(self, partition: Partition) -> bool:
        """Return whether a partition has no producer, and no store has records of it."""
        return not self._cluster.is_alive(partition) and not self._is_stored(partition)

    def _is_stored(self, partition: Partition, first_sequence: int = 0) -> bool:
        """Return whether a store has records of a partition from a sequence on. Retention may have dropped all."""
        logs = (store.disk.logs.get(partition) for store in self._cluster.stores.values())
        return any(log is not None and log.contents and log.end > first_sequence for log in logs)

    def check_forgotten(self) -> None:
        """Check that every store has forgotten the partitions that have ended, unless it misses records of them."""
        for store in self._cluster.stores.values():
            for partition, log in store.disk.logs.items():
                # A store keeps a partition of which it misses records, in case another one comes back with them.
                cursor = store.machine.reassembler.cursors.get(partition)
                is_whole = cursor is None or cursor.known_end == log.end
                if is_whole and self.has_ended(partition):
                    raise Violation("not forgotten", f"{store.name} still knows {partition}")
            for partition in store.machine.reassembler.cursors:
                if partition not in store.disk.logs and not self._cluster.is_alive(partition):
                    raise Violation("not forgotten", f"{store.name} still follows {partition}")

    def check_end(self) -> None:
        """Check what must hold when every node has everything: empty buffers, and limits for a whole life."""
        cluster = self._cluster
        for store in cluster.stores.values():
            if store.machine.pending_bytes or store.commits:
                raise Violation("memory", f"{store.name} has {store.machine.pending_bytes} bytes pending at the end")
        for consumer in cluster.consumers.values():
            if consumer.machine.capacity.buffered_bytes:
                raise Violation("memory", f"{consumer.name} has {consumer.machine.capacity.buffered_bytes} bytes left")
        for node in cluster.nodes():
            self._check_message_counts(node)

    def _check_message_counts(self, node: SimulatedNode) -> None:
        """Check that the number of messages that a node has sent is in proportion to its work."""
        cluster = self._cluster
        seconds = cluster.clock.now - node.started_at
        records = sum(self.published_ends.values())
        partitions = max(len(self.published_ends), 1)
        peers = len(cluster.plan.names) + 1
        heard = node.subscriptions_heard
        limits = {
            "Fetch": 20 + records + partitions * (2 * seconds + heard),
            "GetHeads": 10 + 2 * seconds + heard + 3 * partitions * peers,
            "Head": 5 + 1.1 * seconds + heard,
            "beacon": 20 + 11 * peers + (2 + peers / 4) * seconds,
            "StoreHello": 2 + heard,
            "GetPosition": partitions * peers * (5 + seconds / 4 + heard),
        }
        for kind, limit in limits.items():
            if node.sent[kind] > limit:
                raise Violation("storm", f"{node.name} sent {node.sent[kind]} of {kind}, {limit:.0f} is enough")


def _name(message: wire.BatchedMessage) -> str:
    if isinstance(message, wire.RecordRun):
        return f"{'RECORD' if message.requestor is None else 'DIRECT-RECORD to ' + message.requestor} " + describe(
            message.batch
        )
    return str(message)
