"""Gives clients of HTTP and WebSocket access to groups, whichever broker coordinates them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import quote

import attrs
import trio

from dafka.broker.broker import Broker
from dafka.broker.coordinator.coordinator_shard import CoordinatorError
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.results import CommitRequest, DescribedGroup, OffsetToCommit
from dafka.broker.core.metadata.brokers import BrokerRegistration
from dafka.broker.core.metadata.log_replicas import LogKey
from dafka.broker.core.topic_partition import TopicPartition
from dafka.http.forwarding.broker_client import BrokerClient, BrokerError
from dafka.http.forwarding.leaders import RETRY_S
from dafka.http.logs.log_access import LEADER_WAIT_S
from dafka.http.queues.queue_access import Queue
from dafka.http.server.errors import WebError, group_not_found, topic_not_found

_ELSEWHERE = {
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
}


@attrs.frozen(eq=False)
class GroupAccess:
    """Access to groups, on this broker or on their coordinator.

    Without a client, which connects to other brokers, requests are not forwarded: another broker has forwarded them.
    """

    _broker: Broker
    _client: BrokerClient | None = None

    async def describe(self, name: str, describe: Callable[[DescribedGroup], Awaitable[Any]]) -> Any:
        """Return the document about a group.

        `describe` creates it if this broker coordinates the group. Raises `WebError` if there is no such group, or its
        coordinator cannot be reached.
        """

        async def here() -> Any:
            group = (await self._broker.groups.describe_groups([name]))[name]
            _check_here(group.error_code)
            if group.error_code:
                raise group_not_found(name)
            return await describe(group)

        return await self._reach(name, here, "GET", _path(name))

    async def fetch_offsets(self, name: str, topic: str) -> dict[int, int]:
        """Return the offsets that a group has committed in a topic, by log; none if the group does not exist.

        Raises `WebError` if its coordinator cannot be reached.
        """

        async def here() -> dict[str, Any]:
            found = await self._broker.groups.fetch_offsets(name)
            offsets = [{"topic": at.topic, "log": at.partition, "offset": each.offset} for at, each in found.items()]
            return {"offsets": offsets}

        try:
            document = await self._reach(name, here, "GET", _path(name))
        except WebError as error:
            if error.code != "group_not_found":
                raise
            return {}
        return {each["log"]: each["offset"] for each in document["offsets"] if each["topic"] == topic}

    async def delete(self, name: str) -> None:
        """Delete a group.

        Raises `WebError` if it has members or does not exist, or its coordinator cannot be reached.
        """

        async def here() -> None:
            error = (await self._broker.groups.delete_groups([name]))[name]
            _check_here(error)
            if error is ErrorCode.GROUP_ID_NOT_FOUND:
                raise group_not_found(name)
            if error:
                raise WebError("conflict", f"the group {name!r} has members: stop them first")

        await self._reach(name, here, "DELETE", _path(name), done="group_not_found")

    async def commit(self, name: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Commit offsets of a group, by log.

        Raises `WebError` if it has members or refuses the offsets, or its coordinator cannot be reached.
        """
        committed = {TopicPartition(topic, number): OffsetToCommit(offset) for number, offset in offsets.items()}

        async def here() -> None:
            errors = await self._broker.groups.commit_offsets(CommitRequest(group_id=name, offsets=committed))
            for error in errors.values():
                _check_here(error)
                if error is ErrorCode.GROUP_ID_NOT_FOUND:
                    raise WebError("conflict", f"{name!r} is a share group, which commits no offsets")
                if error is ErrorCode.UNKNOWN_MEMBER_ID:
                    raise WebError("conflict", f"the group {name!r} has members: stop them first")
                if error:
                    raise WebError("conflict", f"the group {name!r} refuses the offsets: {error.name}")

        document = {"topic": topic, "offsets": {str(number): offset for number, offset in offsets.items()}}
        await self._reach(name, here, "PUT", f"{_path(name)}/offsets", document)

    async def create_queue(self, queue: Queue, offsets: Mapping[int, int]) -> None:
        """Create the share group of a queue, unless there is one, which begins at offsets, by log.

        Raises `WebError` if there is a group of another type with this name, or its coordinator cannot be reached.
        """

        async def here() -> None:
            topic = self._broker.node.find_topic(queue.topic)
            if topic is None:
                raise topic_not_found(queue.topic)
            starts = {LogKey(topic.topic_id, number): offset for number, offset in offsets.items()}
            error = await self._broker.groups.create_share_group(queue.name, starts)
            _check_here(error)
            if error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL:
                raise WebError("conflict", f"the group {queue.name!r} is no share group")
            if error:
                raise WebError("conflict", f"the share group {queue.name!r} cannot be created: {error.name}")

        document = {"from": {"offsets": {str(number): offset for number, offset in offsets.items()}}}
        target = f"/topics/{quote(queue.topic, safe='')}/queues/{quote(queue.name, safe='')}"
        await self._reach(queue.name, here, "PUT", target, document)

    async def _reach(
        self,
        name: str,
        here: Callable[[], Awaitable[Any]],
        method: str,
        target: str,
        document: Any = None,
        *,
        done: str = "",
    ) -> Any:
        """Send a request to the coordinator of a group. Repeat it if the coordinator changes or its response is lost.

        `done` is the error code of its response if it has executed the request before.
        """
        deadline = trio.current_time() + LEADER_WAIT_S
        may_be_done = False
        while True:
            coordinator = self._broker.coordinator_of(name)
            try:
                if coordinator is None:
                    raise BrokerError("is not known at present")
                if coordinator.address == self._broker.node.address:
                    return await here()
                if self._client is None:
                    raise WebError("not_leader", f"another broker coordinates the group {name!r}")
                return await self._client.request(coordinator, method, target, document)
            except (CoordinatorError, BrokerError, WebError) as error:
                if may_be_done and isinstance(error, WebError) and error.code == done:
                    return None
                problem = self._find_problem(error)
            may_be_done = coordinator is not None
            if trio.current_time() + RETRY_S >= deadline:
                raise self._unavailable(name, coordinator, problem)
            await trio.sleep(RETRY_S)

    def _find_problem(self, error: CoordinatorError | BrokerError | WebError) -> str:
        """Return why the request is repeated; raise the error if it is not repeated."""
        if isinstance(error, WebError) and (error.code != "not_leader" or self._client is None):
            raise error
        return str(error) if isinstance(error, BrokerError) else "is changing"

    def _unavailable(self, name: str, coordinator: BrokerRegistration | None, problem: str) -> WebError:
        node = self._broker.node
        if coordinator is not None and coordinator.address == node.address and node.storage.waits.problem:
            return WebError("storage_failed", f"the group {name!r}: {node.storage.waits.problem}")
        return WebError("leader_unavailable", f"the broker that coordinates the group {name!r} {problem}")


def _check_here(error: ErrorCode) -> None:
    if error in _ELSEWHERE:
        raise CoordinatorError(error)


def _path(name: str) -> str:
    return f"/groups/{quote(name, safe='')}"
