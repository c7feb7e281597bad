"""The members of share groups: their heartbeats, sessions, and what they read (KIP-932).

Members of a share group do not wait for each other: each gets the latest assignment with its next heartbeat.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import attrs

from dafka.broker.core.coordination.deadlines import Deadlines
from dafka.broker.core.coordination.effects import Action, Answer, Token, write_state
from dafka.broker.core.coordination.state_records import StateRecord
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.consumer.members import JOINING_EPOCH, LEAVING_EPOCH
from dafka.broker.core.groups.settings import GroupSettings
from dafka.broker.core.groups.share.members import (
    DescribedShareGroup,
    ShareGroup,
    ShareHeartbeatRequest,
    ShareHeartbeatResult,
    ShareMember,
)
from dafka.broker.core.groups.share.records import (
    SHARE_GROUP,
    SHARE_MEMBER,
    encode_group,
    encode_member,
    encode_tombstone,
)
from dafka.broker.core.log.log_table import LogTable

_Session: TypeAlias = tuple[str, str]
"""A group and a member of it."""


class ShareMembership:
    """The members of all share groups."""

    def __init__(self, settings: GroupSettings, log_table: LogTable) -> None:
        self._settings = settings
        self._log_table = log_table
        self._groups: dict[str, ShareGroup] = {}
        self._sessions: Deadlines[_Session] = Deadlines()

    @property
    def groups(self) -> Mapping[str, ShareGroup]:
        """All groups by name."""
        return self._groups

    def next_deadline_ms(self) -> int | None:
        """Return when to call `advance`; None if there is no deadline."""
        return self._sessions.next_deadline_ms()

    def advance(self, now_ms: int) -> list[Action]:
        """Remove the members that were silent for the session timeout."""
        records = list[StateRecord]()
        while (session := self._sessions.pop_due(now_ms)) is not None:
            group_id, member_id = session
            records += self._remove(self._groups[group_id], member_id, now_ms)
        return write_state(records)

    def restore_group(self, group_id: str, stored: ShareGroup | None) -> None:
        """Restore a group from its record, or forget it if the record is a tombstone."""
        known = self._groups.pop(group_id, None)
        if stored is not None:
            stored.members = known.members if known is not None else {}
            self._groups[group_id] = stored

    def restore_member(self, group_id: str, member_id: str, member: ShareMember | None) -> None:
        """Restore a member from its record, or forget it if the record is a tombstone."""
        if member is not None:
            self._groups.setdefault(group_id, ShareGroup(group_id, 0)).members[member_id] = member
        elif (known := self._groups.get(group_id)) is not None:
            known.members.pop(member_id, None)

    def start(self, now_ms: int) -> None:
        """Begin the sessions of restored members. Call it once, after the last record was restored."""
        for group in self._groups.values():
            for member_id in group.members:
                self._begin_session(group, member_id, now_ms)

    def discard_group(self, group_id: str) -> list[StateRecord]:
        """Forget an unused group. Return the records to write."""
        assert self._groups.pop(group_id).is_unused
        return [encode_tombstone(SHARE_GROUP, group_id)]

    def create_group(self, group_id: str, now_ms: int) -> tuple[list[StateRecord], ErrorCode]:
        """Create a group without members, unless there is one. Return the records to write, and the error."""
        if group_id in self._groups:
            return [], ErrorCode.NONE
        if len(self._groups) >= self._settings.groups_max:
            return [], ErrorCode.GROUP_MAX_SIZE_REACHED
        group = self._groups[group_id] = ShareGroup(group_id, now_ms)
        return [encode_group(group)], ErrorCode.NONE

    def heartbeat(self, token: Token, request: ShareHeartbeatRequest, now_ms: int) -> list[Action]:
        """Join or leave a group, or stay in it. The result is a `ShareHeartbeatResult`."""
        problem = _find_problem(request)
        if problem:
            return [Answer(token, ShareHeartbeatResult(ErrorCode.INVALID_REQUEST, problem))]
        is_joining = request.member_epoch == JOINING_EPOCH
        group = self._groups.get(request.group_id)
        if group is None and is_joining and len(self._groups) < self._settings.groups_max:
            group = ShareGroup(request.group_id, now_ms)
        if group is None:
            error = ErrorCode.GROUP_MAX_SIZE_REACHED if is_joining else ErrorCode.UNKNOWN_MEMBER_ID
            return [Answer(token, ShareHeartbeatResult(error))]
        member = group.members.get(request.member_id)
        error = self._check(group, member, request)
        if error:
            return [Answer(token, ShareHeartbeatResult(error))]
        self._groups[group.group_id] = group
        if request.member_epoch == LEAVING_EPOCH:
            records = self._remove(group, request.member_id, now_ms)
            result = ShareHeartbeatResult(ErrorCode.NONE, None, request.member_id, LEAVING_EPOCH)
            return [*write_state(records), Answer(token, result)]
        records, updated = self._update(group, member, request)
        self._begin_session(group, request.member_id, now_ms)
        is_known = not is_joining and request.topics is None and updated.epoch == request.member_epoch
        assignment = None if is_known else updated.assigned
        result = ShareHeartbeatResult(ErrorCode.NONE, None, request.member_id, updated.epoch, assignment)
        return [*write_state(records), Answer(token, result)]

    def describe(self, group_id: str) -> DescribedShareGroup:
        """Return the description of a group."""
        group = self._groups.get(group_id)
        if group is None:
            return DescribedShareGroup(group_id, ErrorCode.GROUP_ID_NOT_FOUND, f"there is no share group {group_id!r}")
        return DescribedShareGroup(
            group_id,
            ErrorCode.NONE,
            None,
            group.state.value,
            group.epoch,
            tuple(group.members.values()),
            group.topic_names,
        )

    def _check(self, group: ShareGroup, member: ShareMember | None, request: ShareHeartbeatRequest) -> ErrorCode:
        """Return the error of a heartbeat, or NONE."""
        if request.member_epoch == JOINING_EPOCH:
            is_full = member is None and len(group.members) >= self._settings.group_share_max_size
            return ErrorCode.GROUP_MAX_SIZE_REACHED if is_full else ErrorCode.NONE
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        is_current = request.member_epoch in {LEAVING_EPOCH, member.epoch, member.previous_epoch}
        return ErrorCode.NONE if is_current else ErrorCode.FENCED_MEMBER_EPOCH

    def _update(
        self, group: ShareGroup, former: ShareMember | None, request: ShareHeartbeatRequest
    ) -> tuple[list[StateRecord], ShareMember]:
        """Add a member, or change what it wants. Return the records to write, and the member."""
        member_id = request.member_id
        member = ShareMember(member_id=member_id) if former is None else former
        group.members[member_id] = attrs.evolve(
            member,
            rack=member.rack if request.rack is None else request.rack,
            client_id=request.client_id,
            client_host=request.client_host,
            topics=member.topics if request.topics is None else request.topics,
        )
        has_changed = former is None or former.topics != group.members[member_id].topics
        changed = group.refresh(self._log_table, has_changed=has_changed)
        records = [] if changed is None else [encode_group(group)]
        records += [encode_member(group, each) for each in changed or () if each != member_id]
        member = group.members[member_id]
        if member.epoch != group.epoch:
            member = attrs.evolve(member, epoch=group.epoch, previous_epoch=member.epoch)
            group.members[member_id] = member
        if member != former:
            records.append(encode_member(group, member_id))
        return records, member

    def _remove(self, group: ShareGroup, member_id: str, now_ms: int) -> list[StateRecord]:
        """Remove a member. Return the records to write."""
        self._sessions.cancel((group.group_id, member_id))
        del group.members[member_id]
        if not group.members:
            group.state_since_ms = now_ms
        changed = group.refresh(self._log_table, has_changed=True)
        return [
            encode_tombstone(SHARE_MEMBER, group.group_id, member_id),
            encode_group(group),
            *(encode_member(group, each) for each in changed or ()),
        ]

    def _begin_session(self, group: ShareGroup, member_id: str, now_ms: int) -> None:
        own_ms = self._settings.own_timeout_of(group.group_id, "share")
        timeout_ms = self._settings.group_share_session_timeout_ms if own_ms is None else own_ms
        self._sessions.set((group.group_id, member_id), now_ms + timeout_ms)


def _find_problem(request: ShareHeartbeatRequest) -> str:
    """Return why no group accepts a request; empty if one can."""
    epoch, is_joining = request.member_epoch, request.member_epoch == JOINING_EPOCH
    problems = (
        (not request.group_id, "the group id is empty"),
        (not request.member_id, "the member id is empty: a client chooses it before it joins"),
        (epoch < LEAVING_EPOCH, f"the member epoch {epoch} is not 0 to join, -1 to leave, or one of a response"),
        (is_joining and not request.topics, "a member that joins must subscribe to topics"),
    )
    return next((problem for is_wrong, problem in problems if is_wrong), "")
