"""Assembles a broker: its node, its coordinators and the state that all its servers share."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Protocol
from weakref import WeakValueDictionary

import attrs
import trio

from dafka.broker.access.logins import Logins
from dafka.broker.connections.connection_quotas import ConnectionQuotas
from dafka.broker.connections.machine_memory import find_memory_bytes
from dafka.broker.connections.memory import Memory
from dafka.broker.connections.security import ServerSecurity
from dafka.broker.connections.stopping import Stopping
from dafka.broker.coordinator.coordinator_shard import CoordinatorShard
from dafka.broker.coordinator.coordinators import Coordinators
from dafka.broker.coordinator.groups import GroupCoordinators
from dafka.broker.coordinator.participants import TransactionParticipants
from dafka.broker.coordinator.transactions import TransactionCoordinators
from dafka.broker.core.coordination.state_records import SHARDS
from dafka.broker.core.groups.coordinator import GroupCoordinator
from dafka.broker.core.groups.settings import GroupSettings
from dafka.broker.core.log.log import Log
from dafka.broker.core.metadata.brokers import BrokerRegistration
from dafka.broker.core.metadata.topics import Topic
from dafka.broker.core.transactions.coordinator import TransactionCoordinator, TransactionSettings
from dafka.broker.core.transactions.producer_ids import ProducerIds
from dafka.broker.interbroker.messenger import BrokerMessenger
from dafka.broker.log.append_outcomes import AppendOutcomes
from dafka.broker.log.compaction import LogCompaction
from dafka.broker.node import BrokerNode
from dafka.broker.replication.preferred_leader import PreferredLeaderElections
from dafka.broker.startup import serve_broker
from dafka.config import Config
from dafka.storage.plugin_helpers import now_ms

_EXPIRY_INTERVAL_S = 600.0

SOURCE_READS_MAX = 8
"""Maximum number of concurrent log reads of one source, so that other sources do not wait for it."""

UNPACKING_BYTES_MAX = 2**26
"""Memory for decompressing records of clients, in bytes."""


class ServerCounters(Protocol):
    """Counters that every server has."""

    sent_bytes: int
    consumed: Counter[str]


class ClientServer(Protocol):
    """The part of a server that status pages and metrics read."""

    @property
    def quotas(self) -> ConnectionQuotas:
        """Its connections."""

    @property
    def counters(self) -> ServerCounters:
        """Its counters."""


class Broker:
    """A broker with its coordinators, started by `open_broker`.

    Attributes:
        node: The node: storage, logs and membership in the cluster.
        config: The configuration.
        security: The users and the certificate of its servers.
        groups: The group coordinators.
        transactions: The transaction coordinators.
        participants: The logs and groups that take part in transactions.
        elections: Transfers the leadership of logs to preferred replicas.
        outcomes: Finds out whether appended records survived a change of the leader.
        listeners: Its servers.
        memory: The memory for all clients.
        unpacking: The part of the memory for decompressing records.
        logins: Verifies the logins of clients of all servers.
        stopping: Whether it is stopping.
    """

    def __init__(self, node: BrokerNode, config: Config, security: ServerSecurity) -> None:
        """Create the broker. Programs call `open_broker` instead."""
        self.node = node
        self.config = config
        self.security = security
        self.memory = Memory(config.broker.memory or find_memory_bytes() // 4)
        self.unpacking = self.memory.room(UNPACKING_BYTES_MAX)
        self._reads: WeakValueDictionary[str, trio.CapacityLimiter] = WeakValueDictionary()
        self.listeners: list[ClientServer] = []
        self.logins = Logins()
        self.stopping = Stopping()
        self._coordinators = Coordinators(node, self._make_shard)
        self._messages: list[bytes] = []
        self._has_messages = trio.Event()
        self._messenger = BrokerMessenger(node.address, self._put_message)
        node.on_message = self._messenger.receive
        self.elections = PreferredLeaderElections(node, self._messenger)
        self.outcomes = AppendOutcomes(node, self._messenger)
        self.participants = TransactionParticipants(node, self._coordinators, self._messenger)
        self.transactions = TransactionCoordinators(self._coordinators, self.participants, self._messenger)
        self.groups = GroupCoordinators(node, self._coordinators, self.participants)
        node.replicator.on_removed = self._on_removed

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the coordinators until cancelled. They have started when the shards that this broker leads are loaded."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._publish_messages)
            nursery.start_soon(self.outcomes.run)
            self._messenger.introduce()
            await nursery.start(self.participants.run)
            await nursery.start(self._coordinators.run)
            nursery.start_soon(self._expire_producers)
            compaction = LogCompaction(self.node, self.config)
            nursery.start_soon(compaction.run)
            task_status.started()

    def reads_of(self, source: str) -> trio.CapacityLimiter:
        """Return the limiter for log reads of a source: a user, or the address of a client."""
        found = self._reads.get(source)
        if found is None:
            found = self._reads[source] = trio.CapacityLimiter(SOURCE_READS_MAX)
        return found

    def coordinator_of(self, name: str) -> BrokerRegistration | None:
        """Return the coordinator of a group or transactional id; None if there is none at present."""
        return self._coordinators.broker_of(name)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic with its records and the offsets that groups have committed for it.

        Raises `StorageError` if the storage fails.
        """
        await self.node.delete_topic(name)
        await self.groups.wait_committed()

    def _make_shard(self, log: Log) -> CoordinatorShard:
        kafka = self.config.kafka
        groups, transactions = GroupSettings(), TransactionSettings()
        groups = attrs.evolve(
            groups,
            group_initial_rebalance_delay_ms=kafka.rebalance_delay_ms,
            group_min_session_timeout_ms=kafka.session_timeout_min_ms,
            groups_max=groups.groups_max // SHARDS,
        )
        transactions = attrs.evolve(transactions, transactional_ids_max=transactions.transactional_ids_max // SHARDS)
        return CoordinatorShard(
            self.node,
            log,
            GroupCoordinator(groups, lambda: str(uuid.uuid4())),
            TransactionCoordinator(transactions, ProducerIds(log.number, SHARDS)),
            self.participants.end,
        )

    def _on_removed(self, topic: Topic, logs: Sequence[Log]) -> None:
        for log in logs:
            self.participants.forget(log)
        if topic.topic_id in self.node.replicator.topic_table.deleted_ids:
            self.groups.forget_topic(topic)

    def _put_message(self, value: bytes) -> None:
        self._messages.append(value)
        self._has_messages.set()

    async def _publish_messages(self) -> None:
        """Publish messages in batches until cancelled."""
        while True:
            await self._has_messages.wait()
            self._has_messages = trio.Event()
            messages, self._messages = self._messages, []
            self.node.publish_messages(messages)

    async def _expire_producers(self) -> None:
        """Forget producers that have sent nothing for a day."""
        while True:
            await trio.sleep(_EXPIRY_INTERVAL_S)
            for log in self.node.log_table.all_logs():
                log.producers.expire(now_ms())


@asynccontextmanager
async def open_broker(config: Config, security: ServerSecurity) -> AsyncIterator[Broker]:
    """Run a broker with its coordinators for the duration of a block.

    Args:
        config: The configuration.
        security: The users and the certificate of its servers.

    Yields:
        The broker.

    Raises:
        DafkaError: `serve_broker` raised it.
    """
    async with trio.open_nursery() as nursery:
        node: BrokerNode = await nursery.start(serve_broker, config)
        broker = Broker(node, config, security)
        await nursery.start(broker.run)
        nursery.start_soon(security.keep_current)
        yield broker
        nursery.cancel_scope.cancel()
