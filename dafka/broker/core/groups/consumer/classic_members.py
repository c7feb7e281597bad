"""Clients of the classic protocol in consumer groups, while the clients of a group are being upgraded.

For such a member, the generation is the epoch, and the coordinator is the leader: JoinGroup tells what the member has
and is answered at once, SyncGroup returns what it gets, and a heartbeat asks it to join again when that has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import attrs

from dafka.broker.core.coordination.effects import Action, Answer, Token, write_state
from dafka.broker.core.coordination.state_records import StateRecord
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.consumer.group import ConsumerGroup, name_logs
from dafka.broker.core.groups.consumer.members import (
    NOTHING,
    Assignment,
    ClassicProtocol,
    Member,
    MemberState,
    Subscription,
)
from dafka.broker.core.groups.consumer.rebalancing import ConsumerRebalancer
from dafka.broker.core.groups.results import JoinRequest, JoinResult, LeavingMember, SyncRequest, SyncResult
from dafka.broker.core.groups.settings import GroupSettings
from dafka.broker.core.groups.subscriptions import (
    CONSUMER_PROTOCOL,
    ConsumerSubscription,
    encode_assignment,
    read_subscription,
)
from dafka.broker.core.log.log_table import LogTable
from dafka.broker.core.metadata.log_replicas import LogKey


class ClassicMembers:
    """The requests of classic clients that are members of consumer groups."""

    def __init__(
        self,
        settings: GroupSettings,
        groups: Mapping[str, ConsumerGroup],
        rebalancer: ConsumerRebalancer,
        make_id: Callable[[], str],
    ) -> None:
        self._settings = settings
        self._groups = groups
        self._rebalancer = rebalancer
        self._make_id = make_id

    def join_group(self, token: Token, request: JoinRequest, now_ms: int) -> list[Action]:
        """Join a group that has members, or join it again. The result is a `JoinResult`."""
        group = self._groups[request.group_id]
        subscription = read_first(request.protocols) if request.protocol_type == CONSUMER_PROTOCOL else None
        if subscription is None:
            return [Answer(token, JoinResult(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, request.member_id))]
        former = group.find_static(request.group_instance_id or "")
        known = group.members.get(request.member_id)
        error = self._check_join(group, request, former, known)
        if error:
            return [Answer(token, JoinResult(error, request.member_id))]
        member_id = request.member_id or f"{request.group_instance_id or request.client_id}-{self._make_id()}"
        if request.requires_known_member_id and not (request.member_id or request.group_instance_id):
            group.expect(member_id)
            return [Answer(token, JoinResult(ErrorCode.MEMBER_ID_REQUIRED, member_id))]
        records = list[StateRecord]()
        if former is not None and not request.member_id:
            known = attrs.evolve(former, member_id=member_id)
            records = self._rebalancer.replace(group, former.member_id, known)
        member = _read(known, member_id, request, subscription)
        owned = find_logs(subscription.owned, self._rebalancer.log_table)
        updated, member = self._rebalancer.update(group, member, owned, now_ms)
        self._rebalancer.end_expectation(group, member)
        self._rebalancer.expect_request(group, member, now_ms)
        name = request.protocols[0][0]
        result = JoinResult(ErrorCode.NONE, member_id, member.epoch, CONSUMER_PROTOCOL, name)
        return [*write_state([*records, *updated]), Answer(token, result)]

    def sync_group(self, request: SyncRequest, now_ms: int) -> SyncResult:
        """Return the assignment of a member."""
        group = self._groups[request.group_id]
        member, error = self._find(group, request.member_id, request.group_instance_id, request.generation_id)
        if member is None or error:
            return SyncResult(error)
        assert member.classic is not None
        name = member.classic.protocols[0][0]
        if request.protocol_type not in {None, CONSUMER_PROTOCOL} or request.protocol_name not in {None, name}:
            return SyncResult(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if group.epoch > member.epoch and member.state is not MemberState.REVOKING:
            self._rebalancer.expect_request(group, member, now_ms)
            return SyncResult(ErrorCode.REBALANCE_IN_PROGRESS)
        self._rebalancer.end_expectation(group, member)
        self._rebalancer.begin_session(group, member, now_ms)
        assignment = encode_assignment(name_logs(member.assigned, group.topic_names))
        return SyncResult(ErrorCode.NONE, CONSUMER_PROTOCOL, name, assignment)

    def heartbeat(
        self, group_id: str, generation_id: int, member_id: str, group_instance_id: str | None, now_ms: int
    ) -> ErrorCode:
        """Extend the session of a member. REBALANCE_IN_PROGRESS asks it to join again."""
        group = self._groups[group_id]
        member, error = self._find(group, member_id, group_instance_id, generation_id)
        if member is None or error:
            return error
        self._rebalancer.begin_session(group, member, now_ms)
        self._rebalancer.refresh(group)
        if not self._must_rejoin(group, member):
            return ErrorCode.NONE
        self._rebalancer.expect_request(group, member, now_ms)
        return ErrorCode.REBALANCE_IN_PROGRESS

    def leave(self, group_id: str, leaving: LeavingMember, now_ms: int) -> tuple[ErrorCode, list[StateRecord]]:
        """Remove a member of any protocol. Return its error, and the records to write."""
        group = self._groups[group_id]
        static = group.find_static(leaving.group_instance_id or "")
        member_id = leaving.member_id or ("" if static is None else static.member_id)
        if member_id not in group.members:
            return ErrorCode.UNKNOWN_MEMBER_ID, []
        if leaving.group_instance_id is not None and (static is None or static.member_id != member_id):
            return ErrorCode.UNKNOWN_MEMBER_ID if static is None else ErrorCode.FENCED_INSTANCE_ID, []
        return ErrorCode.NONE, self._rebalancer.remove(group, member_id, now_ms)

    def _check_join(
        self, group: ConsumerGroup, request: JoinRequest, static: Member | None, known: Member | None
    ) -> ErrorCode:
        if request.member_id and request.group_instance_id is not None:
            if static is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if static.member_id != request.member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        is_new = known is None and static is None
        if is_new and request.member_id and request.member_id not in group.expected:
            return ErrorCode.UNKNOWN_MEMBER_ID
        is_full = is_new and len(group.members) >= self._settings.group_max_size
        return ErrorCode.GROUP_MAX_SIZE_REACHED if is_full else ErrorCode.NONE

    def _find(
        self, group: ConsumerGroup, member_id: str, group_instance_id: str | None, generation_id: int
    ) -> tuple[Member | None, ErrorCode]:
        """Return a classic member in its generation, or the error."""
        static = group.find_static(group_instance_id or "")
        if static is not None and static.member_id != member_id:
            return None, ErrorCode.FENCED_INSTANCE_ID
        member = group.members.get(member_id)
        if member is None or member.classic is None:
            return None, ErrorCode.UNKNOWN_MEMBER_ID
        return member, ErrorCode.NONE if member.epoch == generation_id else ErrorCode.ILLEGAL_GENERATION

    def _must_rejoin(self, group: ConsumerGroup, member: Member) -> bool:
        """Return whether a member must join again: to give up logs, or to get some."""
        if member.epoch < group.epoch or member.state is MemberState.REVOKING:
            return True
        missing = group.targets.get(member.member_id, NOTHING) - member.assigned
        return any(not group.is_held_by_others(member.member_id, log) for log in missing)


def read_first(protocols: tuple[tuple[str, bytes], ...]) -> ConsumerSubscription | None:
    """Return the subscription in the metadata for the preferred assignor; None if it does not follow Kafka's format."""
    return read_subscription(protocols[0][1]) if protocols else None


def find_logs(logs: Mapping[str, Iterable[int]], log_table: LogTable) -> Assignment:
    """Return logs by the ids of their topics. Logs of topics that do not exist are left out."""
    found = ((log_table.find_client_topic(name), numbers) for name, numbers in logs.items())
    return frozenset(LogKey(topic.topic_id, number) for topic, numbers in found if topic for number in numbers)


def _read(known: Member | None, member_id: str, request: JoinRequest, subscription: ConsumerSubscription) -> Member:
    """Return a member with what its request says."""
    base = known or Member(member_id=member_id, instance_id=request.group_instance_id or "", rebalance_timeout_ms=0)
    return attrs.evolve(
        base,
        client_id=request.client_id,
        client_host=request.client_host,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        subscription=Subscription(subscription.topics),
        assignor="",
        classic=ClassicProtocol(request.session_timeout_ms, request.protocols),
    )
