"""The groups that this broker coordinates, for the Kafka and HTTP servers."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress

import attrs

from dafka.broker.coordinator.coordinator_shard import CoordinatorError, CoordinatorShard
from dafka.broker.coordinator.coordinators import Coordinators, ask_shards
from dafka.broker.coordinator.group_positions import follow_divergences, name_epoch
from dafka.broker.coordinator.participants import TransactionParticipants
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.coordinator import CommitRequest, DeleteOffsetsResult, FetchedOffset, GroupCoordinator
from dafka.broker.core.groups.group import GroupState
from dafka.broker.core.groups.results import (
    DescribedGroup,
    JoinRequest,
    JoinResult,
    LeaveResult,
    LeavingMember,
    SyncRequest,
    SyncResult,
)
from dafka.broker.core.log.producer_state import Producer
from dafka.broker.core.metadata.topics import Topic
from dafka.broker.core.topic_partition import TopicPartition
from dafka.broker.log.durable_waits import DURABLE_S
from dafka.broker.node import BrokerNode
from dafka.storage.plugin_helpers import now_ms

_NOT_COMMITTED = FetchedOffset(-1, -1, "", ErrorCode.NONE)

SYNC_S = 300.0
"""How long the leader of a group can take to assign, in addition to the default rebalance timeout."""


class GroupCoordinators:
    """The groups of the shards that this broker serves. Results of its methods are durable.

    Args:
        broker: The broker.
        coordinators: The shards.
        participants: The logs and groups that take part in transactions.
    """

    def __init__(self, broker: BrokerNode, coordinators: Coordinators, participants: TransactionParticipants) -> None:
        self._broker = broker
        self._coordinators = coordinators
        self._participants = participants

    def coordinators(self) -> list[GroupCoordinator]:
        """Return the coordinators of all groups here, for reading. Their state is possibly not durable yet."""
        return [shard.groups for shard in self._coordinators.served()]

    async def join_group(self, request: JoinRequest) -> JoinResult:
        """Add a member to a group, and wait until the group's members are known."""
        try:
            shard = self._coordinators.find(request.group_id)
            result: JoinResult = await shard.ask(
                lambda token: shard.groups.join_group(token, request, now_ms()),
                wait_s=DURABLE_S + max(request.rebalance_timeout_ms, 0) / 1000,
            )
        except CoordinatorError as error:
            return JoinResult(error.error_code, request.member_id)
        return result

    async def sync_group(self, request: SyncRequest) -> SyncResult:
        """Return the assignment of a member, once the group leader has assigned."""
        try:
            shard = self._coordinators.find(request.group_id)
            result: SyncResult = await shard.ask(
                lambda token: shard.groups.sync_group(token, request, now_ms()), wait_s=DURABLE_S + SYNC_S
            )
        except CoordinatorError as error:
            return SyncResult(error.error_code)
        return result

    async def heartbeat(
        self, group_id: str, generation_id: int, member_id: str, group_instance_id: str | None
    ) -> ErrorCode:
        """Extend the session of a member."""
        try:
            shard = self._coordinators.find(group_id)
            error = shard.groups.heartbeat(group_id, generation_id, member_id, group_instance_id, now_ms())
            await shard.wait_committed()
        except CoordinatorError as lost:
            return lost.error_code
        return error

    async def leave_group(self, group_id: str, leaving: tuple[LeavingMember, ...]) -> LeaveResult:
        """Remove members from a group."""
        try:
            shard = self._coordinators.find(group_id)
            result: LeaveResult = await shard.ask(
                lambda token: shard.groups.leave_group(token, group_id, leaving, now_ms())
            )
        except CoordinatorError as error:
            return LeaveResult(error.error_code)
        return result

    async def commit_offsets(self, request: CommitRequest) -> dict[TopicPartition, ErrorCode]:
        """Commit offsets of a group."""
        try:
            shard = self._coordinators.find(request.group_id)
            errors: dict[TopicPartition, ErrorCode] = await shard.ask(
                lambda token: shard.groups.commit_offsets(token, self._name_topics(request), now_ms())
            )
        except CoordinatorError as error:
            return dict.fromkeys(request.offsets, error.error_code)
        return errors

    async def commit_transaction_offsets(
        self, request: CommitRequest, transactional_id: str, producer: Producer
    ) -> dict[TopicPartition, ErrorCode]:
        """Add offsets to the open transaction of a producer. They take effect when it is committed."""
        try:
            shard = self._coordinators.find(request.group_id)
            refused = self._participants.check_group(shard, transactional_id, producer, request.group_id)
            if refused:
                await shard.wait_committed()
                return dict.fromkeys(request.offsets, refused)
            named = self._name_topics(request)
            errors: dict[TopicPartition, ErrorCode] = await shard.ask(
                lambda token: shard.groups.commit_transaction_offsets(token, named, producer.producer_id, now_ms())
            )
        except CoordinatorError as error:
            return dict.fromkeys(request.offsets, error.error_code)
        return errors

    async def fetch_offsets(
        self, group_id: str, logs: Iterable[TopicPartition] | None = None, *, require_stable: bool = False
    ) -> dict[TopicPartition, FetchedOffset]:
        """Return the committed offsets of a group.

        A position beyond the point where its leader epoch diverges from the log is moved back to that point.

        Args:
            group_id: The group.
            logs: The logs; None for all for which the group has offsets.
            require_stable: Whether to refuse offsets that an open transaction can change.

        Returns:
            An offset for each log. UNSTABLE_OFFSET_COMMIT asks the client to retry.

        Raises:
            CoordinatorError: This broker does not coordinate the group, or another one has possibly begun to.
        """
        shard = self._coordinators.find(group_id)
        found = shard.groups.fetch_offsets(group_id, logs, require_stable=require_stable)
        await shard.wait_committed()
        shard.check_lease()
        if logs is None:
            found = {
                partition: each for partition, each in found.items() if not self._is_of_other_topic(partition, each)
            }
        return {
            partition: _NOT_COMMITTED
            if self._is_of_other_topic(partition, fetched)
            else follow_divergences(self._broker, partition, fetched)
            for partition, fetched in found.items()
        }

    def _is_of_other_topic(self, partition: TopicPartition, fetched: FetchedOffset) -> bool:
        """Return whether an offset was committed for a topic that was deleted, or recreated under the same name."""
        topic = self._broker.find_topic(partition.topic)
        if not fetched.topic_id or (topic is not None and topic.topic_id == fetched.topic_id):
            return False
        return topic is not None or fetched.topic_id in self._broker.replicator.topic_table.deleted_ids

    async def delete_offsets(self, group_id: str, logs: Collection[TopicPartition]) -> DeleteOffsetsResult:
        """Delete committed offsets. Offsets of topics that the group reads stay."""
        try:
            shard = self._coordinators.find(group_id)
            result: DeleteOffsetsResult = await shard.ask(
                lambda token: shard.groups.delete_offsets(token, group_id, logs)
            )
        except CoordinatorError as error:
            return DeleteOffsetsResult(error.error_code)
        return result

    async def list_groups(self, states: Iterable[str] = (), types: Iterable[str] = ()) -> list[DescribedGroup]:
        """Return the groups here, without their members; see `GroupCoordinator.list_groups`.

        Raises `CoordinatorError` if the storage fails.
        """
        return await self._coordinators.read(lambda shard: shard.groups.list_groups(states, types))

    async def describe_groups(self, group_ids: Iterable[str]) -> dict[str, DescribedGroup]:
        """Return the descriptions of groups, by their names."""

        async def describe(shard: CoordinatorShard) -> list[DescribedGroup]:
            found = [shard.groups.describe_group(each) for each in served[shard]]
            await shard.wait_committed()
            shard.check_lease()
            return found

        served, refused = self._coordinators.sort(group_ids)
        described: dict[str, DescribedGroup] = {}
        for shard, found in (await ask_shards(describe, served)).items():
            if isinstance(found, ErrorCode):
                refused.update(dict.fromkeys(served[shard], found))
            else:
                described.update((each.group_id, each) for each in found)
        for group_id, error in refused.items():
            described[group_id] = DescribedGroup(group_id, error, GroupState.DEAD.value)
        return described

    async def delete_groups(self, group_ids: Iterable[str]) -> dict[str, ErrorCode]:
        """Delete groups that have no members."""

        async def delete(shard: CoordinatorShard) -> dict[str, ErrorCode]:
            errors: dict[str, ErrorCode] = await shard.ask(
                lambda token: shard.groups.delete_groups(token, served[shard])
            )
            return errors

        served, errors = self._coordinators.sort(group_ids)
        for shard, found in (await ask_shards(delete, served)).items():
            errors.update(dict.fromkeys(served[shard], found) if isinstance(found, ErrorCode) else found)
        return errors

    async def wait_committed(self) -> None:
        """Wait until the state of the groups here is durable, or the storage fails."""
        with suppress(CoordinatorError):
            await self._coordinators.read(lambda _shard: [])

    def forget_topic(self, topic: Topic) -> None:
        """Start deleting the offsets of a deleted topic."""
        for shard in self._coordinators.served():
            shard.execute(shard.groups.delete_topics({topic.topic_id}, topic.name))

    def _id_of(self, name: str) -> str:
        topic = self._broker.find_topic(name)
        return "" if topic is None else topic.topic_id

    def _name_topics(self, request: CommitRequest) -> CommitRequest:
        """Return a request whose offsets name their topic id and leader epoch."""
        offsets = {
            partition: name_epoch(self._broker, partition, each)._replace(topic_id=self._id_of(partition.topic))
            for partition, each in request.offsets.items()
        }
        return attrs.evolve(request, offsets=offsets)
