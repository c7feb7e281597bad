"""Serves the coordinator shards that this broker leads, and finds the brokers of all other shards."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import TypeVar

import trio

from dafka.broker.coordinator.coordinator_shard import CoordinatorError, CoordinatorShard
from dafka.broker.core.coordination.state_records import (
    COORDINATORS_TOPIC,
    SHARDS,
    shard_of,
)
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.log.log import Log
from dafka.broker.core.metadata.brokers import BrokerRegistration
from dafka.broker.node import BrokerNode
from dafka.errors import BatchError, NotLeaderError, StorageError

_LOGGER = logging.getLogger("dafka.broker")

_RETRY_S = 1.0
"""The time before another attempt to load a shard."""

_T = TypeVar("_T")


class Coordinators:
    """The shards of the coordinators.

    Args:
        broker: The broker.
        make_shard: Creates the shard of a log that this broker leads.
    """

    def __init__(self, broker: BrokerNode, make_shard: Callable[[Log], CoordinatorShard]) -> None:
        self._broker = broker
        self._make_shard = make_shard
        self._shards: list[CoordinatorShard | None] = [None] * SHARDS

    def find(self, name: str) -> CoordinatorShard:
        """Return the shard of a group or transactional id that this broker serves.

        Args:
            name: The group or transactional id.

        Returns:
            The shard.

        Raises:
            CoordinatorError: This broker does not serve the shard.
        """
        shard = self._shards[shard_of(name)]
        if shard is None:
            raise CoordinatorError(ErrorCode.NOT_COORDINATOR)
        if not shard.loaded.is_set():
            raise CoordinatorError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return shard

    def any(self) -> CoordinatorShard:
        """Return any shard that this broker serves.

        Returns:
            The shard.

        Raises:
            CoordinatorError: It serves no shard.
        """
        served = self.served()
        if not served:
            is_loading = any(shard is not None for shard in self._shards)
            loading, missing = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE
            raise CoordinatorError(loading if is_loading else missing)
        return served[0]

    def served(self) -> list[CoordinatorShard]:
        """Return the shards that this broker serves."""
        return [shard for shard in self._shards if shard is not None and shard.loaded.is_set()]

    async def read(self, read: Callable[[CoordinatorShard], list[_T]]) -> list[_T]:
        """Read from all shards of this broker, once the state read is durable.

        Args:
            read: Reads from a shard.

        Returns:
            The results of the shards that this broker still serves.

        Raises:
            CoordinatorError: The storage fails.
        """

        async def read_shard(shard: CoordinatorShard) -> list[_T]:
            result = read(shard)
            await shard.wait_committed()
            return result

        found: list[_T] = []
        for result in (await ask_shards(read_shard, self.served())).values():
            if isinstance(result, list):
                found += result
            elif result is not ErrorCode.NOT_COORDINATOR:
                raise CoordinatorError(result)
        return found

    def sort(self, names: Iterable[str]) -> tuple[dict[CoordinatorShard, list[str]], dict[str, ErrorCode]]:
        """Return groups or transactional ids by their shards, and error codes for those not served here."""
        served: dict[CoordinatorShard, list[str]] = {}
        refused: dict[str, ErrorCode] = {}
        for name in dict.fromkeys(names):
            try:
                served.setdefault(self.find(name), []).append(name)
            except CoordinatorError as error:
                refused[name] = error.error_code
        return served, refused

    def any_leader(self) -> str:
        """Return the address of a broker that leads any shard; empty if none is known."""
        leaders = (log.leadership.leader for log in self._broker.log_table.logs(COORDINATORS_TOPIC))
        return next(filter(self._broker.brokers.is_alive, leaders), "")

    def log_of(self, name: str) -> Log | None:
        """Return the log of a group or transactional id; None if it is not known yet."""
        return self._broker.log_table.find_log(COORDINATORS_TOPIC, shard_of(name))

    def broker_of(self, name: str) -> BrokerRegistration | None:
        """Return the broker that coordinates a group or transactional id; None if there is none now."""
        log, brokers = self.log_of(name), self._broker.brokers
        return None if log is None else brokers.find(brokers.leader_of(log.leadership))

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve the shards whose logs this broker leads, until cancelled.

        Args:
            task_status: All shards that do not wait for other brokers are loaded.

        Raises:
            StorageError: At the start, the storage fails, or a newer version of dafka has written the state.
        """
        await self._broker.ensure_internal_topic(COORDINATORS_TOPIC, SHARDS)
        async with trio.open_nursery() as nursery:
            for number in range(SHARDS):
                await nursery.start(self._serve, number)
            task_status.started()

    async def _serve(self, number: int, *, task_status: trio.TaskStatus[None]) -> None:
        """Serve a shard whenever this broker leads its log."""
        status: trio.TaskStatus[None] = task_status
        while True:
            # The log is replaced if this broker created the topic before it found other brokers that had it.
            log = self._broker.log_table.find_log(COORDINATORS_TOPIC, number)
            assert log is not None
            if log.leadership.is_led:
                await self._serve_epoch(log, status)
            else:
                if status is not trio.TASK_STATUS_IGNORED:
                    status.started()
                await self._broker.replicator.led_logs.wait_leadership(log)
            status = trio.TASK_STATUS_IGNORED

    async def _serve_epoch(self, log: Log, task_status: trio.TaskStatus[None]) -> None:
        """Serve a shard until this broker no longer leads its log in the same epoch."""
        shard = self._shards[log.number] = self._make_shard(log)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._wait_loss, shard, nursery.cancel_scope)
                await shard.run(task_status=task_status)
        except* NotLeaderError:
            pass
        except* StorageError as group:
            if task_status is not trio.TASK_STATUS_IGNORED:
                raise
            _LOGGER.error("cannot load the coordinator shard %d: %s", log.number, group.exceptions[0])
        except* BatchError as group:
            _LOGGER.error("cannot write the coordinator shard %d: %s", log.number, group.exceptions[0])
        finally:
            self._shards[log.number] = None
            shard.close()
        if shard.epoch == log.leadership.epoch and log.leadership.is_led:
            await trio.sleep(_RETRY_S)

    async def _wait_loss(self, shard: CoordinatorShard, scope: trio.CancelScope) -> None:
        log = shard.log
        while log.leadership.is_led and log.leadership.epoch == shard.epoch:
            await self._broker.replicator.led_logs.wait_leadership(log)
        scope.cancel()


async def ask_shards(
    ask: Callable[[CoordinatorShard], Awaitable[_T]], shards: Collection[CoordinatorShard]
) -> dict[CoordinatorShard, _T | ErrorCode]:
    """Call several shards concurrently.

    Args:
        ask: Calls a shard; can raise `CoordinatorError`.
        shards: The shards.

    Returns:
        The result of each shard, or the error code.
    """
    answers: dict[CoordinatorShard, _T | ErrorCode] = {}

    async def call(shard: CoordinatorShard) -> None:
        try:
            answers[shard] = await ask(shard)
        except CoordinatorError as error:
            answers[shard] = error.error_code

    async with trio.open_nursery() as nursery:
        for shard in shards:
            nursery.start_soon(call, shard)
    return answers
