"""Which brokers keep the logs that a broker leads, and what it keeps itself."""

from __future__ import annotations

import logging
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import attrs
import trio

from dafka.config import Config
from dafka.errors import ConfigError, StorageError
from dafka.protocol.logs import TOPICS_TOPIC, LogState, Topic, encode_topic, name_log
from dafka.protocol.replication import (
    Balancer,
    BalancerSettings,
    Brokers,
    BrokerSpace,
    PlacedLog,
    choose_replicas,
    rank_nodes,
)
from dafka.protocol.replication.replicated_logs import LogAction, ReplicatedLog, ReplicatedLogs
from dafka.records import Partition
from dafka.roles.broker_storage import free_bytes
from dafka.roles.cluster_host import Host
from dafka.roles.leading import IN_SYNC_S, Leading

_LOGGER = logging.getLogger("dafka.broker")

BALANCING_S = 1.0
"""Seconds between two looks at whether brokers keep what they should."""

SPACE_STEP = 0.02
"""By which part of itself the free space of a broker changes until others are told."""


class Balancing:
    """Has brokers keep what they should.

    Args:
        host: The broker.
        config: The configuration.
        brokers: The brokers of the cluster.
        logs: The replicated logs.
        leading: The logs that this broker leads.
        indexes: The partitions of indexes that are stored, by log.
        act: Carries out what the machines of logs ask for.
        refresh: Tells clients who leads a log.
        describe: Tells the other brokers what has changed about this one.
        hear_acknowledgements: Hears what is acknowledged to a broker.
    """

    def __init__(
        self,
        host: Host,
        config: Config,
        brokers: Brokers,
        logs: ReplicatedLogs,
        leading: Leading,
        indexes: defaultdict[str, set[Partition]],
        act: Callable[[Iterable[LogAction]], None],
        refresh: Callable[[ReplicatedLog], None],
        describe: Callable[..., None],
        hear_acknowledgements: Callable[[str], None],
    ) -> None:
        self._host = host
        self._order = host.order
        self._settings = config.broker
        self._storage_url = config.store.storage
        self._brokers = brokers
        self._logs = logs
        self._leading = leading
        self._indexes = indexes
        self._act = act
        self._refresh = refresh
        self._describe = describe
        self._hear_acknowledgements = hear_acknowledgements
        self._balancer = Balancer(
            host.address,
            BalancerSettings(mend_after_s=config.broker.mend_after_ms / 1000, full_bytes=config.broker.full_bytes),
            random.sample,
        )

    def place_logs(self, topic: Topic) -> tuple[tuple[str, ...], ...]:
        """Return the placement of a topic, with brokers for the logs that have none yet, the preferred one first."""
        spaces = [
            BrokerSpace(each.address, each.free_bytes, each.rack, takes_replicas=not each.is_draining)
            for each in self._brokers.living()
        ]
        count = topic.replica_count or self._settings.replicas
        placed = list(topic.placement[: topic.log_count])
        for number in range(len(placed), topic.log_count):
            chosen = choose_replicas(spaces, count, random.sample) or (self._host.address,)
            placed.append(tuple(rank_nodes(name_log(topic.topic_id, number), chosen)))
        return tuple(placed)

    def change_replicas(self, log: LogState, replicas: Sequence[str]) -> None:
        """Have other brokers keep a log; see `Broker.change_replicas`."""
        unknown = [each for each in replicas if self._brokers.find(each) is None]
        if unknown or not replicas or len(set(replicas)) < len(replicas):
            raise ConfigError("the replicas of a log are different brokers of the cluster")
        topic = self._order.topics[log.topic]
        self._change_topic(topic, assignments={**topic.assignments, log.number: tuple(replicas)})

    def _change_topic(self, topic: Topic, **changes: Any) -> None:
        changed = attrs.evolve(topic, revision=topic.revision + 1, **changes)
        self._order.add_topic(changed)
        self._host.write_state(TOPICS_TOPIC, [(topic.name.encode(), encode_topic(changed))])

    async def run(self) -> None:
        """Have further brokers keep logs, and others no more, as brokers come and go, until cancelled."""
        while True:
            await trio.sleep(BALANCING_S)
            self._measure_space()
            if len(self._brokers.all()) == 1:
                continue
            now = trio.current_time()
            placed = [self._place_of(log) for log in self._logs if log.topic in self._order.topics]
            free = [each for each in placed if not self._is_assigned(each)]
            for change in self._balancer.advance(self._brokers.all(), self._brokers.alive, free, now):
                self._change(change.log, change.replicas)
            for log in list(self._logs):
                log.replica.set_unfit(self._balancer.unfit(log.name) | self._find_leaving(log))
                self._refresh(log)
            await self._drop_left()
            for topic in list(self._order.topics.values()):
                for number, replicas in topic.assignments.items():
                    self._assign(topic, number, replicas)

    def _place_of(self, log: ReplicatedLog) -> PlacedLog:
        replica = log.replica
        topic = self._order.topics[log.topic]
        wanted = topic.replica_count or self._settings.replicas
        return PlacedLog(log.name, replica.leader, replica.replicas, wanted, replica.in_sync(within_s=IN_SYNC_S))

    def _is_assigned(self, log: PlacedLog) -> bool:
        found = self._logs.find(log.name)
        return found is not None and found.number in self._order.topics[found.topic].assignments

    def _find_leaving(self, log: ReplicatedLog) -> frozenset[str]:
        """Return the replicas of a log that an operator wants to have replaced, once their successors are replicas."""
        topic = self._order.topics.get(log.topic)
        assigned = set(log.replica.replicas if topic is None else topic.assignments.get(log.number, ()))
        present = frozenset(log.replica.replicas)
        return present - assigned if assigned and assigned <= present else frozenset()

    def _assign(self, topic: Topic, number: int, replicas: tuple[str, ...]) -> None:
        """As the leader of a log, have the brokers keep it that an operator has named."""
        log = self._logs.find(name_log(topic.topic_id, number))
        if log is None or not log.replica.may_append:
            return
        present = log.replica.replicas
        if set(present) == set(replicas):
            left = {each: found for each, found in topic.assignments.items() if each != number}
            self._change_topic(self._order.topics[topic.name], assignments=left)
        elif not set(replicas) <= set(present):
            self._change(log.name, (*present, *(each for each in replicas if each not in present)))
        elif set(replicas) <= set(log.replica.in_sync()) and self._host.address in replicas:
            self._change(log.name, replicas)

    def _change(self, name: str, replicas: tuple[str, ...]) -> None:
        log = self._logs.find(name)
        if log is not None:
            self._act(self._logs.change_replicas(log, replicas))

    async def _drop_left(self) -> None:
        """Delete what other brokers keep in this one's place."""
        for log in list(self._logs):
            if self._host.address in log.replica.replicas or not self._indexes[log.name]:
                continue
            self._hear_acknowledgements(log.replica.latest.branch.leader)
            if not log.replica.may_drop:
                continue
            indexes = self._indexes.pop(log.name)
            own = [attrs.evolve(each, topic=log.topic) for each in indexes]
            self._logs.drop(log)
            self._leading.forget(log)
            try:
                await self._host.forget_partitions([*indexes, *own])
            except StorageError as error:
                _LOGGER.warning("cannot delete the log %s of %s: %s", log.number, log.topic, error)

    def _measure_space(self) -> None:
        """Tell the other brokers how much space is free."""
        free, told = free_bytes(self._storage_url), self._brokers.own.free_bytes
        if abs(free - told) > SPACE_STEP * max(told, 1):
            self._describe(free_bytes=free)

    def under_replicated(self) -> list[LogState]:
        """Return the logs that this broker leads and that fewer brokers have whole than should."""
        usable = sum(not each.is_draining for each in self._brokers.all())
        found = []
        for log in self._order.all_logs():
            wanted = min(self._order.topics[log.topic].replica_count or self._settings.replicas, usable)
            if log.leadership.is_led and len(self._brokers.alive.intersection(log.leadership.in_sync)) < wanted:
                found.append(log)
        return found
