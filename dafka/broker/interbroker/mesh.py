"""What a broker sends to other brokers and stores as a node: acknowledgements, requests for records, messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import trio

from dafka import wire
from dafka.broker.core.metadata.topics import MESSAGES_TOPIC
from dafka.broker.core.node_machine import BrokerMachine, announce_high_watermark
from dafka.protocol.actions import Action
from dafka.records import Partition, RecordBatch
from dafka.roles.sockets import NodeSockets
from dafka.storage.plugin_helpers import now_ms
from dafka.wire import Command


class BrokerMesh:
    """The mesh of nodes, as a broker uses it. `act` executes the actions of the machine."""

    def __init__(self, machine: BrokerMachine, sockets: NodeSockets, act: Callable[[Iterable[Action]], None]) -> None:
        self.address = machine.address
        self._machine = machine
        self._sockets = sockets
        self._act = act
        self._messages: list[bytes] = []
        self._has_messages = trio.Event()

    async def run(self) -> None:
        """Publish messages in batches until cancelled."""
        partition = Partition(MESSAGES_TOPIC, self.address)
        while True:
            await self._has_messages.wait()
            self._has_messages = trio.Event()
            values, self._messages = self._messages, []
            sequence = self._machine.next_sequence(partition)
            batch = RecordBatch(partition, sequence, values, timestamps=[now_ms()] * len(values))
            self._act(self._machine.append_own(batch, trio.current_time()))

    def publish_message(self, value: bytes) -> None:
        """Publish a message to other brokers when it is durable. Their messengers receive all in this order."""
        self._messages.append(value)
        self._has_messages.set()

    def publish(self, messages: Sequence[wire.BatchedMessage]) -> None:
        """Publish messages to other nodes."""
        self._sockets.publish(messages)

    def acknowledge(self, ends: Mapping[Partition, int]) -> None:
        """Acknowledge index records that are stored here together with the records they refer to."""
        self.publish([wire.Ack(each.address, each.topic, end - 1, self.address) for each, end in ends.items() if end])

    def announce_high_watermark(self, index: Partition, offset: int) -> None:
        """Announce the high watermark of the log with an index partition, which other brokers observe."""
        self.publish([announce_high_watermark(self.address, index, offset)])

    def fetch_records(self, ends: Mapping[Partition, int]) -> None:
        """Fetch records of partitions up to these end sequences; 0 fetches at least one more record than is stored."""
        self._act(self._machine.expect_records(ends, trio.current_time()))

    def ask_heads(self, topics: Iterable[str]) -> None:
        """Ask other stores for the ends of the partitions of topics."""
        self._act(self._machine.ask_heads(topics))

    def subscribe_acknowledgements(self, address: str) -> None:
        """Subscribe to the acknowledgements of other replicas for the logs that a broker leads."""
        self._sockets.subscribe(wire.subscription_prefix(Command.ACK, f"{address}/"))
