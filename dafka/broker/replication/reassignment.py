"""Reassigns the replicas of the logs that a broker leads, and deletes logs that it no longer replicates."""

from __future__ import annotations

import logging
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import attrs
import trio

from dafka.broker.core.log.log import Log
from dafka.broker.core.metadata.balancer import Balancer, BalancerSettings
from dafka.broker.core.metadata.commands import AssignReplicas, Command
from dafka.broker.core.metadata.replica_placement import LogPlacement, Reason
from dafka.broker.core.metadata.topics import Topic
from dafka.broker.core.partition_address import name_log
from dafka.broker.core.replication.replicated_logs import LogAction, ReplicatedLog
from dafka.broker.core.tables import BrokerTables
from dafka.broker.log.retention import RecordDeletion
from dafka.broker.replication.leader import IN_SYNC_S, LedLogs
from dafka.broker.replication.membership import Membership
from dafka.config import Config
from dafka.protocol.rendezvous import rank_nodes
from dafka.records import Partition

_LOGGER = logging.getLogger("dafka.broker")

BALANCING_S = 1.0
"""Seconds between two checks of the placement of replicas."""

AWAY_S = 60.0
"""The least time for which a broker that was away checks whether others have replaced it, in seconds."""

SPACE_STEP = 0.02
"""The relative change of the free space after which a broker announces it again."""


