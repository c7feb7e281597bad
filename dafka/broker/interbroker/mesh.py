"""What a broker sends to other brokers and stores as a node: acknowledgements, requests for records, messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import trio

from dafka import wire
from dafka.broker.core.broker_news import announce_high_watermark
from dafka.broker.core.node_machine import BrokerMachine
from dafka.protocol.actions import Action
from dafka.records import Partition
from dafka.roles.sockets import NodeSockets
from dafka.wire import Command


class BrokerMesh:
    """The mesh of nodes, as a broker uses it. `act` executes the actions of the machine."""

    def __init__(self, machine: BrokerMachine, sockets: NodeSockets, act: Callable[[Iterable[Action]], None]) -> None:
        self.address = machine.address
        self._machine = machine
        self._sockets = sockets
        self._act = act

    def send_bytes(self, address: str, content: bytes) -> None:
        """Send bytes to the broker with an address. See `BrokerMessenger`."""
        self.publish([wire.BrokerMessage(address, self.address, content)])

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

    def apply_registration(self) -> None:
        """Receive more than what describes the cluster, once this broker is registered."""
        self._act(self._machine.apply_registration(trio.current_time()))

    def subscribe_acknowledgements(self, address: str) -> None:
        """Subscribe to the acknowledgements of other replicas for the logs that a broker leads."""
        self._sockets.subscribe(wire.subscription_prefix(Command.ACK, f"{address}/"))
