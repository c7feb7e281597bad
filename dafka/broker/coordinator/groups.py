"""The groups that this broker coordinates, for the Kafka and HTTP servers.

A position of a group is valid in the leader epoch that the group has read. If the log continues without the end of that
epoch, the group continues at the divergence: it can get records again, and misses none. All brokers know all epochs of
a log, so any coordinator can decide this.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Collection, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

import attrs

from dafka.broker.coordinator.coordinator_shard import CoordinatorError, CoordinatorShard
from dafka.broker.coordinator.coordinators import Coordinators, ask_shards
from dafka.broker.coordinator.participants import TransactionParticipants
from dafka.broker.coordinator.transaction_joins import TransactionJoins
from dafka.broker.core.coordination.effects import Action, Token
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.consumer.results import (
    ConsumerHeartbeatRequest,
    ConsumerHeartbeatResult,
    DescribedConsumerGroup,
)
from dafka.broker.core.groups.coordinator import GroupCoordinator
from dafka.broker.core.groups.group import GroupState
from dafka.broker.core.groups.results import (
    CommitRequest,
    DeleteOffsetsResult,
    DescribedGroup,
    FetchedOffset,
    JoinRequest,
    JoinResult,
    LeaveResult,
    LeavingMember,
    OffsetToCommit,
    SyncRequest,
    SyncResult,
)
from dafka.broker.core.groups.share.members import (
    DescribedShareGroup,
    ShareHeartbeatRequest,
    ShareHeartbeatResult,
)
from dafka.broker.core.groups.share.state import ShareState
from dafka.broker.core.log.producer_state import Producer
from dafka.broker.core.metadata.log_replicas import LogKey
from dafka.broker.core.metadata.topic_settings import MAJORITY, availability_of
from dafka.broker.core.metadata.topics import Topic
from dafka.broker.core.partition_address import name_log
from dafka.broker.core.positions import OFFSET_MAX, Offset
from dafka.broker.core.replication.epoch_tree import EpochTree
from dafka.broker.core.replication.records import EpochEnd
from dafka.broker.core.tables import BrokerTables
from dafka.broker.core.topic_partition import TopicPartition
from dafka.broker.log.durable_waits import DURABLE_S
from dafka.steady_clock import steady_now_ms

_T = TypeVar("_T")

_NOT_COMMITTED = FetchedOffset(-1, -1, "", ErrorCode.NONE)

SYNC_S = 300.0
"""How long the leader of a group can take to assign, in addition to the default rebalance timeout."""


@attrs.define(eq=False, slots=False)
class GroupCoordinators:
    """The groups of the shards that this broker serves. Results of its methods are durable."""

    _tables: BrokerTables
    _coordinators: Coordinators
    _participants: TransactionParticipants
    _joins: TransactionJoins

    def coordinators(self) -> list[GroupCoordinator]:
        """Return the coordinators of all groups here, for reading. Their state is possibly not durable yet."""
        return [shard.groups for shard in self._coordinators.served()]

    async def consumer_heartbeat(self, request: ConsumerHeartbeatRequest) -> ConsumerHeartbeatResult:
        """Add a member to a consumer group, keep it there, or remove it."""
        return await self._ask(
            request.group_id,
            lambda groups, token: groups.consumer_heartbeat(token, request, steady_now_ms()),
            ConsumerHeartbeatResult,
        )

    async def share_heartbeat(self, request: ShareHeartbeatRequest) -> ShareHeartbeatResult:
        """Add a member to a share group, keep it there, or remove it."""
        return await self._ask(
            request.group_id,
            lambda groups, token: groups.share_heartbeat(token, request, steady_now_ms()),
            ShareHeartbeatResult,
        )

    async def join_group(self, request: JoinRequest) -> JoinResult:
        """Add a member to a group, and wait until the group's members are known."""
        return await self._ask(
            request.group_id,
            lambda groups, token: groups.join_group(token, request, steady_now_ms()),
            lambda error: JoinResult(error, request.member_id),
            wait_s=DURABLE_S + max(request.rebalance_timeout_ms, 0) / 1000,
        )

    async def sync_group(self, request: SyncRequest) -> SyncResult:
        """Return the assignment of a member, once the group leader has assigned."""
        return await self._ask(
            request.group_id,
            lambda groups, token: groups.sync_group(token, request, steady_now_ms()),
            SyncResult,
            wait_s=DURABLE_S + SYNC_S,
        )

    async def heartbeat(
        self, group_id: str, generation_id: int, member_id: str, group_instance_id: str | None
    ) -> ErrorCode:
        """Extend the session of a member."""
        try:
            shard = self._coordinators.find(group_id)
            error = shard.groups.heartbeat(group_id, generation_id, member_id, group_instance_id, steady_now_ms())
            await shard.wait_committed()
        except CoordinatorError as lost:
            return lost.error_code
        return error

    async def leave_group(self, group_id: str, leaving: tuple[LeavingMember, ...]) -> LeaveResult:
        """Remove members from a group."""
        return await self._ask(
            group_id,
            lambda groups, token: groups.leave_group(token, group_id, leaving, steady_now_ms()),
            LeaveResult,
        )

    async def commit_offsets(self, request: CommitRequest) -> dict[TopicPartition, ErrorCode]:
        """Commit offsets of a group."""
        return await self._ask(
            request.group_id,
            lambda groups, token: groups.commit_offsets(token, self._name_topics(request), steady_now_ms()),
            lambda error: dict.fromkeys(request.offsets, error),
        )

    async def commit_transaction_offsets(
        self, request: CommitRequest, transactional_id: str, producer: Producer, *, adds_group: bool = False
    ) -> dict[TopicPartition, ErrorCode]:
        """Add offsets to the open transaction of a producer. They take effect when it is committed.

        With `adds_group`, the group is added to the transaction first.
        """
        try:
            shard = self._coordinators.find(request.group_id)
            refused = await self._joins.join_group(shard, transactional_id, producer, request.group_id, adds=adds_group)
            if refused:
                return dict.fromkeys(request.offsets, refused)
            refused = self._participants.check_group(shard, transactional_id, producer, request.group_id)
            if refused:
                await shard.wait_committed()
                return dict.fromkeys(request.offsets, refused)
            named = self._name_topics(request)
            errors: dict[TopicPartition, ErrorCode] = await shard.ask(
                lambda token: shard.groups.commit_transaction_offsets(
                    token, named, producer.producer_id, steady_now_ms()
                )
            )
        except CoordinatorError as error:
            return dict.fromkeys(request.offsets, error.error_code)
        return errors

    async def fetch_offsets(
        self, group_id: str, logs: Iterable[TopicPartition] | None = None, *, require_stable: bool = False
    ) -> dict[TopicPartition, FetchedOffset]:
        """Return the committed offset of a group for each log; if None, for all logs for which the group has one.

        A position beyond the point where its leader epoch diverges from the log is moved back to that point. With
        `require_stable`, offsets that an open transaction can change are refused: UNSTABLE_OFFSET_COMMIT asks the
        client to retry. Raise `CoordinatorError` if this broker does not coordinate the group, or another one has
        possibly begun to.
        """
        shard = self._coordinators.find(group_id)
        found = shard.groups.fetch_offsets(group_id, logs, require_stable=require_stable)
        await shard.confirm_read()
        offsets: dict[TopicPartition, FetchedOffset] = {}
        for partition, fetched in found.items():
            if not self._is_of_other_topic(partition, fetched):
                offsets[partition] = follow_divergences(self._tables, partition, fetched)
            elif logs is not None:
                offsets[partition] = _NOT_COMMITTED
        return offsets

    def check_reader(self, group_id: str, member_id: str, member_epoch: int) -> ErrorCode:
        """Return why a member may not read offsets; see `GroupCoordinator.check_reader`. Raise `CoordinatorError`."""
        return self._coordinators.find(group_id).groups.check_reader(group_id, member_id, member_epoch)

    def _is_of_other_topic(self, partition: TopicPartition, fetched: FetchedOffset) -> bool:
        """Return whether an offset was committed for a topic that was deleted, or recreated under the same name."""
        topic = self._tables.log_table.find_client_topic(partition.topic)
        if not fetched.topic_id or (topic is not None and topic.topic_id == fetched.topic_id):
            return False
        return topic is not None or fetched.topic_id in self._tables.state.deleted_ids

    async def delete_offsets(self, group_id: str, logs: Collection[TopicPartition]) -> DeleteOffsetsResult:
        """Delete committed offsets. Offsets of topics that the group reads stay."""
        return await self._ask(
            group_id, lambda groups, token: groups.delete_offsets(token, group_id, logs), DeleteOffsetsResult
        )

    async def list_groups(self, states: Iterable[str] = (), types: Iterable[str] = ()) -> list[DescribedGroup]:
        """Return the groups here, without their members; see `GroupCoordinator.list_groups`.

        Raises `CoordinatorError` if the storage fails.
        """
        return await self._coordinators.read(lambda shard: shard.groups.list_groups(states, types))

    async def describe_groups(self, group_ids: Iterable[str]) -> dict[str, DescribedGroup]:
        """Return the descriptions of groups of any type, by their names."""
        found, refused = await self._describe(group_ids, GroupCoordinator.describe_group)
        unknown = {
            group_id: DescribedGroup(group_id, error, GroupState.DEAD.value) for group_id, error in refused.items()
        }
        return found | unknown

    async def describe_consumer_groups(self, group_ids: Iterable[str]) -> dict[str, DescribedConsumerGroup]:
        """Return the descriptions of consumer groups with their epochs, by their names."""
        found, refused = await self._describe(group_ids, GroupCoordinator.describe_consumer_group)
        return found | {group_id: DescribedConsumerGroup(group_id, error) for group_id, error in refused.items()}

    async def describe_share_groups(self, group_ids: Iterable[str]) -> dict[str, DescribedShareGroup]:
        """Return the descriptions of share groups, by their names."""
        found, refused = await self._describe(group_ids, lambda groups, each: groups.shares.membership.describe(each))
        return found | {group_id: DescribedShareGroup(group_id, error) for group_id, error in refused.items()}

    async def share_states(self, group_id: str) -> Mapping[LogKey, ShareState] | None:
        """Return what a share group has done with the records of logs; None if there is no such group.

        Raise `CoordinatorError` as `fetch_offsets`.
        """
        shard = self._coordinators.find(group_id)
        found = shard.groups.shares.states_of(group_id)
        await shard.confirm_read()
        return found

    async def create_share_group(self, group_id: str, offsets: Mapping[LogKey, int]) -> ErrorCode:
        """Create a share group, unless there is one, which begins at offsets in logs in which it has not begun.

        The error is INCONSISTENT_GROUP_PROTOCOL if there is a group of another type with this name.
        """
        return await self._ask(
            group_id,
            lambda groups, token: groups.create_share_group(token, group_id, offsets, steady_now_ms()),
            ErrorCode,
        )

    async def set_share_starts(self, group_id: str, offsets: Mapping[LogKey, int]) -> ErrorCode:
        """Set where a share group without members continues in logs, and create it unless there is one."""
        return await self._ask(
            group_id,
            lambda groups, token: groups.set_share_starts(token, group_id, offsets, steady_now_ms()),
            ErrorCode,
        )

    async def delete_share_states(self, group_id: str, topic_ids: Container[str]) -> ErrorCode:
        """Forget what a share group without members has done with the records of topics."""
        return await self._ask(
            group_id, lambda groups, token: groups.shares.delete_states(token, group_id, topic_ids), ErrorCode
        )

    async def _ask(
        self,
        group_id: str,
        call: Callable[[GroupCoordinator, Token], Sequence[Action]],
        refuse: Callable[[ErrorCode], _T],
        *,
        wait_s: float = DURABLE_S,
    ) -> _T:
        """Call the coordinator of a group. Return its answer, or the refusal if this broker does not coordinate it."""
        try:
            shard = self._coordinators.find(group_id)
            result: _T = await shard.ask(lambda token: call(shard.groups, token), wait_s=wait_s)
        except CoordinatorError as error:
            return refuse(error.error_code)
        return result

    async def _describe(
        self, group_ids: Iterable[str], describe: Callable[[GroupCoordinator, str], _T]
    ) -> tuple[dict[str, _T], dict[str, ErrorCode]]:
        """Return the descriptions of groups, and the errors of groups that this broker does not coordinate."""

        async def ask(shard: CoordinatorShard) -> dict[str, _T]:
            found = {each: describe(shard.groups, each) for each in served[shard]}
            await shard.confirm_read()
            return found

        served, refused = self._coordinators.sort(group_ids)
        described: dict[str, _T] = {}
        for shard, found in (await ask_shards(ask, served)).items():
            if isinstance(found, ErrorCode):
                refused.update(dict.fromkeys(served[shard], found))
            else:
                described.update(found)
        return described, refused

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

    async def forget_topics(self, deleted: AsyncIterable[Topic]) -> None:
        """Start deleting the offsets of topics when these are deleted."""
        async for topic in deleted:
            for shard in self._coordinators.served():
                shard.execute(shard.groups.delete_topics({topic.topic_id}, topic.name))

    def _name_topics(self, request: CommitRequest) -> CommitRequest:
        """Return a request whose offsets name their topic id and leader epoch."""
        offsets = {}
        for partition, each in request.offsets.items():
            topic = self._tables.log_table.find_client_topic(partition.topic)
            topic_id = "" if topic is None else topic.topic_id
            offsets[partition] = name_epoch(self._tables, partition, each)._replace(topic_id=topic_id)
        return attrs.evolve(request, offsets=offsets)


