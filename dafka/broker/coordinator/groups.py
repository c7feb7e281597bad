"""The groups that this broker coordinates, for its listeners."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress

import attrs

from dafka.broker.coordinator.coordinator_shard import CoordinatorError, CoordinatorShard
from dafka.broker.coordinator.coordinators import Coordinators, ask_slots
from dafka.broker.coordinator.group_positions import follow_branches, name_branch
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
"""How long the leader of a group may take to assign, beyond what a rebalance takes by default."""


class GroupCoordinators:
    """The groups of the slots that this broker serves. Whatever its methods return is durable.

    Args:
        broker: The broker.
        coordinators: The slots.
        participants: The logs and groups that take part in transactions.
    """

    def __init__(self, broker: BrokerNode, coordinators: Coordinators, participants: TransactionParticipants) -> None:
        self._broker = broker
        self._coordinators = coordinators
        self._participants = participants

    def coordinators(self) -> list[GroupCoordinator]:
        """Return the coordinators of all groups here, for reading. What they say may not be durable yet."""
        return [slot.groups for slot in self._coordinators.served()]

    async def join_group(self, request: JoinRequest) -> JoinResult:
        """Add a member to a group, and wait until the group's members are known."""
        try:
            slot = self._coordinators.find(request.group_id)
            result: JoinResult = await slot.ask(
                lambda token: slot.groups.join_group(token, request, now_ms()),
                wait_s=DURABLE_S + max(request.rebalance_timeout_ms, 0) / 1000,
            )
        except CoordinatorError as error:
            return JoinResult(error.error_code, request.member_id)
        return result

    async def sync_group(self, request: SyncRequest) -> SyncResult:
        """Return a member's assignment when the group's leader has sent it."""
        try:
            slot = self._coordinators.find(request.group_id)
            result: SyncResult = await slot.ask(
                lambda token: slot.groups.sync_group(token, request, now_ms()), wait_s=DURABLE_S + SYNC_S
            )
        except CoordinatorError as error:
            return SyncResult(error.error_code)
        return result

    async def heartbeat(
        self, group_id: str, generation_id: int, member_id: str, group_instance_id: str | None
    ) -> ErrorCode:
        """Extend the session of a member."""
        try:
            slot = self._coordinators.find(group_id)
            error = slot.groups.heartbeat(group_id, generation_id, member_id, group_instance_id, now_ms())
            await slot.wait_committed()
        except CoordinatorError as lost:
            return lost.error_code
        return error

    async def leave_group(self, group_id: str, leaving: tuple[LeavingMember, ...]) -> LeaveResult:
        """Remove members from a group."""
        try:
            slot = self._coordinators.find(group_id)
            result: LeaveResult = await slot.ask(
                lambda token: slot.groups.leave_group(token, group_id, leaving, now_ms())
            )
        except CoordinatorError as error:
            return LeaveResult(error.error_code)
        return result

    async def commit_offsets(self, request: CommitRequest) -> dict[TopicPartition, ErrorCode]:
        """Commit offsets of a group."""
        try:
            slot = self._coordinators.find(request.group_id)
            errors: dict[TopicPartition, ErrorCode] = await slot.ask(
                lambda token: slot.groups.commit_offsets(token, self._name_topics(request), now_ms())
            )
        except CoordinatorError as error:
            return dict.fromkeys(request.offsets, error.error_code)
        return errors

    async def commit_transaction_offsets(
        self, request: CommitRequest, transactional_id: str, producer: Producer
    ) -> dict[TopicPartition, ErrorCode]:
        """Add offsets to the open transaction of a producer. They count when it is committed."""
        try:
            slot = self._coordinators.find(request.group_id)
            refused = self._participants.check_group(slot, transactional_id, producer, request.group_id)
            if refused:
                await slot.wait_committed()
                return dict.fromkeys(request.offsets, refused)
            named = self._name_topics(request)
            errors: dict[TopicPartition, ErrorCode] = await slot.ask(
                lambda token: slot.groups.commit_transaction_offsets(token, named, producer.producer_id, now_ms())
            )
        except CoordinatorError as error:
            return dict.fromkeys(request.offsets, error.error_code)
        return errors

    async def fetch_offsets(
        self, group_id: str, logs: Iterable[TopicPartition] | None = None, *, require_stable: bool = False
    ) -> dict[TopicPartition, FetchedOffset]:
        """Return the committed offsets of a group.

        A position in a branch that the log does not continue is moved back to where the branches part.

        Args:
            group_id: The group.
            logs: The logs; None for all for which the group has offsets.
            require_stable: Whether to refuse offsets that an open transaction may change.

        Returns:
            For each log an offset. UNSTABLE_OFFSET_COMMIT asks the client to try again.

        Raises:
            CoordinatorError: This broker does not coordinate the group, or another one may have begun to.
        """
        slot = self._coordinators.find(group_id)
        found = slot.groups.fetch_offsets(group_id, logs, require_stable=require_stable)
        await slot.wait_committed()
        slot.check_lease()
        if logs is None:
            found = {place: each for place, each in found.items() if not self._is_of_other_topic(place, each)}
        return {
            place: _NOT_COMMITTED
            if self._is_of_other_topic(place, fetched)
            else follow_branches(self._broker, place, fetched)
            for place, fetched in found.items()
        }

    def _is_of_other_topic(self, place: TopicPartition, fetched: FetchedOffset) -> bool:
        """Return whether an offset was committed for a topic that has given its name to another one, or is deleted."""
        topic = self._broker.find_topic(place.topic)
        if not fetched.topic_id or (topic is not None and topic.topic_id == fetched.topic_id):
            return False
        return topic is not None or fetched.topic_id in self._broker.replicator.topic_table.deleted_ids

    async def delete_offsets(self, group_id: str, logs: Collection[TopicPartition]) -> DeleteOffsetsResult:
        """Delete committed offsets, except those of topics that the group reads."""
        try:
            slot = self._coordinators.find(group_id)
            result: DeleteOffsetsResult = await slot.ask(
                lambda token: slot.groups.delete_offsets(token, group_id, logs)
            )
        except CoordinatorError as error:
            return DeleteOffsetsResult(error.error_code)
        return result

    async def list_groups(self, states: Iterable[str] = (), types: Iterable[str] = ()) -> list[DescribedGroup]:
        """Return the groups here, without their members; see `GroupCoordinator.list_groups`.

        Raises `CoordinatorError` if the storage fails.
        """
        return await self._coordinators.read(lambda slot: slot.groups.list_groups(states, types))

    async def describe_groups(self, group_ids: Iterable[str]) -> dict[str, DescribedGroup]:
        """Return everything about groups, by their names."""

        async def describe(slot: CoordinatorShard) -> list[DescribedGroup]:
            found = [slot.groups.describe_group(each) for each in served[slot]]
            await slot.wait_committed()
            slot.check_lease()
            return found

        served, refused = self._coordinators.sort(group_ids)
        described: dict[str, DescribedGroup] = {}
        for slot, found in (await ask_slots(describe, served)).items():
            if isinstance(found, ErrorCode):
                refused.update(dict.fromkeys(served[slot], found))
            else:
                described.update((each.group_id, each) for each in found)
        for group_id, error in refused.items():
            described[group_id] = DescribedGroup(group_id, error, GroupState.DEAD.value)
        return described

    async def delete_groups(self, group_ids: Iterable[str]) -> dict[str, ErrorCode]:
        """Delete groups that have no members."""

        async def delete(slot: CoordinatorShard) -> dict[str, ErrorCode]:
            errors: dict[str, ErrorCode] = await slot.ask(lambda token: slot.groups.delete_groups(token, served[slot]))
            return errors

        served, errors = self._coordinators.sort(group_ids)
        for slot, found in (await ask_slots(delete, served)).items():
            errors.update(dict.fromkeys(served[slot], found) if isinstance(found, ErrorCode) else found)
        return errors

    async def wait_committed(self) -> None:
        """Wait until everything is durable that the groups here know, or the storage fails."""
        with suppress(CoordinatorError):
            await self._coordinators.read(lambda _slot: [])

    def forget_topic(self, topic: Topic) -> None:
        """Begin to delete the offsets of a topic that is deleted."""
        for slot in self._coordinators.served():
            slot.execute(slot.groups.delete_topics({topic.topic_id}, topic.name))

    def _id_of(self, name: str) -> str:
        topic = self._broker.find_topic(name)
        return "" if topic is None else topic.topic_id

    def _name_topics(self, request: CommitRequest) -> CommitRequest:
        """Return a request whose offsets say for which topic and branch they count."""
        offsets = {
            place: name_branch(self._broker, place, each)._replace(topic_id=self._id_of(place.topic))
            for place, each in request.offsets.items()
        }
        return attrs.evolve(request, offsets=offsets)
