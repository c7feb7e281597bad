"""The members of consumer groups: their heartbeats, and the time limits (KIP-848).

A heartbeat tells what a member wants and has, and its response what it gets. A member that sends none for the session
timeout is removed, and so is one that does not give up logs within its rebalance timeout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs

from dafka.broker.core.coordination.effects import Action, Answer, Token, write_state
from dafka.broker.core.coordination.state_records import StateRecord
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.consumer.assignors import Assignor
from dafka.broker.core.groups.consumer.classic_members import ClassicMembers
from dafka.broker.core.groups.consumer.group import ConsumerGroup, StoredGroup
from dafka.broker.core.groups.consumer.members import (
    JOINING_EPOCH,
    LEAVING_EPOCH,
    NOTHING,
    PAUSING_EPOCH,
    Member,
    MemberState,
    Subscription,
)
from dafka.broker.core.groups.consumer.rebalancing import ConsumerRebalancer
from dafka.broker.core.groups.consumer.records import (
    StoredMember,
    encode_group,
    encode_group_tombstone,
    encode_member,
    encode_member_tombstone,
)
from dafka.broker.core.groups.consumer.results import (
    ConsumerHeartbeatRequest,
    ConsumerHeartbeatResult,
    DescribedConsumerGroup,
    DescribedMember,
)
from dafka.broker.core.groups.settings import GroupSettings
from dafka.broker.core.log.log_table import LogTable
from dafka.broker.core.patterns import PatternError, compile_pattern, find_matching


class ConsumerMembership:
    """The members of all consumer groups. `make_id` returns a unique text, such as a UUID."""

    def __init__(
        self,
        settings: GroupSettings,
        log_table: LogTable,
        make_id: Callable[[], str],
        assignors: Mapping[str, Assignor],
    ) -> None:
        self._settings = settings
        self._make_id = make_id
        self._groups: dict[str, ConsumerGroup] = {}
        self._rebalancer = ConsumerRebalancer(settings, log_table, assignors)
        self.classic = ClassicMembers(settings, self._groups, self._rebalancer, make_id)

    @property
    def groups(self) -> Mapping[str, ConsumerGroup]:
        """All groups by name."""
        return self._groups

    def next_deadline_ms(self) -> int | None:
        """Return when to call `advance`; None if there is no deadline."""
        return self._rebalancer.next_deadline_ms()

    def advance(self, now_ms: int) -> list[Action]:
        """Remove the members whose time limits have passed."""
        return write_state(self._rebalancer.expire(self._groups, now_ms))

    def restore_group(self, group_id: str, stored: StoredGroup | None) -> None:
        """Restore a group from its record, or forget it if the record is a tombstone."""
        if stored is None:
            self._groups.pop(group_id, None)
        else:
            self._find_or_add(group_id).restore(stored)

    def restore_member(self, group_id: str, member_id: str, stored: StoredMember | None) -> None:
        """Restore a member from its record, or forget it if the record is a tombstone."""
        if stored is not None:
            group = self._find_or_add(group_id)
            group.put(stored.member)
            group.targets[member_id] = stored.target
        elif (known := self._groups.get(group_id)) is not None and member_id in known.members:
            known.remove(member_id, known.state_since_ms)

    def start(self, now_ms: int) -> None:
        """Begin the sessions of restored members. Call it once, after the last record was restored."""
        for group in self._groups.values():
            self._rebalancer.restart(group, now_ms)

    def discard_group(self, group_id: str) -> list[StateRecord]:
        """Forget an unused group. Return the records to write."""
        assert self._groups.pop(group_id).is_unused
        return [encode_group_tombstone(group_id)]

    def add_group(self, group: ConsumerGroup, now_ms: int) -> list[StateRecord]:
        """Add a group that had members of the classic protocol only. Return the records to write."""
        self._groups[group.group_id] = group
        self._rebalancer.restart(group, now_ms)
        return [encode_group(group), *(encode_member(group, each) for each in group.members)]

    def take_shrunk(self) -> set[str]:
        """Return the groups from which members were removed since the last call."""
        return self._rebalancer.take_shrunk()

    def release_group(self, group_id: str) -> list[StateRecord]:
        """Forget a group that has members. Return the records to write."""
        group = self._groups.pop(group_id)
        self._rebalancer.release(group)
        return [encode_group_tombstone(group_id), *(encode_member_tombstone(group_id, each) for each in group.members)]

    def heartbeat(self, token: Token, request: ConsumerHeartbeatRequest, now_ms: int) -> list[Action]:
        """Join or leave a group, or stay in it. The result is a `ConsumerHeartbeatResult`."""
        refused = self.check(request)
        if refused is not None:
            return [Answer(token, refused)]
        if request.member_epoch in {LEAVING_EPOCH, PAUSING_EPOCH}:
            return self._leave(token, request, now_ms)
        is_joining = request.member_epoch == JOINING_EPOCH
        group = self._groups.get(request.group_id)
        if group is None and is_joining and len(self._groups) < self._settings.groups_max:
            group = ConsumerGroup(request.group_id, now_ms)
        if group is None:
            error = ErrorCode.GROUP_MAX_SIZE_REACHED if is_joining else ErrorCode.UNKNOWN_MEMBER_ID
            return [Answer(token, ConsumerHeartbeatResult(error))]
        found = self._find_to_join(group, request) if is_joining else self._find_present(group, request)
        if isinstance(found, ConsumerHeartbeatResult):
            return [Answer(token, found)]
        self._groups[group.group_id] = group
        former = group.find_static(found.instance_id)
        records = list[StateRecord]()
        if former is not None and former.member_id != found.member_id:
            records = self._rebalancer.replace(group, former.member_id, found)
        updated, member = self._rebalancer.update(group, self._read(found, request), request.owned, now_ms)
        is_told = is_joining or request.is_complete or member.assigned != found.assigned
        assignment = member.assigned if is_told else None
        result = ConsumerHeartbeatResult(ErrorCode.NONE, None, member.member_id, member.epoch, assignment)
        return [*write_state([*records, *updated]), Answer(token, result)]

    def check_member(self, group_id: str, member_id: str, member_epoch: int) -> ErrorCode:
        """Return the error for a request of a member in an epoch."""
        group = self._groups.get(group_id)
        member = None if group is None else group.members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if member.epoch == member_epoch:
            return ErrorCode.NONE
        return ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION

    def describe(self, group_id: str) -> DescribedConsumerGroup:
        """Return the description of a group."""
        group = self._groups.get(group_id)
        if group is None:
            message = f"there is no consumer group {group_id!r}"
            return DescribedConsumerGroup(group_id, ErrorCode.GROUP_ID_NOT_FOUND, message)
        members = [
            DescribedMember(each, group.targets.get(member_id, NOTHING)) for member_id, each in group.members.items()
        ]
        return DescribedConsumerGroup(
            group_id,
            ErrorCode.NONE,
            None,
            group.state.value,
            group.epoch,
            group.target_epoch,
            group.assignor,
            tuple(members),
            group.topic_names,
        )

    def _find_or_add(self, group_id: str) -> ConsumerGroup:
        return self._groups.setdefault(group_id, ConsumerGroup(group_id, 0))

    def check(self, request: ConsumerHeartbeatRequest) -> ConsumerHeartbeatResult | None:
        """Return the refusal of a request that no group accepts; None if there is none."""
        if request.assignor and request.assignor not in self._rebalancer.assignors:
            message = f"there is no assignor {request.assignor!r}, only {', '.join(self._rebalancer.assignors)}"
            return ConsumerHeartbeatResult(ErrorCode.UNSUPPORTED_ASSIGNOR, message)
        try:
            if request.pattern:
                compile_pattern(request.pattern)
        except PatternError as error:
            return ConsumerHeartbeatResult(ErrorCode.INVALID_REGULAR_EXPRESSION, str(error))
        problem = _find_problem(request)
        return ConsumerHeartbeatResult(ErrorCode.INVALID_REQUEST, problem) if problem else None

    def _find_to_join(
        self, group: ConsumerGroup, request: ConsumerHeartbeatRequest
    ) -> Member | ConsumerHeartbeatResult:
        """Return the member that joins: a new one, one that joins again, or a static one that is back."""
        static = group.find_static(request.instance_id)
        if static is not None and static.member_id != request.member_id:
            if static.classic is None and not static.is_paused:  # a classic client does not say that it will be back
                message = f"the instance {request.instance_id!r} is in use by another member, until it leaves"
                return ConsumerHeartbeatResult(ErrorCode.UNRELEASED_INSTANCE_ID, message)
            return attrs.evolve(static, member_id=request.member_id or self._make_id())
        known = group.members.get(request.member_id)
        if known is not None and known.instance_id == request.instance_id:
            return known
        if known is not None:
            return ConsumerHeartbeatResult(ErrorCode.INVALID_REQUEST, "the member has joined with another instance id")
        if len(group.members) >= self._settings.group_max_size:
            return ConsumerHeartbeatResult(ErrorCode.GROUP_MAX_SIZE_REACHED)
        assert request.rebalance_timeout_ms is not None
        return Member(
            member_id=request.member_id or self._make_id(),
            instance_id=request.instance_id,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
        )

    def _find_present(
        self, group: ConsumerGroup, request: ConsumerHeartbeatRequest
    ) -> Member | ConsumerHeartbeatResult:
        """Return the member that sends a heartbeat in its epoch, or in the one before if it has lost a response."""
        member = group.members.get(request.member_id)
        error = _check_instance(group, request)
        if member is None or error:
            return ConsumerHeartbeatResult(error or ErrorCode.UNKNOWN_MEMBER_ID)
        has_lost_response = (
            request.member_epoch == member.previous_epoch
            and request.owned is not None
            and request.owned <= member.assigned
        )
        if member.is_paused or not (request.member_epoch == member.epoch or has_lost_response):
            return ConsumerHeartbeatResult(ErrorCode.FENCED_MEMBER_EPOCH, f"the member has the epoch {member.epoch}")
        return member

    def _read(self, member: Member, request: ConsumerHeartbeatRequest) -> Member:
        """Return a member with what its heartbeat says."""
        subscription = member.subscription
        pattern = subscription.pattern if request.pattern is None else request.pattern
        log_table, may_read = self._rebalancer.log_table, request.may_read
        matching = subscription.matching
        looked_up = subscription.pattern, subscription.revision, subscription.may_read
        if looked_up != (pattern, log_table.revision, may_read):
            matching = find_matching(pattern, filter(may_read, log_table.client_topics())) if pattern else frozenset()
        names = subscription.names if request.topics is None else request.topics
        timeout_ms = request.rebalance_timeout_ms
        return attrs.evolve(
            member,
            rack=request.rack or member.rack,
            client_id=request.client_id,
            client_host=request.client_host,
            rebalance_timeout_ms=member.rebalance_timeout_ms if timeout_ms is None else timeout_ms,
            subscription=Subscription(names, pattern, matching, log_table.revision, may_read),
            classic=None,
            assignor=member.assignor if request.assignor is None else request.assignor,
        )

    def _leave(self, token: Token, request: ConsumerHeartbeatRequest, now_ms: int) -> list[Action]:
        group = self._groups.get(request.group_id)
        member = None if group is None else group.members.get(request.member_id)
        error = ErrorCode.UNKNOWN_MEMBER_ID if group is None else _check_instance(group, request)
        if group is None or member is None or error:
            return [Answer(token, ConsumerHeartbeatResult(error or ErrorCode.UNKNOWN_MEMBER_ID))]
        if request.member_epoch == PAUSING_EPOCH:
            group.put(attrs.evolve(member, epoch=PAUSING_EPOCH, state=MemberState.STABLE, revoking=NOTHING))
            self._rebalancer.end_revocation(group, member.member_id)
            records = [encode_member(group, member.member_id)]
        else:
            records = self._rebalancer.remove(group, member.member_id, now_ms)
        result = ConsumerHeartbeatResult(ErrorCode.NONE, None, request.member_id, request.member_epoch)
        return [*write_state(records), Answer(token, result)]


def _find_problem(request: ConsumerHeartbeatRequest) -> str:
    """Return why no group accepts a request; empty if one can."""
    epoch = request.member_epoch
    is_joining = epoch == JOINING_EPOCH
    problems = (
        (not request.group_id, "the group id is empty"),
        (epoch < PAUSING_EPOCH, f"the member epoch {epoch} is not 0 to join, -1 or -2 to leave, or one of a response"),
        (not is_joining and not request.member_id, "the member id is empty"),
        (epoch == PAUSING_EPOCH and not request.instance_id, "only a static member leaves for a short time"),
        (is_joining and request.rebalance_timeout_ms is None, "a member that joins must give its rebalance timeout"),
        (is_joining and request.owned != NOTHING, "a member that joins must say that it has no partitions"),
        (is_joining and not (request.topics or request.pattern), "a member that joins must subscribe to topics"),
    )
    return next((problem for is_wrong, problem in problems if is_wrong), "")


def _check_instance(group: ConsumerGroup, request: ConsumerHeartbeatRequest) -> ErrorCode:
    """Return the error of a static member that another one has replaced, or that the group does not know."""
    if not request.instance_id:
        return ErrorCode.NONE
    static = group.find_static(request.instance_id)
    if static is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    return ErrorCode.NONE if static.member_id == request.member_id else ErrorCode.FENCED_INSTANCE_ID