class Reassigner:
    """Changes the replicas of the logs that this broker leads, and deletes logs that it no longer replicates.

    `indexes` has the stored partitions of indexes, by log. `request` requests a command of the controller, and `act`
    executes the effects of replicas.
    """

    def __init__(
        self,
        config: Config,
        tables: BrokerTables,
        led_logs: LedLogs,
        deletion: RecordDeletion,
        indexes: defaultdict[str, set[Partition]],
        request: Callable[[Command], None],
        act: Callable[[Iterable[LogAction]], None],
        membership: Membership,
    ) -> None:
        self._settings = config.broker
        self._storage_url = config.store.storage
        self._log_table = tables.log_table
        self._brokers = tables.brokers
        self._logs = tables.logs
        self._address = tables.brokers.own.address
        self._led_logs = led_logs
        self._deletion = deletion
        self._indexes = indexes
        self._request = request
        self._act = act
        self._membership = membership
        self._balancer = Balancer(
            self._address,
            BalancerSettings(
                replace_replicas_after_s=config.broker.replace_replicas_after_ms / 1000,
                full_bytes=config.broker.full_bytes,
            ),
        )
        self._away_until = float("-inf")
        self._placements_cache: dict[str, tuple[Topic, LogPlacement]] = {}

    def place_logs(self, topic: Topic) -> tuple[tuple[str, ...], ...]:
        """Return the placement of a topic. It chooses brokers for logs without replicas, the preferred one first."""
        count = topic.replica_count or self._settings.replicas
        placed = list(topic.placement[: topic.log_count])
        names = [name_log(topic.topic_id, number) for number in range(len(placed), topic.log_count)]
        brokers, now = self._brokers, trio.current_time()
        # A broker that is alone replicates all logs.
        logs = [] if brokers.is_alone else [*self._placements(), *self._unloaded_placements()]
        chosen = self._balancer.place_logs(brokers.all(), brokers.alive, logs, names, count, now, brokers.unwritable)
        placed += [tuple(rank_nodes(name, each)) for name, each in zip(names, chosen, strict=True)]
        return tuple(placed)

    def _unloaded_placements(self) -> Iterator[LogPlacement]:
        """Yield the logs of new topics that this broker has not loaded yet."""
        for topic in self._log_table.topics.values():
            for number, replicas in enumerate(topic.placement[: topic.log_count]):
                name = name_log(topic.topic_id, number)
                if self._logs.find(name) is None:
                    yield LogPlacement(name, "", replicas, len(replicas), is_fixed=True)

    async def run(self) -> None:
        """Adapt the replicas of logs to the living brokers until cancelled."""
        self._record_away()
        while True:
            await trio.sleep(BALANCING_S)
            self._measure_space()
            if len(self._brokers.all()) == 1:
                continue
            now = trio.current_time()
            placed = list(self._placements())
            brokers = self._brokers
            for change in self._balancer.advance(brokers.all(), brokers.alive, placed, now, brokers.unwritable):
                self._change(change.log, change.replicas, change.reason)
            if self._balancer.has_share:
                self._membership.update_registration(awaits_share=False)
            if 2 * len(brokers.alive) <= len(brokers.all()):
                self._record_away()
            for log in self._logs:
                self.prefer_leaders(log)
            self._count_under_replicated()
            await self._drop_replaced()
            for topic in list(self._log_table.topics.values()):
                for number, replicas in topic.assignments.items():
                    self._assign(topic, number, replicas)

    def prefer_leaders(self, log: ReplicatedLog) -> None:
        """Set the preferred and the ineligible leaders of a log."""
        self._logs.set_preferences(log, self._find_assigned(log), self._find_ineligible(log))

    def _placements(self) -> Iterator[LogPlacement]:
        """Yield the placement of all logs. Unchanged ones come from a cache."""
        for log in self._logs.take_changed():
            self._placements_cache.pop(log.name, None)
        for log in self._logs:
            topic = self._log_table.topics.get(log.topic)
            if topic is not None:
                known = self._placements_cache.get(log.name)
                if known is None or known[0] is not topic:
                    known = self._placements_cache[log.name] = topic, self._placement_of(log)
                yield known[1]
        if len(self._placements_cache) > len(self._logs):
            self._placements_cache = {
                name: each for name, each in self._placements_cache.items() if self._logs.find(name) is not None
            }

    def _record_away(self) -> None:
        """Record that this broker was stopped or isolated, so that others can have replaced it."""
        self._away_until = trio.current_time() + max(self._settings.replace_replicas_after_ms / 1000, AWAY_S)

    def explain(self, topic: str, number: int) -> Reason | None:
        """Return why the replicas of a log change, or why it is copied to a learner; None if neither happens."""
        found = self._log_table.topics.get(topic)
        log = None if found is None else self._logs.find(name_log(found.topic_id, number))
        if log is None:
            return None
        assigned = self._find_assigned(log)
        copied = (Reason.ASKED if assigned else Reason.MISSING) if log.replica.latest.learners else None
        return self._balancer.explain(self._placement_of(log), assigned) or copied

    def _placement_of(self, log: ReplicatedLog) -> LogPlacement:
        replica, assigned = log.replica, self._find_assigned(log)
        in_sync = replica.in_sync(within_s=IN_SYNC_S)
        replica_count = self._replica_count_of(log.topic, log.number)
        is_fixed = bool(assigned) or log.topic in self._logs.observed_topics
        return LogPlacement(log.name, replica.leader, replica.replicas, replica_count, in_sync, is_fixed=is_fixed)

    def _replica_count_of(self, name: str, number: int) -> int:
        """Return the intended number of replicas of a log."""
        if name in self._logs.observed_topics:
            return 1
        topic = self._log_table.topics[name]
        return len(topic.assignments.get(number, ())) or topic.replica_count or self._settings.replicas

    def _find_assigned(self, log: ReplicatedLog) -> tuple[str, ...]:
        """Return the replicas that an operator has assigned to a log; empty if brokers choose them."""
        topic = self._log_table.topics.get(log.topic)
        return () if topic is None else topic.assignments.get(log.number, ())

    def _find_ineligible(self, log: ReplicatedLog) -> frozenset[str]:
        """Return the brokers that lead a log only if no other replica can.

        They include replicas that an operator has reassigned, after their successors have become replicas.
        """
        ineligible_leaders, assigned = self._balancer.ineligible_leaders(log.name), self._find_assigned(log)
        present = frozenset(log.replica.replicas) if assigned else frozenset()
        return (
            ineligible_leaders | (present - set(assigned))
            if assigned and present.issuperset(assigned)
            else ineligible_leaders
        )

    def _assign(self, topic: Topic, number: int, replicas: tuple[str, ...]) -> None:
        """Move a log to the replicas that an operator has assigned, if this broker leads it.

        If one of them is drained or has died for good, brokers choose the replicas from then on.
        """
        log = self._logs.find(name_log(topic.topic_id, number))
        if log is None or not log.replica.may_append:
            return
        present = log.replica.replicas
        if not self._balancer.replaced.isdisjoint(replicas):
            self._request(AssignReplicas(topic.topic_id, number))
        elif not set(replicas) <= set(present):
            self._change(log.name, (*present, *(each for each in replicas if each not in present)), Reason.ASKED)
        elif set(replicas) != set(present) and {self._address} <= set(replicas) <= set(log.replica.in_sync()):
            self._change(log.name, replicas, Reason.ASKED)

    def _change(self, name: str, replicas: tuple[str, ...], reason: Reason) -> None:
        log = self._logs.find(name)
        actions = [] if log is None else self._logs.change_replicas(log, replicas)
        if log is not None and actions:
            before, after = (self._numbers_of(each) for each in (log.replica.replicas, replicas))
            _LOGGER.info(
                "log %d of %s goes from the brokers %s to %s: %s", log.number, log.topic, before, after, reason.value
            )
        self._act(actions)

    def _numbers_of(self, replicas: Iterable[str]) -> str:
        found = map(self._brokers.find, replicas)
        return ", ".join("?" if each is None else str(each.number) for each in found)

    async def _drop_replaced(self) -> None:
        """Delete the logs that other brokers replicate instead of this one."""
        for log in list(self._logs):
            if self._logs.keeps_log(log) or not self._indexes[log.name]:
                continue
            self._membership.subscribe_acknowledgements(log.replica.latest.leader_epoch.leader)
            if not log.replica.may_drop:
                continue
            indexes = self._indexes.pop(log.name)
            own = [attrs.evolve(each, topic=log.topic) for each in indexes]
            self._logs.drop(log)
            self._led_logs.forget(log.name)
            if trio.current_time() < self._away_until and not self._brokers.own.is_draining:
                # Others have replaced this broker while it was away.
                self._membership.update_registration(awaits_share=True)
            await self._deletion.delete_partitions([*indexes, *own]).wait()

    def _measure_space(self) -> None:
        """Announce the free space to other brokers if it has changed enough."""
        free, announced = _free_bytes(self._storage_url), self._brokers.own.free_bytes
        if abs(free - announced) > SPACE_STEP * max(announced, 1):
            self._membership.update_registration(free_bytes=free)

    def _count_under_replicated(self) -> None:
        """Announce the number of under-replicated logs if it has changed."""
        count = len(self.under_replicated())
        if count != self._brokers.own.under_replicated_logs:
            self._membership.update_registration(under_replicated_logs=count)

    def under_replicated(self) -> list[Log]:
        """Return the logs that this broker leads and that have too few living in-sync replicas."""
        usable = sum(not each.is_draining for each in self._brokers.all())
        found = []
        for log in self._log_table.all_logs():
            replica_count = min(self._replica_count_of(log.topic, log.number), usable)
            if log.leadership.is_led and len(self._brokers.alive.intersection(log.leadership.in_sync)) < replica_count:
                found.append(log)
        return found


def _free_bytes(url: str) -> int:
    """Return the free space of the file system that a storage is on, in bytes."""
    path = Path(url.partition(":")[2].partition("?")[0])
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free
