"""Makes the changes of replicas that were ordered, and deletes logs that this broker no longer replicates."""

from __future__ import annotations

import logging
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import attrs
import trio

from dafka.broker.core.log.log import Log
from dafka.broker.core.metadata.commands import Command, ReplicasChanged
from dafka.broker.core.metadata.log_replicas import LogReplicas, Reason, next_replicas, recovery_of
from dafka.broker.core.metadata.planner import find_ineligible_leaders
from dafka.broker.core.metadata.topics import Topic
from dafka.broker.core.partition_address import name_log
from dafka.broker.core.replication.replicated_logs import LogAction, ReplicatedLog
from dafka.broker.core.tables import BrokerTables
from dafka.broker.log.damaged_logs import DamagedLogs
from dafka.broker.log.deletion import RecordDeletion
from dafka.broker.replication.leader import IN_SYNC_S, LedLogs
from dafka.broker.replication.membership import Membership
from dafka.config import Config
from dafka.records import Partition
from dafka.storage.disk_space import measure_disk

_LOGGER = logging.getLogger("dafka.broker")

REASSIGNING_S = 1.0
"""Seconds between two checks of the logs whose replicas change."""

RETRY_S = 5.0
"""How long an election for other replicas can take until it is held again, in seconds."""

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
        damaged: DamagedLogs,
        request: Callable[[Command], None],
        act: Callable[[Iterable[LogAction]], None],
        membership: Membership,
    ) -> None:
        self._settings = config.broker
        self._storage_url = config.store.storage
        self._state = tables.state
        self._log_table = tables.log_table
        self._brokers = tables.brokers
        self._logs = tables.logs
        self._address = tables.brokers.own.address
        self._led_logs = led_logs
        self._deletion = deletion
        self._indexes = indexes
        self._damaged = damaged
        self._request = request
        self._act = act
        self._membership = membership
        self._ineligible: frozenset[str] = frozenset()
        self._damaged_replicas: dict[str, frozenset[str]] = {}
        self._changing: dict[str, float] = {}
        self._replaced: dict[str, None] = {}
        self._counted_at: tuple[object, ...] = ()
        self._under_replicated: list[Log] = []
        self._delete_delay_s = config.broker.delete_delay_ms / 1000
        self._droppable_since: dict[str, float] = {}
        self._unreadable_since: dict[str, float] = {}

    def apply_state(self) -> None:
        """Take note of the logs that other replicas were ordered for."""
        for key in self._state.replicas.take_touched():
            log = self._logs.find(name_log(*key))
            if log is not None:
                self.prefer_leaders(log)
                self._look_at(log)

    def _look_at(self, log: ReplicatedLog) -> None:
        """Look at a log soon: its replicas may have to change, or its records to go."""
        self._changing.setdefault(log.name, float("-inf"))
        self._replaced[log.name] = None

    async def run(self) -> None:
        """Change replicas until cancelled."""
        while True:
            await trio.sleep(REASSIGNING_S)
            self.measure_space()
            ineligible = find_ineligible_leaders(self._state, self._brokers, self._settings.least_free_bytes)
            damaged = self._brokers.living_by_log(lambda each: each.damaged_logs)
            if (ineligible, damaged) != (self._ineligible, self._damaged_replicas):
                self._ineligible, self._damaged_replicas = ineligible, damaged
                for log in self._logs:
                    self.prefer_leaders(log)
            unreadable = self._brokers.living_by_log(lambda each: each.unreadable_logs)
            self._act(self._logs.set_unreadable(unreadable, trio.current_time()))
            for log in self._logs.take_changed():
                self.prefer_leaders(log)
                self._look_at(log)
            for name in list(self._changing):
                if not self._continue_change(name):
                    del self._changing[name]
            self._count_under_replicated()
            await self._drop_replaced()
            await self._drop_unreadable()
            self._announce_damaged()

    # Replicas that were ordered

    def _find_ordered(self, log: ReplicatedLog) -> LogReplicas | None:
        """Return the replicas that a log should have; None for the log of metadata, which all brokers store."""
        topic = self._state.find_id(log.topic_id)
        return None if topic is None else self._state.replicas.of(topic, log.number)

    def prefer_leaders(self, log: ReplicatedLog) -> None:
        """Set the preferred leaders of a log, and the ineligible ones: also replicas that are damaged or must leave."""
        ordered = self._find_ordered(log)
        ineligible = self._ineligible | self._damaged_replicas.get(log.name, frozenset())
        if ordered is None:
            self._logs.set_preferences(log, (), ineligible)
        else:
            leaving = set(log.replica.latest.replicas).difference(ordered.replicas)
            self._logs.set_preferences(log, ordered.replicas, ineligible | leaving)

    def _continue_change(self, name: str) -> bool:
        """Continue a change of a log that this broker leads. Return whether there is more to do later."""
        log = self._logs.find(name)
        ordered = None if log is None else self._find_ordered(log)
        if log is not None and ordered is not None and self._must_recover(log, ordered):
            self._recover(log, ordered)
            return True
        if log is None or ordered is None or log.replica.led_epoch is None:
            return False
        present, now = log.replica.latest, trio.current_time()
        if present.generation == ordered.generation and set(present.replicas) == set(ordered.replicas):
            if ordered.is_changing and not present.learners and log.replica.has_established_replicas:
                epoch = present.leader_epoch.epoch
                self._request(ReplicasChanged(log.topic_id, log.number, ordered.generation, epoch))
            return ordered.is_changing
        in_sync = log.replica.in_sync(within_s=IN_SYNC_S)
        replicas = next_replicas(ordered, present, present.generation, self._address, in_sync)
        is_requested = log.replica.elections.state.election is not None and now < self._changing[name] + RETRY_S
        if replicas is not None and not is_requested:
            self._changing[name] = now
            self._change(log, replicas, ordered)
        return True

    def _must_recover(self, log: ReplicatedLog, ordered: LogReplicas) -> bool:
        """Return whether an operator has ordered that this replica continues a log alone, and it has not yet."""
        is_due = recovery_of(log.replica.newest.generation) < recovery_of(ordered.generation)
        return is_due and ordered.reason is Reason.RECOVERED and ordered.replicas == (self._address,)

    def _recover(self, log: ReplicatedLog, ordered: LogReplicas) -> None:
        now = trio.current_time()
        if now >= self._changing[log.name] + RETRY_S:
            self._changing[log.name] = now
            end, end_offset = log.replica.local_epochs.log_end()
            _LOGGER.warning(
                "log %d of %s continues from this broker alone, at offset %d of leader epoch %d: %s",
                log.number,
                log.topic,
                end_offset,
                end.epoch,
                ordered.reason.sentence,
            )
            self._act(self._logs.recover(log, ordered.generation))

    def _change(self, log: ReplicatedLog, replicas: tuple[str, ...], ordered: LogReplicas) -> None:
        actions = self._logs.change_replicas(log, replicas, ordered.generation)
        if actions:
            before, after = (self._numbers_of(each) for each in (log.replica.replicas, replicas))
            reason = ordered.reason.sentence
            _LOGGER.info(
                "log %d of %s goes from the brokers %s to %s: %s", log.number, log.topic, before, after, reason
            )
        self._act(actions)

    def _numbers_of(self, replicas: Iterable[str]) -> str:
        found = map(self._brokers.find, replicas)
        return ", ".join("?" if each is None else str(each.number) for each in found)

    async def _drop_replaced(self) -> None:
        """Delete the logs that this broker has been removed from, `delete_delay_ms` later; damaged ones at once.

        A committed change has removed it, an epoch of that change or of a later one has begun without it, and the
        others have everything that it could provide.
        """
        now, droppable_since, self._droppable_since = trio.current_time(), self._droppable_since, {}
        for name in list(self._replaced):
            log = self._logs.find(name)
            ordered = None if log is None else self._find_ordered(log)
            if log is None or ordered is None or self._logs.keeps_log(log) or not self._indexes[name]:
                del self._replaced[name]
                continue
            self._membership.subscribe_acknowledgements(log.replica.latest.leader_epoch.leader)
            is_removed = self._address not in (*ordered.replicas, *ordered.former)
            if not is_removed or log.replica.newest.generation < ordered.generation or not log.replica.may_drop:
                continue
            since = self._droppable_since[name] = droppable_since.get(name, now)
            damaged = self._damaged.partitions(name)
            if now - since < self._delete_delay_s and not damaged:
                continue
            del self._replaced[name]
            self._logs.drop(log)
            self._led_logs.forget(name)
            await self._delete_copy(name, log.topic)

    async def _drop_unreadable(self) -> None:
        """Delete the logs whose damaged index cannot be loaded, `delete_delay_ms` after others replicate them instead.

        This broker takes no part in such a log, so nobody can rely on its copy.
        """
        now, unreadable_since, self._unreadable_since = trio.current_time(), self._unreadable_since, {}
        for name in self._damaged.names:
            topic_id, _, number = name.rpartition("/")
            topic = self._state.find_id(topic_id)
            if topic is None:
                self._damaged.forget(name)
                continue
            ordered = self._state.replicas.of(topic, int(number))
            if self._logs.find(name) is not None or self._address in (*ordered.replicas, *ordered.former):
                continue
            since = self._unreadable_since[name] = unreadable_since.get(name, now)
            if now - since >= self._delete_delay_s:
                await self._delete_copy(name, topic.name)

    async def _delete_copy(self, name: str, topic: str) -> None:
        """Delete the partitions that this broker has of a log of a topic."""
        indexes = self._indexes.pop(name, set())
        records = [attrs.evolve(each, topic=topic) for each in indexes]
        await self._deletion.delete_partitions([*indexes, *records]).wait()
        self._damaged.forget(name)

    # What others see of this broker

    def measure_space(self) -> None:
        """Announce the free space to other brokers if it has changed enough."""
        free, announced = _free_bytes(self._storage_url), self._brokers.own.free_bytes
        if abs(free - announced) > SPACE_STEP * max(announced, 1):
            self._membership.update_registration(free_bytes=free)

    def _announce_damaged(self) -> None:
        """Announce the logs of which records are damaged here if they have changed."""
        for name in self._damaged.names:
            log = self._logs.find(name)
            self._damaged.record_end(name, None if log is None else log.replica.local_epochs.log_end().end_offset)
        found: dict[str, Any] = {
            "damaged_logs": self._damaged.names,
            "logs_to_copy": self._damaged.to_copy,
            "unreadable_logs": self._damaged.unreadable,
        }
        if attrs.evolve(self._brokers.own, **found) != self._brokers.own:
            self._membership.update_registration(**found)

    def _count_under_replicated(self) -> None:
        """Announce the number of under-replicated logs if it has changed."""
        count = len(self.under_replicated())
        if count != self._brokers.own.under_replicated_logs:
            self._membership.update_registration(under_replicated_logs=count)

    def under_replicated(self) -> list[Log]:
        """Return the logs that this broker leads and that have too few living in-sync replicas."""
        usable = sum(not each.is_draining for each in self._brokers.all())
        seen = (self._brokers.alive, usable, self._state.applied, self._led_logs.changes)
        if seen != self._counted_at:  # there can be thousands of logs, of which most never change
            self._counted_at, alive = seen, self._brokers.alive
            self._under_replicated = [
                log
                for log in self._log_table.all_logs()
                if log.leadership.is_led
                and len(alive.intersection(log.leadership.in_sync)) < min(self.wanted_count(log), usable)
            ]
        return self._under_replicated

    def wanted_count(self, log: Log) -> int:
        """Return how many replicas a log should have."""
        topic: Topic | None = self._state.topics.get(log.topic)
        if topic is None or log.number >= topic.log_count:
            return 1
        return self._state.replicas.of(topic, log.number).count(topic, self._settings.replicas)


def _free_bytes(url: str) -> int:
    """Return the free space of the disk that a storage is on, or else of the current folder, in bytes."""
    found = measure_disk(url)
    return shutil.disk_usage(".").free if found is None else found.free
