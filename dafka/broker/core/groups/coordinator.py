"""The group coordinator: the members and offsets of groups, and the requests of administrators."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping
from typing import TypeAlias

import attrs

from dafka.broker.core.coordination.effects import Action, Answer, Token, write_state
from dafka.broker.core.coordination.state_records import GROUPS_TOPIC, OFFSETS_TOPIC, StateRecord, decode_key
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.consumer.assignors import DEFAULT_ASSIGNORS, Assignor
from dafka.broker.core.groups.consumer.group import ConsumerGroup
from dafka.broker.core.groups.consumer.members import JOINING_EPOCH
from dafka.broker.core.groups.consumer.membership import ConsumerMembership
from dafka.broker.core.groups.consumer.migration import is_classic, make_classic_group, make_consumer_group
from dafka.broker.core.groups.consumer.records import (
    CONSUMER_GROUP,
    CONSUMER_MEMBER,
    decode_consumer_group,
    decode_member,
)
from dafka.broker.core.groups.consumer.results import (
    ConsumerHeartbeatRequest,
    ConsumerHeartbeatResult,
    DescribedConsumerGroup,
)
from dafka.broker.core.groups.group import Group, GroupState
from dafka.broker.core.groups.membership import Membership
from dafka.broker.core.groups.offsets import CommittedOffsets
from dafka.broker.core.groups.records import CommittedOffset, decode_group, decode_offset, encode_group_tombstone
from dafka.broker.core.groups.results import (
    CommitRequest,
    DeleteOffsetsResult,
    DescribedGroup,
    FetchedOffset,
    JoinRequest,
    JoinResult,
    LeaveResult,
    LeavingMember,
    LeftMember,
    SyncRequest,
)
from dafka.broker.core.groups.settings import GroupSettings
from dafka.broker.core.groups.share.coordinator import SHARE_KINDS, ShareCoordinator
from dafka.broker.core.groups.share.members import ShareGroup, ShareHeartbeatRequest, ShareHeartbeatResult
from dafka.broker.core.groups.subscriptions import CONSUMER_PROTOCOL
from dafka.broker.core.log.log_table import LogTable
from dafka.broker.core.metadata.log_replicas import LogKey
from dafka.broker.core.topic_partition import TopicPartition
from dafka.errors import StorageFormatError

AnyGroup: TypeAlias = Group | ConsumerGroup | ShareGroup


class GroupCoordinator:
    """The groups and committed offsets of one shard. `make_id` returns a unique text, such as a UUID.

    `shares` has the share groups. Other types of groups cannot have their names.

    To restart: `restore` every record in order, then `start`.
    """

    def __init__(
        self,
        settings: GroupSettings,
        make_id: Callable[[], str],
        log_table: LogTable,
        assignors: Mapping[str, Assignor] = DEFAULT_ASSIGNORS,
    ) -> None:
        self._settings = settings
        self._log_table = log_table
        self._membership = Membership(settings, make_id)
        self._consumers = ConsumerMembership(settings, log_table, make_id, assignors)
        self.shares = ShareCoordinator(settings, log_table, make_id)
        self._memberships = (self._membership, self._consumers, self.shares.membership)
        self._offsets = CommittedOffsets()
        self._next_check_ms: int | None = None

    def restore(self, record: StateRecord) -> None:
        """Restore a record of `$groups` or `$offsets`.

        Raise `StorageFormatError` if it is malformed, or a newer version of dafka has written it.
        """
        if record.topic == GROUPS_TOPIC:
            self._restore_group(record)
        elif record.topic == OFFSETS_TOPIC:
            self._offsets.restore(*decode_offset(record))
        else:
            raise StorageFormatError(f"{record.topic} has no records of groups")

    def _restore_group(self, record: StateRecord) -> None:
        kind = decode_key(record)[0]
        if kind in SHARE_KINDS:
            self.shares.restore(record)
        elif kind == CONSUMER_GROUP:
            self._consumers.restore_group(*decode_consumer_group(record))
        elif kind == CONSUMER_MEMBER:
            self._consumers.restore_member(*decode_member(record))
        else:
            self._membership.restore(*decode_group(record))

    def start(self, now_ms: int) -> None:
        """Begin to serve, after all records were restored. All sessions begin at this time."""
        for group_id in self._offsets.group_ids():
            if self._find(group_id) is None:
                self._membership.restore(group_id, Group(group_id, now_ms))
        self._membership.start(now_ms)
        self._consumers.start(now_ms)
        self.shares.membership.start(now_ms)
        self._next_check_ms = now_ms + self._settings.offsets_retention_check_interval_ms

    def next_deadline_ms(self) -> int | None:
        """Return when to call `advance`; None before `start`."""
        deadlines = (self._next_check_ms, *(each.next_deadline_ms() for each in self._memberships))
        return min((each for each in deadlines if each is not None), default=None)

    def advance(self, now_ms: int) -> list[Action]:
        """Expire sessions, phases of rebalances, and offsets."""
        actions = self._membership.advance(now_ms) + self._consumers.advance(now_ms) + self._restore_classic(now_ms)
        actions += self.shares.membership.advance(now_ms)
        if self._next_check_ms is not None and self._next_check_ms <= now_ms:
            self._next_check_ms = now_ms + self._settings.offsets_retention_check_interval_ms
            actions += write_state(self._expire_offsets(now_ms))
        return actions

    def consumer_heartbeat(self, token: Token, request: ConsumerHeartbeatRequest, now_ms: int) -> list[Action]:
        """Join or leave a consumer group, or stay in it. The result is a `ConsumerHeartbeatResult`.

        A classic group whose members are consumers becomes a consumer group when a member joins it like this.
        """
        if request.group_id in self.shares.membership.groups:
            message = f"{request.group_id!r} is a share group"
            return [Answer(token, ConsumerHeartbeatResult(ErrorCode.GROUP_ID_NOT_FOUND, message))]
        classic, actions = self._membership.groups.get(request.group_id), list[Action]()
        if classic is not None and request.member_epoch == JOINING_EPOCH and self._consumers.check(request) is None:
            converted = make_consumer_group(classic, self._log_table, now_ms)
            if converted is None:
                message = f"the members of the classic group {request.group_id!r} are no consumers"
                return [Answer(token, ConsumerHeartbeatResult(ErrorCode.GROUP_ID_NOT_FOUND, message))]
            actions = self._replace(classic, converted, now_ms)
        actions += self._consumers.heartbeat(token, request, now_ms)
        return actions + self._restore_classic(now_ms, request.group_id)

    def share_heartbeat(self, token: Token, request: ShareHeartbeatRequest, now_ms: int) -> list[Action]:
        """Join or leave a share group, or stay in it. The result is a `ShareHeartbeatResult`."""
        other = self._find(request.group_id)
        if other is None or isinstance(other, ShareGroup):
            return self.shares.membership.heartbeat(token, request, now_ms)
        message = f"{request.group_id!r} is a {other.group_type} group, and no share group"
        return [Answer(token, ShareHeartbeatResult(ErrorCode.GROUP_ID_NOT_FOUND, message))]

    def create_share_group(
        self, token: Token, group_id: str, offsets: Mapping[LogKey, int], now_ms: int
    ) -> list[Action]:
        """Create a share group; see `ShareCoordinator.create_group`.

        The error is INCONSISTENT_GROUP_PROTOCOL if there is a group of another type with this name.
        """
        if isinstance(self._find(group_id), ShareGroup | None):
            return self.shares.create_group(token, group_id, offsets, now_ms)
        return [Answer(token, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)]

    def set_share_starts(self, token: Token, group_id: str, offsets: Mapping[LogKey, int], now_ms: int) -> list[Action]:
        """Set where a share group continues; see `ShareCoordinator.set_starts`.

        The error is GROUP_ID_NOT_FOUND if there is a group of another type with this name.
        """
        if not group_id:
            return [Answer(token, ErrorCode.INVALID_GROUP_ID)]
        if isinstance(self._find(group_id), ShareGroup | None):
            return self.shares.set_starts(token, group_id, offsets, now_ms)
        return [Answer(token, ErrorCode.GROUP_ID_NOT_FOUND)]

    def _replace(self, classic: Group, converted: ConsumerGroup, now_ms: int) -> list[Action]:
        """Replace a classic group by the consumer group that is made of it, unless it has no members."""
        if classic.is_unused:
            return write_state(self._discard(classic))
        records = self._consumers.add_group(converted, now_ms)
        tombstones = [encode_group_tombstone(classic.group_id)] if classic.generation_id else []
        return write_state([*tombstones, *records]) + self._membership.release_group(classic.group_id)

    def _restore_classic(self, now_ms: int, *group_ids: str) -> list[Action]:
        """Make classic groups of consumer groups with classic clients only, if they are named or have shrunk."""
        actions = list[Action]()
        for group_id in sorted(self._consumers.take_shrunk().union(group_ids)):
            group = self._consumers.groups.get(group_id)
            classic = make_classic_group(group, now_ms) if group is not None and is_classic(group) else None
            if classic is not None:
                actions += write_state(self._consumers.release_group(group_id))
                actions += self._membership.adopt_group(classic, now_ms)
        return actions

    def join_group(self, token: Token, request: JoinRequest, now_ms: int) -> list[Action]:
        """Join a group. The result is a `JoinResult`, often a later one."""
        if request.group_id in self.shares.membership.groups:
            return [Answer(token, JoinResult(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, request.member_id))]
        consumer, records = self._consumers.groups.get(request.group_id), list[StateRecord]()
        if consumer is not None and not self._membership.check_join(request):
            if consumer.has_members:
                actions = self._consumers.classic.join_group(token, request, now_ms)
                return actions + self._restore_classic(now_ms, request.group_id)
            records = self._discard(consumer)
        return [*write_state(records), *self._membership.join_group(token, request, now_ms)]

    def sync_group(self, token: Token, request: SyncRequest, now_ms: int) -> list[Action]:
        """Get a member's assignment. The result is a `SyncResult`, often a later one."""
        if request.group_id in self._consumers.groups:
            return [Answer(token, self._consumers.classic.sync_group(request, now_ms))]
        return self._membership.sync_group(token, request, now_ms)

    def heartbeat(
        self, group_id: str, generation_id: int, member_id: str, group_instance_id: str | None, now_ms: int
    ) -> ErrorCode:
        """Extend the session of a member. Return the result."""
        group = self._consumers.classic if group_id in self._consumers.groups else self._membership
        return group.heartbeat(group_id, generation_id, member_id, group_instance_id, now_ms)

    def leave_group(self, token: Token, group_id: str, leaving: tuple[LeavingMember, ...], now_ms: int) -> list[Action]:
        """Remove members from a group. The result is a `LeaveResult`."""
        if group_id not in self._consumers.groups:
            return self._membership.leave_group(token, group_id, leaving, now_ms)
        left, records = list[LeftMember](), list[StateRecord]()
        for each in leaving:
            error, removed = self._consumers.classic.leave(group_id, each, now_ms)
            left.append(LeftMember(*each, error))
            records += removed
        answer = Answer(token, LeaveResult(ErrorCode.NONE, tuple(left)))
        return [*write_state(records), *self._restore_classic(now_ms), answer]

    def commit_offsets(self, token: Token, request: CommitRequest, now_ms: int) -> list[Action]:
        """Commit offsets. The result is a dict of `ErrorCode` by log."""
        return self._commit(token, request, None, now_ms)

    def commit_transaction_offsets(
        self, token: Token, request: CommitRequest, producer_id: int, now_ms: int
    ) -> list[Action]:
        """Add offsets to the open transaction of a producer. They are committed with it.

        The caller calls `TransactionCoordinator.check_group` first. The result is a dict of `ErrorCode` by log.
        """
        return self._commit(token, request, producer_id, now_ms)

    def end_transaction(self, group_id: str, producer_id: int, is_commit: bool) -> list[Action]:
        """Commit or discard the pending offsets of a producer's transaction for a group."""
        return write_state(self._offsets.end_transaction(group_id, producer_id, is_commit))

    def fetch_offsets(
        self, group_id: str, logs: Iterable[TopicPartition] | None, *, require_stable: bool = False
    ) -> dict[TopicPartition, FetchedOffset]:
        """Return the committed offsets of a group for some logs; for all logs that have one if None.

        With `require_stable`, the error of offsets that an open transaction can change is UNSTABLE_OFFSET_COMMIT, which
        asks the client to retry.
        """
        unstable = self._offsets.unstable_logs(group_id) if require_stable else frozenset[TopicPartition]()
        committed = self._offsets.all_of(group_id)
        wanted = list(committed.keys() | unstable) if logs is None else logs
        return {log: _fetched(committed.get(log), log in unstable) for log in wanted}

    def check_reader(self, group_id: str, member_id: str, member_epoch: int) -> ErrorCode:
        """Return the error of a member of a consumer group that reads offsets in an epoch that it no longer has.

        It could begin to read a log behind what its next reader has committed.
        """
        is_consumer_group = group_id in self._consumers.groups
        return self._consumers.check_member(group_id, member_id, member_epoch) if is_consumer_group else ErrorCode.NONE

    def delete_offsets(self, token: Token, group_id: str, logs: Collection[TopicPartition]) -> list[Action]:
        """Delete committed offsets, but not of topics that the group reads. The result is a `DeleteOffsetsResult`."""
        group = self._find(group_id)
        if group is None:
            return [Answer(token, DeleteOffsetsResult(ErrorCode.GROUP_ID_NOT_FOUND))]
        subscribed = frozenset[str]()
        if group.has_members:
            if group.protocol_type != CONSUMER_PROTOCOL:
                return [Answer(token, DeleteOffsetsResult(ErrorCode.NON_EMPTY_GROUP))]
            topics = group.subscribed_topics()
            subscribed = frozenset(log.topic for log in logs) if topics is None else topics
        errors = {
            log: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if log.topic in subscribed else ErrorCode.NONE for log in logs
        }
        records = self._offsets.delete(group_id, [log for log, error in errors.items() if not error])
        return [*write_state(records), Answer(token, DeleteOffsetsResult(ErrorCode.NONE, errors))]

    def delete_topics(self, topic_ids: Container[str], name: str = "") -> list[Action]:
        """Delete the offsets and states of deleted topics; see `CommittedOffsets.delete_topics`."""
        offsets = self._offsets.delete_topics(topic_ids, name)
        records = [*offsets, *self.shares.delete_topics(topic_ids)]
        return [*write_state(records), *self.shares.drop_replaced()]

    def list_groups(self, states: Iterable[str] = (), types: Iterable[str] = ()) -> list[DescribedGroup]:
        """Return the groups in some states or of some types, without their members; all if none are given.

        States and types have Kafka's names, in any case.
        """
        wanted, wanted_types = ({each.lower() for each in names} for names in (states, types))
        return [
            attrs.evolve(group.describe(), members=())
            for group in self._groups()
            if (not wanted or group.state.value.lower() in wanted)
            and (not wanted_types or group.group_type in wanted_types)
        ]

    def describe_group(self, group_id: str) -> DescribedGroup:
        """Return the description of a group, of any type."""
        group = self._find(group_id)
        if group is None:
            return DescribedGroup(group_id, ErrorCode.GROUP_ID_NOT_FOUND, GroupState.DEAD.value)
        return group.describe()

    def describe_consumer_group(self, group_id: str) -> DescribedConsumerGroup:
        """Return the description of a consumer group, with epochs and targets."""
        return self._consumers.describe(group_id)

    def _groups(self) -> list[AnyGroup]:
        return [group for each in self._memberships for group in each.groups.values()]

    def _find(self, group_id: str) -> AnyGroup | None:
        found = (each.groups.get(group_id) for each in self._memberships)
        return next((group for group in found if group is not None), None)

    def delete_groups(self, token: Token, group_ids: Iterable[str]) -> list[Action]:
        """Delete groups without members. The result is a dict of `ErrorCode` by group."""
        errors, records = dict[str, ErrorCode](), list[StateRecord]()
        for group_id in group_ids:
            group = self._find(group_id)
            if group is None:
                errors.setdefault(group_id, ErrorCode.GROUP_ID_NOT_FOUND)
            elif not group.is_unused:
                errors[group_id] = ErrorCode.NON_EMPTY_GROUP
            else:
                errors[group_id] = ErrorCode.NONE
                records += self._offsets.delete_group(group_id)
                records += self._discard(group)
        return [*write_state(records), *self.shares.drop_replaced(), Answer(token, errors)]

    def _commit(self, token: Token, request: CommitRequest, producer_id: int | None, now_ms: int) -> list[Action]:
        error = self._check_commit(request, producer_id is not None, now_ms)
        if error:
            return [Answer(token, dict.fromkeys(request.offsets, error))]
        expire_timestamp_ms = None
        if request.retention_ms is not None and request.retention_ms >= 0:
            expire_timestamp_ms = now_ms + request.retention_ms
        errors, accepted = dict[TopicPartition, ErrorCode](), dict[TopicPartition, CommittedOffset]()
        for log, (offset, leader_epoch, metadata, topic_id) in request.offsets.items():
            errors[log] = ErrorCode.NONE
            if len((metadata or "").encode(errors="surrogatepass")) > self._settings.offset_metadata_max_bytes:
                errors[log] = ErrorCode.OFFSET_METADATA_TOO_LARGE
                continue
            accepted[log] = CommittedOffset(
                offset=offset,
                leader_epoch=leader_epoch,
                metadata=metadata or "",
                commit_timestamp_ms=now_ms,
                expire_timestamp_ms=expire_timestamp_ms,
                topic_id=topic_id,
            )
        records = self._offsets.commit(request.group_id, accepted, producer_id)
        return [*write_state(records), Answer(token, errors)]

    def _check_commit(self, request: CommitRequest, is_transactional: bool, now_ms: int) -> ErrorCode:
        """Return the error of a commit, or NONE. A member's commit counts as a heartbeat."""
        if not request.group_id:
            return ErrorCode.INVALID_GROUP_ID
        group = self._find(request.group_id)
        if group is None:
            if request.generation_id >= 0:
                return ErrorCode.ILLEGAL_GENERATION
            group = self._membership.add_group(request.group_id, now_ms)
            return ErrorCode.NONE if group else ErrorCode.GROUP_MAX_SIZE_REACHED
        if isinstance(group, ShareGroup):
            return ErrorCode.GROUP_ID_NOT_FOUND
        # A client that chooses its logs itself has no generation, but it can have an instance id.
        is_free = request.generation_id < 0 and not group.has_members
        is_member = request.generation_id >= 0 or request.member_id or request.group_instance_id is not None
        if is_member and not is_free:
            return self._check_member_commit(group, request, is_transactional, now_ms)
        return ErrorCode.NONE if is_free or is_transactional else ErrorCode.UNKNOWN_MEMBER_ID

    def _check_member_commit(
        self, group: Group | ConsumerGroup, request: CommitRequest, is_transactional: bool, now_ms: int
    ) -> ErrorCode:
        if isinstance(group, ConsumerGroup):
            error = self._consumers.check_member(group.group_id, request.member_id, request.generation_id)
            is_stale = error is ErrorCode.STALE_MEMBER_EPOCH and is_transactional
            return ErrorCode.ILLEGAL_GENERATION if is_stale else error
        error = group.check_generation(request.member_id, request.group_instance_id, request.generation_id)
        if error:
            return error
        self._membership.record_activity(group, request.member_id, now_ms)
        is_assigning = group.state is GroupState.COMPLETING_REBALANCE and not is_transactional
        return ErrorCode.REBALANCE_IN_PROGRESS if is_assigning else ErrorCode.NONE

    def _expire_offsets(self, now_ms: int) -> list[StateRecord]:
        """Delete expired offsets, and groups that have nothing left."""
        records = list[StateRecord]()
        for group in self._groups():
            is_empty = not group.has_members
            topics = frozenset[str]() if is_empty else group.subscribed_topics()
            if topics is not None:
                records += self._offsets.expire(
                    group.group_id,
                    now_ms,
                    retention_ms=self._settings.offsets_retention_ms,
                    unused_since_ms=group.state_since_ms if is_empty and group.protocol_type else None,
                    subscribed_topics=topics,
                )
            is_kept = group.group_id in self._offsets or self.shares.has_states(group.group_id)
            if group.is_unused and not is_kept:
                records += self._discard(group)
        return records

    def _discard(self, group: AnyGroup) -> list[StateRecord]:
        """Forget an unused group. Return the records to write."""
        if isinstance(group, ShareGroup):
            return self.shares.discard_group(group.group_id)
        if isinstance(group, ConsumerGroup):
            return self._consumers.discard_group(group.group_id)
        self._membership.discard_group(group.group_id)
        return [encode_group_tombstone(group.group_id)] if group.generation_id else []


def _fetched(committed: CommittedOffset | None, is_unstable: bool) -> FetchedOffset:
    if is_unstable:
        return FetchedOffset(-1, -1, "", ErrorCode.UNSTABLE_OFFSET_COMMIT)
    if committed is None:
        return FetchedOffset(-1, -1, "", ErrorCode.NONE)
    return FetchedOffset(
        committed.offset, committed.leader_epoch, committed.metadata, ErrorCode.NONE, committed.topic_id
    )
