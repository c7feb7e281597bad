"""The members of groups: JoinGroup, SyncGroup, Heartbeat and LeaveGroup, Kafka's classic protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dafka.broker.core.coordination.effects import Action, Answer, Token
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.group import Group, GroupState, Member
from dafka.broker.core.groups.rebalancing import Rebalancer
from dafka.broker.core.groups.results import (
    JoinRequest,
    JoinResult,
    LeaveResult,
    LeavingMember,
    LeftMember,
    SyncRequest,
    SyncResult,
)
from dafka.broker.core.groups.settings import GroupSettings
from dafka.broker.core.groups.subscriptions import CONSUMER_PROTOCOL, read_topics


class Membership:
    """The members of all groups. `make_id` returns a unique text, such as a UUID."""

    def __init__(self, settings: GroupSettings, make_id: Callable[[], str]) -> None:
        self._settings = settings
        self._make_id = make_id
        self._groups: dict[str, Group] = {}
        self._rebalancer = Rebalancer(settings)

    @property
    def groups(self) -> Mapping[str, Group]:
        """All groups by name."""
        return self._groups

    def next_deadline_ms(self) -> int | None:
        """Return when to call `advance`; None if there is no deadline."""
        return self._rebalancer.next_deadline_ms()

    def advance(self, now_ms: int) -> list[Action]:
        """End the sessions and phases of rebalances that are due."""
        self._rebalancer.expire(self._groups, now_ms)
        return self._rebalancer.take_actions()

    def restore(self, group_id: str, group: Group | None) -> None:
        """Restore a group from its record, or forget it if the record is a tombstone."""
        if group is None:
            self._groups.pop(group_id, None)
        else:
            self._groups[group_id] = group

    def start(self, now_ms: int) -> None:
        """Begin the sessions of restored members. Call it once, after the last record was restored."""
        for group in self._groups.values():
            self._rebalancer.restart(group, now_ms)

    def add_group(self, group_id: str, now_ms: int) -> Group | None:
        """Return a group, and create it if it does not exist; None if there are too many groups."""
        group = self._groups.get(group_id)
        if group is None and len(self._groups) < self._settings.groups_max:
            group = self._groups[group_id] = Group(group_id, now_ms)
        return group

    def discard_group(self, group_id: str) -> None:
        """Forget an unused group."""
        assert self._groups[group_id].is_unused
        del self._groups[group_id]

    def release_group(self, group_id: str) -> list[Action]:
        """Forget a group that has members, which join it again."""
        self._rebalancer.release(self._groups.pop(group_id))
        return self._rebalancer.take_actions()

    def adopt_group(self, group: Group, now_ms: int) -> list[Action]:
        """Add a group that was a consumer group. Its members join again."""
        self._groups[group.group_id] = group
        self._rebalancer.write(group)
        self._rebalancer.restart(group, now_ms)
        self._rebalancer.rebalance(group, now_ms)
        return self._rebalancer.take_actions()

    def record_activity(self, group: Group, member_id: str, now_ms: int) -> None:
        """Extend the session of a member whose request counts as a heartbeat."""
        self._rebalancer.record_activity(group, member_id, now_ms)

    def join_group(self, token: Token, request: JoinRequest, now_ms: int) -> list[Action]:
        """Join a group. The result is a `JoinResult`, often a later one."""
        error = self.check_join(request)
        group = None if error else self._group_to_join(request, now_ms)
        if group is None:
            error = error or (ErrorCode.UNKNOWN_MEMBER_ID if request.member_id else ErrorCode.GROUP_MAX_SIZE_REACHED)
        elif not group.has_capacity_for(request.member_id, self._settings.group_max_size):
            error = ErrorCode.GROUP_MAX_SIZE_REACHED
        elif not group.supports(request.protocol_type, request.protocols):
            error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        elif request.member_id:
            error = self._join_known(group, token, request, now_ms)
        else:
            self._join_unknown(group, token, request, now_ms)
        if error:
            self._rebalancer.answer(token, JoinResult(error, request.member_id))
        return self._rebalancer.take_actions()

    def check_join(self, request: JoinRequest) -> ErrorCode:
        """Return the error of a request that no group accepts."""
        if not request.group_id:
            return ErrorCode.INVALID_GROUP_ID
        shortest, longest = self._settings.group_min_session_timeout_ms, self._settings.group_max_session_timeout_ms
        if not shortest <= request.session_timeout_ms <= longest:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        if not request.protocol_type or not request.protocols:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return ErrorCode.NONE

    def sync_group(self, token: Token, request: SyncRequest, now_ms: int) -> list[Action]:
        """Get a member's assignment. The result is a `SyncResult`; it waits for the leader's request."""
        group = self._groups.get(request.group_id)
        error = self._check_sync(group, request)
        if group is None or error:
            return [Answer(token, SyncResult(error))]
        self._rebalancer.await_sync(group, token, request.member_id)
        if group.state is GroupState.COMPLETING_REBALANCE and request.member_id == group.leader:
            group.assign(dict(request.assignments), now_ms)
            self._rebalancer.write(group)
        if group.state is GroupState.STABLE:
            self._rebalancer.answer_syncs(group, now_ms)
        return self._rebalancer.take_actions()

    def heartbeat(
        self, group_id: str, generation_id: int, member_id: str, group_instance_id: str | None, now_ms: int
    ) -> ErrorCode:
        """Extend the session of a member. REBALANCE_IN_PROGRESS asks it to join again."""
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID
        group = self._groups.get(group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        error = group.check_generation(member_id, group_instance_id, generation_id)
        if error:
            return error
        self.record_activity(group, member_id, now_ms)
        is_rebalancing = group.state is GroupState.PREPARING_REBALANCE
        return ErrorCode.REBALANCE_IN_PROGRESS if is_rebalancing else ErrorCode.NONE

    def leave_group(self, token: Token, group_id: str, leaving: tuple[LeavingMember, ...], now_ms: int) -> list[Action]:
        """Remove members from a group. The result is a `LeaveResult`."""
        if not group_id:
            return [Answer(token, LeaveResult(ErrorCode.INVALID_GROUP_ID))]
        group = self._groups.get(group_id)
        size = len(group.members) if group else 0
        left = tuple(LeftMember(*each, self._leave(group, each)) for each in leaving)
        if group is not None:
            self._rebalancer.on_removal(group, size, now_ms)
        self._rebalancer.answer(token, LeaveResult(ErrorCode.NONE, left))
        return self._rebalancer.take_actions()

    def _group_to_join(self, request: JoinRequest, now_ms: int) -> Group | None:
        if request.member_id:
            return self._groups.get(request.group_id)
        return self.add_group(request.group_id, now_ms)

    def _check_sync(self, group: Group | None, request: SyncRequest) -> ErrorCode:
        if not request.group_id:
            return ErrorCode.INVALID_GROUP_ID
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        error = group.check_generation(request.member_id, request.group_instance_id, request.generation_id)
        if error:
            return error
        if request.protocol_type not in {None, group.protocol_type}:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if request.protocol_name not in {None, group.protocol_name}:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        is_rebalancing = group.state is GroupState.PREPARING_REBALANCE
        return ErrorCode.REBALANCE_IN_PROGRESS if is_rebalancing else ErrorCode.NONE

    def _join_unknown(self, group: Group, token: Token, request: JoinRequest, now_ms: int) -> None:
        """Join a client that has no member id yet."""
        member_id = f"{request.group_instance_id or request.client_id}-{self._make_id()}"
        static_id = group.static_member_id(request.group_instance_id)
        if static_id is not None:
            self._rejoin_static(group, token, request, static_id, member_id, now_ms)
        elif request.requires_known_member_id and request.group_instance_id is None:
            self._rebalancer.expect_member(group, member_id, request.session_timeout_ms, now_ms)
            self._rebalancer.answer(token, JoinResult(ErrorCode.MEMBER_ID_REQUIRED, member_id))
        else:
            member = Member.from_request(request, member_id)
            self._rebalancer.add_member(group, token, member, request.protocol_type, now_ms)

    def _join_known(self, group: Group, token: Token, request: JoinRequest, now_ms: int) -> ErrorCode:
        """Join a client that has a member id. Return its error, or NONE."""
        member_id = request.member_id
        if member_id in group.pending and request.group_instance_id is None:
            member = Member.from_request(request, member_id)
            self._rebalancer.add_member(group, token, member, request.protocol_type, now_ms)
            return ErrorCode.NONE
        error = group.check_member(member_id, request.group_instance_id)
        if error:
            return error
        is_same = group.members[member_id].protocols == request.protocols
        is_answered_before = is_same and (
            group.state is GroupState.COMPLETING_REBALANCE
            or (group.state is GroupState.STABLE and member_id != group.leader)
        )
        if is_answered_before:  # the client has lost the response
            self.record_activity(group, member_id, now_ms)
            self._rebalancer.answer(token, group.join_result(member_id))
        else:
            group.update(member_id, request)
            self._rebalancer.rejoin_member(group, token, member_id, now_ms)
        return ErrorCode.NONE

    def _rejoin_static(
        self, group: Group, token: Token, request: JoinRequest, old_id: str, member_id: str, now_ms: int
    ) -> None:
        """Join a static member whose client has restarted."""
        old_leader, topics = group.leader, self._topics(group, old_id)
        self._rebalancer.replace_static(group, old_id, member_id, now_ms)
        group.update(member_id, request)
        keeps_assignment = (
            group.state is GroupState.STABLE
            and group.select_protocol() == group.protocol_name
            and self._topics(group, member_id) == topics
        )
        if not keeps_assignment:
            self._rebalancer.rejoin_member(group, token, member_id, now_ms)
            return
        self.record_activity(group, member_id, now_ms)
        self._rebalancer.write(group)
        is_leader = member_id == group.leader
        result = JoinResult(
            ErrorCode.NONE,
            member_id,
            group.generation_id,
            group.protocol_type,
            group.protocol_name,
            # A client that cannot skip the assignment must not consider itself the leader.
            (group.leader if request.supports_skipping_assignment else old_leader) or "",
            skip_assignment=is_leader and request.supports_skipping_assignment,
            members=group.joined_members() if is_leader and request.supports_skipping_assignment else (),
        )
        self._rebalancer.answer(token, result)

    def _topics(self, group: Group, member_id: str) -> frozenset[str] | None:
        """Return the topics that a member reads; None if they are unknown."""
        if group.protocol_type != CONSUMER_PROTOCOL:
            return None
        return read_topics(group.members[member_id].metadata_for(group.protocol_name))

    def _leave(self, group: Group | None, leaving: LeavingMember) -> ErrorCode:
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        member_id = leaving.member_id or group.static_member_id(leaving.group_instance_id) or ""
        is_pending = member_id in group.pending and leaving.group_instance_id is None
        error = ErrorCode.NONE if is_pending else group.check_member(member_id, leaving.group_instance_id)
        if not error:
            self._rebalancer.remove_id(group, member_id)
        return error
