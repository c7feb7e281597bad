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
from dafka.broker.core.tables import BrokerTables
from dafka.broker.replication.leader import LedLogs
from dafka.errors import BatchError, NotLeaderError, StorageError
from dafka.exceptions import describe_group

_LOGGER = logging.getLogger("dafka.broker")

_RETRY_S = 1.0
"""The time before another attempt to load a shard."""

_T = TypeVar("_T")


class Coordinators:
    """The shards of the coordinators. `make_shard` creates the shard of a log that this broker leads."""

    def __init__(self, tables: BrokerTables, led_logs: LedLogs, make_shard: Callable[[Log], CoordinatorShard]) -> None:
        self._log_table = tables.log_table
        self._brokers = tables.brokers
        self._led_logs = led_logs
        self._make_shard = make_shard
        self._shards: list[CoordinatorShard | None] = [None] * SHARDS

    def find(self, name: str) -> CoordinatorShard:
        """Return the shard of a group or transactional id. Raise `CoordinatorError` if it is not served here."""
        shard = self._shards[shard_of(name)]
        if shard is None:
            raise CoordinatorError(ErrorCode.NOT_COORDINATOR)
        if not shard.loaded.is_set():
            raise CoordinatorError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return shard

    def any(self) -> CoordinatorShard:
        """Return any shard that this broker serves. Raise `CoordinatorError` if it serves none."""
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
        """Return the results of reading from all shards that this broker serves, once the state read is durable.

        Raise `CoordinatorError` if the storage fails.
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
        leaders = (log.leadership.leader for log in self._log_table.logs(COORDINATORS_TOPIC))
        return next(filter(self._brokers.is_alive, leaders), "")

    def log_of(self, name: str) -> Log | None:
        """Return the log of a group or transactional id; None if it is not known yet."""
        return self._log_table.find_log(COORDINATORS_TOPIC, shard_of(name))

    def broker_of(self, name: str) -> BrokerRegistration | None:
        """Return the broker that coordinates a group or transactional id; None if there is none now."""
        log = self.log_of(name)
        return None if log is None else self._brokers.find(self._brokers.leader_of(log.leadership))

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve the shards whose logs this broker leads, until cancelled. The topic of the logs exists.

        It has started when all shards are loaded that do not wait for other brokers. Raise `StorageError` if, at the
        start, the storage fails or a newer version of dafka has written the state.
        """
        async with trio.open_nursery() as nursery:
            for number in range(SHARDS):
                await nursery.start(self._serve, number)
            task_status.started()

    async def _serve(self, number: int, *, task_status: trio.TaskStatus[None]) -> None:
        """Serve a shard whenever this broker leads its log."""
        status: trio.TaskStatus[None] = task_status
        while True:
            # The log is replaced if this broker created the topic before it found other brokers that had it.
            log = self._log_table.find_log(COORDINATORS_TOPIC, number)
            assert log is not None
            if log.leadership.is_led:
                await self._serve_epoch(log, status)
            else:
                if status is not trio.TASK_STATUS_IGNORED:
                    status.started()
                await self._led_logs.wait_leadership(log)
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
            _LOGGER.error("cannot load the coordinator shard %d: %s", log.number, describe_group(group))
        except* BatchError as group:
            _LOGGER.error("cannot write the coordinator shard %d: %s", log.number, describe_group(group))
        finally:
            self._shards[log.number] = None
            shard.close()
        if shard.epoch == log.leadership.epoch and log.leadership.is_led:
            await trio.sleep(_RETRY_S)

    async def _wait_loss(self, shard: CoordinatorShard, scope: trio.CancelScope) -> None:
        log = shard.log
        while log.leadership.is_led and log.leadership.epoch == shard.epoch:
            await self._led_logs.wait_leadership(log)
        scope.cancel()


async def ask_shards(
    ask: Callable[[CoordinatorShard], Awaitable[_T]], shards: Collection[CoordinatorShard]
) -> dict[CoordinatorShard, _T | ErrorCode]:
    """Call several shards concurrently. Return the result of each one, or the code of its `CoordinatorError`."""
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
