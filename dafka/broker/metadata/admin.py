"""What clients change in a cluster: its topics, their replicas, and its brokers."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import attrs
import trio

from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.log.log import Log
from dafka.broker.core.log.log_table import LogTable
from dafka.broker.core.metadata.commands import (
    AddLogs,
    AlterSettings,
    ChangeReplicas,
    Command,
    CreateTopic,
    DeleteTopic,
    DrainBroker,
    ForgetBroker,
    RecoverLog,
    SetFeatureLevel,
)
from dafka.broker.core.metadata.outcome import DONE
from dafka.broker.core.metadata.topics import LOGS_MAX, Topic, find_name_problem
from dafka.broker.core.tables import BrokerTables
from dafka.broker.log.durable_waits import DurableWaits
from dafka.broker.metadata.changes import CHANGE_S, ClusterChanges
from dafka.broker.metadata.metadata_log import MetadataLog
from dafka.broker.metadata.removal import BrokerLog, find_obstacle, list_logs
from dafka.errors import ConfigError, NoControllerError, RefusedChangeError
from dafka.internal_topics import check_no_system_topic
from dafka.records import new_address

_LOGGER = logging.getLogger("dafka.broker")


@attrs.define(eq=False, slots=False)
class ClusterAdmin:
    """Changes the cluster by commands of the controller, and waits until this broker has applied them.

    `log_count` is the number of logs of a topic by default.
    """

    _tables: BrokerTables
    _waits: DurableWaits
    _metadata: MetadataLog
    _changes: ClusterChanges
    _has_joined: trio.Event
    _log_count: int

    @property
    def _log_table(self) -> LogTable:
        return self._tables.log_table

    # Topics

    async def create_topic(
        self,
        name: str,
        log_count: int = 0,
        settings: Mapping[str, str] | None = None,
        replica_count: int = 0,
        *,
        placement: Sequence[Sequence[str]] = (),
        ordered_by: str = "",
    ) -> None:
        """Create a topic, and wait until this broker has it. A name that is being deleted is waited for.

        By default, the numbers of its logs and of their replicas are `[kafka] log_count` and `[broker] replicas`. The
        placement has the replicas of each log, the preferred leader first; if it is empty, the controller chooses the
        brokers with the fewest logs.

        Raise `ConfigError` if the name is taken or not valid, or the number of logs is not allowed, and
        `NoControllerError` if the cluster cannot agree on it now.
        """
        is_taken = self._log_table.find_client_topic(name) is not None
        problem = find_name_problem(name) or (f"there is a topic {name!r} already" if is_taken else "")
        count = log_count or self._log_count
        if not problem and not 0 < count <= LOGS_MAX:
            problem = f"a topic has from 1 to {LOGS_MAX} logs, not {count}"
        if problem:
            raise ConfigError(problem)
        placed = tuple(tuple(each) for each in placement)
        topic = Topic(name, new_address(), count, dict(settings or {}), replica_count, placed)
        while True:
            await self._wait_name(name)
            try:
                await self.change(CreateTopic(topic, is_assigned=bool(placed)), ordered_by)
            except RefusedChangeError as refused:
                if refused.error_code != ErrorCode.NOT_CONTROLLER:
                    raise
            else:
                return

    async def change_topic(
        self,
        name: str,
        *,
        log_count: int | None = None,
        settings: Mapping[str, str] | None = None,
        placement: Sequence[Sequence[str]] = (),
        ordered_by: str = "",
    ) -> None:
        """Add logs to an existing topic, or replace all its settings, and wait until this broker has the change.

        The placement has the replicas of each added log; if it is empty, the controller chooses them.
        None keeps the number of logs, which cannot decrease, or the settings. Raise `ConfigError` if the number of logs
        is not allowed, and `NoControllerError` if the cluster cannot agree on it now.
        """
        topic = self._log_table.topics[name]
        if log_count is not None and not topic.log_count <= log_count <= LOGS_MAX:
            raise ConfigError(f"the topic {name!r} can have from {topic.log_count} to {LOGS_MAX} logs, not {log_count}")
        if settings is not None:
            await self.change(AlterSettings(topic.topic_id, dict(settings)), ordered_by)
        if log_count is not None:
            placed = tuple(tuple(each) for each in placement)
            await self.change(AddLogs(topic.topic_id, log_count, placed, bool(placed)), ordered_by)

    async def delete_topic(self, name: str, *, ordered_by: str = "") -> None:
        """Delete an existing topic, and wait until its name is free. Its records are dropped after `delete_delay_ms`.

        With automatic creation of topics, a producer that writes to it later creates it again. Raise `ConfigError` if
        it is a system topic, and `NoControllerError` if the cluster cannot agree on it now.
        """
        check_no_system_topic(name)
        await self.change(DeleteTopic(self._log_table.topics[name].topic_id), ordered_by)
        await self._wait_name(name)

    async def ensure_internal_topic(self, name: str, log_count: int) -> Sequence[Log]:
        """Create a topic that only brokers use, whose name begins with `$`, unless it exists. Return its logs."""
        await self._has_joined.wait()
        while name not in self._log_table.topics:
            try:
                await self._changes.change(CreateTopic(Topic(name, new_address(), log_count)))
            except (NoControllerError, RefusedChangeError) as error:
                _LOGGER.info("the topic %s is not created yet: %s", name, error)
        return self._log_table.logs(name)

    async def _wait_name(self, name: str) -> None:
        """Wait until no topic of this name is being deleted. Raise `NoControllerError` if that takes too long."""
        with trio.move_on_after(CHANGE_S) as scope:
            await self._metadata.wait_until(lambda: name not in self._tables.state.deleting)
        if scope.cancelled_caught:
            raise NoControllerError(f"the topic {name!r} is deleted, but its name is not free yet: try again")

    # Replicas

    async def change_replicas(self, log: Log, replicas: Sequence[str], *, ordered_by: str = "") -> None:
        """Order other replicas for a log that any broker leads. New ones copy it first, then the former ones leave.

        The preferred leader is first. The log keeps this number of replicas; one that is drained or dies for good
        gets a successor. Without any, a change under way is cancelled, and the number is that of the topic again. Raise
        `ConfigError` if an address is not that of a broker, or occurs twice, and `NoControllerError` if the cluster
        cannot agree on it now.
        """
        topic, ordered = self._log_table.topics[log.topic], tuple(replicas)
        command = ChangeReplicas(topic.topic_id, log.number, ordered, assigned_count=len(ordered))
        await self.change(command, ordered_by)

    async def recover_log(self, log: Log, store_id: str, *, is_dry_run: bool = False, ordered_by: str = "") -> None:
        """Continue a log with what one broker stores of it, because a quorum of its replicas is lost for good.

        Records that only others have are lost. If all brokers that have stored the log are forgotten, it continues
        without records. A dry run only checks whether it can. Raise `ConfigError` if the log has a quorum, or the
        broker is not alive, or only others have stored it. Raise `NoControllerError` if the cluster cannot agree on it
        now.
        """
        topic = self._log_table.topics[log.topic]
        command = RecoverLog(topic.topic_id, log.number, store_id)
        await self._change_or_check(command, ordered_by, is_dry_run=is_dry_run)

    # Brokers

    async def set_draining(self, store_id: str, *, is_draining: bool, ordered_by: str = "") -> None:
        """Start or stop draining a broker: moving its logs to others, so that it can be removed.

        Raise `ConfigError` if there is no such broker, and `NoControllerError` if the cluster cannot agree on it now.
        """
        await self.change(DrainBroker(store_id, is_draining), ordered_by)

    def describe_removal(self, store_id: str) -> list[BrokerLog]:
        """Return the logs that a broker stores, and what its removal means for each, as far as this broker knows."""
        return list_logs(self._tables, store_id)

    async def forget_broker(
        self, store_id: str, *, accepts_loss: bool = False, is_dry_run: bool = False, ordered_by: str = ""
    ) -> None:
        """Remove a broker whose store is lost. Its number is free then, and other brokers replace its replicas.

        Its store never belongs to the cluster again. A dry run only checks whether it can. Raise `ConfigError` if there
        is no such broker, or it is alive, or a log has no quorum without it, unless `accepts_loss`. Raise
        `NoControllerError` if the cluster cannot agree on it now.
        """
        await self._change_or_check(ForgetBroker(store_id, accepts_loss), ordered_by, is_dry_run=is_dry_run)

    async def set_feature_level(self, level: int, *, is_dry_run: bool = False, ordered_by: str = "") -> None:
        """Raise the feature level of the cluster, which is never lowered again. A dry run only checks whether it can.

        Raise `ConfigError` if a broker does not support the level, or it is lower than the present one, and
        `NoControllerError` if the cluster cannot agree on it now.
        """
        outcome = self._tables.state.members.check_level(level)
        if is_dry_run and outcome is not DONE:
            raise RefusedChangeError(outcome.reason, outcome.error)
        if not is_dry_run:
            await self.change(SetFeatureLevel(level), ordered_by)

    # Commands

    async def change(self, command: Command, ordered_by: str = "") -> None:
        """Request a command of the controller, and wait until it is applied here; see `ClusterChanges.change`."""
        self._waits.check()
        with self._waits.bounded(2 * CHANGE_S):
            with trio.move_on_after(CHANGE_S):
                await self._has_joined.wait()
            await self._changes.change(command, ordered_by)

    async def _change_or_check(self, command: Command, ordered_by: str, *, is_dry_run: bool) -> None:
        """Request a command, or only check whether it can take effect, as far as this broker knows."""
        if not is_dry_run:
            await self.change(command, ordered_by)
        elif refused := find_obstacle(self._tables, command):
            raise RefusedChangeError(refused.reason, refused.error)
