"""Assembles a broker: its node, its coordinators and the state that all its servers share."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Protocol
from weakref import WeakValueDictionary

import trio

from dafka.broker.access.logins import Logins
from dafka.broker.connections.connection_quotas import ConnectionQuotas
from dafka.broker.connections.machine_memory import find_memory_bytes
from dafka.broker.connections.memory import Memory
from dafka.broker.connections.security import ServerSecurity
from dafka.broker.connections.tcp_server import Stopping
from dafka.broker.coordinator.assignors import load_assignors
from dafka.broker.coordinator.coordinator_log import CoordinatorLog
from dafka.broker.coordinator.coordinator_shard import CoordinatorShard
from dafka.broker.coordinator.coordinators import Coordinators
from dafka.broker.coordinator.dead_letter_appends import DeadLetterAppends
from dafka.broker.coordinator.dead_letters import DeadLetterQueue
from dafka.broker.coordinator.groups import GroupCoordinators
from dafka.broker.coordinator.led_share_partition import ShareLoader
from dafka.broker.coordinator.participants import TransactionParticipants
from dafka.broker.coordinator.replaced_states import ReplacedStates
from dafka.broker.coordinator.share_partitions import SharePartitions
from dafka.broker.coordinator.share_reads import ShareReader
from dafka.broker.coordinator.share_store import ShareStore
from dafka.broker.coordinator.transaction_joins import TransactionJoins
from dafka.broker.coordinator.transactions import TransactionCoordinators
from dafka.broker.core.coordination.state_records import COORDINATORS_TOPIC, SHARDS
from dafka.broker.core.groups.consumer.assignors import DEFAULT_ASSIGNORS, Assignor
from dafka.broker.core.groups.coordinator import GroupCoordinator
from dafka.broker.core.groups.settings import GroupSettings
from dafka.broker.core.groups.share.settings import ShareSettings, read_settings
from dafka.broker.core.log.log import Log
from dafka.broker.core.metadata.brokers import BrokerRegistration
from dafka.broker.core.metadata.features import DEAD_LETTERS, TRANSACTIONS
from dafka.broker.core.metadata.group_settings import read_setting
from dafka.broker.core.transactions.coordinator import TransactionCoordinator, TransactionSettings
from dafka.broker.core.transactions.producer_ids import ProducerIds
from dafka.broker.log.append_outcomes import AppendOutcomes
from dafka.broker.log.appending import ClientAppender
from dafka.broker.log.compaction import LogCompaction
from dafka.broker.node import BrokerNode
from dafka.broker.replication.preferred_leader import PreferredLeaderElections
from dafka.broker.startup import serve_broker
from dafka.config import Config
from dafka.steady_clock import steady_now_ms

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


class StartupProgress:
    """What a broker that is starting waits for. `open_broker` updates it."""

    def __init__(self) -> None:
        self.node: BrokerNode | None = None

    def __str__(self) -> str:
        if self.node is None:
            return "it reads its storage"
        return self.node.joining.waits_for or "it loads the logs of groups and transactions"


class Broker:
    """A broker with its coordinators, started by `open_broker`. `listeners` are its servers."""

    def __init__(
        self,
        node: BrokerNode,
        config: Config,
        security: ServerSecurity,
        assignors: Mapping[str, Assignor] = DEFAULT_ASSIGNORS,
    ) -> None:
        """Create the broker. Programs call `open_broker` instead."""
        self.node = node
        self.config = config
        self.security = security
        self._assignors = assignors
        if security.users is not None:
            security.users.join(node.tables.state.access)
        self.memory = Memory(config.broker.memory or find_memory_bytes() // 4)
        self._reads: WeakValueDictionary[str, trio.CapacityLimiter] = WeakValueDictionary()
        self.listeners: list[ClientServer] = []
        self.logins = Logins()
        self.stopping = Stopping()
        self.has_started = trio.Event()
        """Set when the node has started, and the shards of the coordinators that it leads are loaded."""
        replicator, messenger = node.replicator, node.messenger
        self._coordinators = Coordinators(node.tables, replicator.led_logs, self._make_shard)
        self.elections = PreferredLeaderElections(node.log_table, replicator, messenger)
        self.participants = TransactionParticipants(
            node.log_table, self._coordinators, replicator.led_logs, node.writer, node.watchers, messenger
        )

        def has_own_epochs() -> bool:
            return node.tables.state.members.feature_level >= TRANSACTIONS

        self.transactions = TransactionCoordinators(self._coordinators, self.participants, messenger, has_own_epochs)
        self.joins = TransactionJoins(self._coordinators, self.participants, messenger, has_own_epochs)
        self.groups = GroupCoordinators(node.tables, self._coordinators, self.participants, self.joins)
        self._outcomes = AppendOutcomes(
            node.log_table, node.tables.logs, node.watchers, node.leases.holds_lease, messenger
        )
        self.appender = ClientAppender(
            node.log_table,
            node.brokers,
            config,
            node.storage,
            node.writer,
            node.watchers,
            self._outcomes,
            self.memory.make_pool(UNPACKING_BYTES_MAX),
            self.participants.check_log,
            node.leases.time_ms,
        )
        self._letter_appends = DeadLetterAppends(node.log_table, self.appender, node.storage.waits, messenger)
        self._default_share_settings = read_settings(lambda name: read_setting({}, name, config))
        store = ShareStore(self._coordinators, messenger)
        self.shares = SharePartitions(
            store,
            ShareLoader(
                node.tables,
                store,
                node.leases,
                node.watchers,
                node.reader,
                node.leases.time_ms,
                self._share_settings_of,
            ),
            node.leases,
            node.watchers,
            node.storage.waits,
            DeadLetterQueue(
                node.log_table,
                node.reader,
                self.appender,
                self._letter_appends,
                self.transactions,
                node.admin.create_topic,
                config.kafka,
                node.leases.time_ms,
            ),
            self._share_settings_of,
        )
        self._replaced_states = ReplacedStates(node.tables, self.shares, messenger)
        self.share_reader = ShareReader(self.shares, node.reader)
        self._compaction = LogCompaction(
            node.log_table, node.reader, node.storage.storage, node.store.compactor, config, node.may_expire
        )

    async def run(self) -> None:
        """Run the coordinators until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._outcomes.run)
            nursery.start_soon(self.groups.forget_topics, self.node.replicator.deleted_topics)
            await nursery.start(self.participants.run)
            await nursery.start(self._letter_appends.run)
            await nursery.start(self.shares.run)
            await self.node.admin.ensure_internal_topic(COORDINATORS_TOPIC, SHARDS)
            await nursery.start(self._coordinators.run)
            nursery.start_soon(self._expire_producers)
            nursery.start_soon(self._compaction.run)
            self.has_started.set()

    def reads_of(self, source: str) -> trio.CapacityLimiter:
        """Return the limiter for log reads of a source: a user, or the address of a client."""
        found = self._reads.get(source)
        if found is None:
            found = self._reads[source] = trio.CapacityLimiter(SOURCE_READS_MAX)
        return found

    def coordinator_of(self, name: str) -> BrokerRegistration | None:
        """Return the coordinator of a group or transactional id; None if there is none at present."""
        return self._coordinators.broker_of(name)

    async def delete_topic(self, name: str, *, ordered_by: str = "") -> None:
        """Delete a topic with its records and the offsets that groups have committed for it.

        Raises the errors of `ClusterAdmin.delete_topic`.
        """
        await self.node.admin.delete_topic(name, ordered_by=ordered_by)
        await self.groups.wait_committed()

    def group_setting(self, group_id: str, name: str) -> str:
        """Return the value of a setting of a group."""
        return read_setting(self.node.tables.state.group_settings.find(group_id), name, self.config)

    def _share_settings_of(self, group_id: str) -> ShareSettings:
        if not self.node.tables.state.group_settings.find(group_id):
            return self._default_share_settings
        has_dead_letters = self.node.tables.state.members.feature_level >= DEAD_LETTERS
        return read_settings(partial(self.group_setting, group_id), has_dead_letters=has_dead_letters)

    def _own_timeout_of(self, group_id: str, kind: str) -> int | None:
        name = f"{kind}.session.timeout.ms"
        is_own = name in self.node.tables.state.group_settings.find(group_id)
        return int(self.group_setting(group_id, name)) if is_own else None

    def _make_shard(self, log: Log) -> CoordinatorShard:
        node, kafka = self.node, self.config.kafka
        groups = GroupSettings(
            group_consumer_session_timeout_ms=kafka.consumer_session_timeout_ms,
            group_share_session_timeout_ms=kafka.consumer_session_timeout_ms,
            group_share_max_size=kafka.share_members_max,
            group_initial_rebalance_delay_ms=kafka.rebalance_delay_ms,
            group_min_session_timeout_ms=kafka.session_timeout_min_ms,
            groups_max=GroupSettings().groups_max // SHARDS,
            own_timeout_of=self._own_timeout_of,
        )
        transactions = TransactionSettings(transactional_ids_max=TransactionSettings().transactional_ids_max // SHARDS)
        return CoordinatorShard(
            log,
            CoordinatorLog(log, node.writer, node.reader, node.deletion),
            node.storage.waits,
            node.leases,
            node.tables.state.deleted_ids,
            GroupCoordinator(groups, lambda: str(uuid.uuid4()), node.log_table, self._assignors),
            TransactionCoordinator(transactions, ProducerIds(log.number, SHARDS)),
            self.participants.end,
            self._replaced_states.drop,
        )

    async def _expire_producers(self) -> None:
        """Forget producers that have sent nothing for a day."""
        while True:
            await trio.sleep(_EXPIRY_INTERVAL_S)
            for log in self.node.log_table.all_logs():
                log.producers.expire(steady_now_ms())


@asynccontextmanager
async def open_broker(
    config: Config, security: ServerSecurity, progress: StartupProgress | None = None
) -> AsyncIterator[Broker]:
    """Run a broker with its coordinators for the duration of a block. Raise the errors of `serve_broker`.

    If the broker belongs to a cluster of several, the block begins as soon as the broker has read what it has stored of
    the cluster, so that clients can read that. See `Broker.has_started`.
    """
    assignors = load_assignors(config.kafka.consumer_assignors)
    async with trio.open_nursery() as nursery:
        node: BrokerNode = await nursery.start(serve_broker, config)
        if progress is not None:
            progress.node = node
        broker = Broker(node, config, security, assignors)
        nursery.start_soon(broker.run)
        nursery.start_soon(security.keep_current)
        if node.has_started.is_set():
            await broker.has_started.wait()
        yield broker
        nursery.cancel_scope.cancel()