def name_epoch(tables: BrokerTables, partition: TopicPartition, offset: OffsetToCommit) -> OffsetToCommit:
    """Return a position with the leader epoch in which it is valid, if the client does not name it.

    The clients on this broker's side of a split read the latest epoch that this broker knows.
    """
    tree = _find_tree(tables, partition)
    if tree is None or tree.latest is None or offset.leader_epoch >= 0:
        return offset
    return offset._replace(leader_epoch=tree.epoch_at(tree.latest.leader_epoch, Offset(offset.offset)))


def follow_divergences(tables: BrokerTables, partition: TopicPartition, fetched: FetchedOffset) -> FetchedOffset:
    """Return a position; the start of the divergence if the log does not contain the position's epoch up to it."""
    tree = _find_tree(tables, partition)
    if tree is None or tree.latest is None or fetched.leader_epoch < 0:
        return fetched
    read = next((epoch for epoch in tree.starts if epoch.epoch == fetched.leader_epoch), None)
    if read is None:
        return fetched
    divergence = tree.common_end(EpochEnd(read, Offset(fetched.offset)), EpochEnd(tree.latest.leader_epoch, OFFSET_MAX))
    if divergence is None or divergence.end_offset >= fetched.offset:
        return fetched
    return fetched._replace(leader_epoch=max(divergence.leader_epoch.epoch, 0), offset=divergence.end_offset)


def _find_tree(tables: BrokerTables, partition: TopicPartition) -> EpochTree | None:
    """Return the epoch tree of a log; None if it has none, or if clients read only records that cannot diverge."""
    topic = tables.log_table.topics.get(partition.topic)
    if topic is None or availability_of(topic) == MAJORITY:
        return None
    log = tables.logs.find(name_log(topic.topic_id, partition.partition))
    return None if log is None else log.replica.epoch_tree
