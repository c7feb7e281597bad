"""Runs rebalances: the waiting requests, their responses, and the timeouts.

A rebalance has two phases. In the first one all members join again. Their requests wait until the last one has joined,
or until the rebalance timeout has passed. A member that is still missing is removed, unless it is a static member
within its session. In the second phase the leader assigns, and the SyncGroup requests of all others wait for it.

Each member has a deadline, that of its session. It is suspended while a request of the member waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from dafka.broker.core.coordination.deadlines import Deadlines
from dafka.broker.core.coordination.effects import Action, Answer, Token, WriteState
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.group import Group, GroupState, Member
from dafka.broker.core.groups.records import encode_group
from dafka.broker.core.groups.results import JoinResult, SyncResult
from dafka.broker.core.groups.settings import GroupSettings

JOIN_WAIT_MS_MIN = 1_000
"""The minimum wait, each time, if only static members are left and none of them has joined again."""

_Timer: TypeAlias = tuple[str, str, str]
"""The purpose of a deadline: `session`, `join` or `sync`; the group; the member, for a session."""


class Rebalancer:
    """The rebalances, sessions and waiting requests of all groups."""

    def __init__(self, settings: GroupSettings) -> None:
        self._settings = settings
        self._deadlines: Deadlines[_Timer] = Deadlines()
        self._delays_left_ms: dict[str, int] = {}
        self._grown: set[str] = set()
        self._actions: list[Action] = []

    def next_deadline_ms(self) -> int | None:
        """Return when to call `expire`; None if there is no deadline."""
        return self._deadlines.next_deadline_ms()

    def expire(self, groups: Mapping[str, Group], now_ms: int) -> None:
        """End the sessions and phases of rebalances that are due."""
        while (timer := self._deadlines.pop_due(now_ms)) is not None:
            kind, group_id, member_id = timer
            group = groups[group_id]
            if kind == "session":
                self._expire_session(group, member_id, now_ms)
            elif kind == "join":
                self._expire_join(group, now_ms)
            else:
                self._expire_sync(group, now_ms)

    def take_actions(self) -> list[Action]:
        """Return the actions since the last call."""
        actions, self._actions = self._actions, []
        return actions

    def answer(self, token: Token, result: object) -> None:
        """Respond to a request."""
        self._actions.append(Answer(token, result))

    def write(self, group: Group) -> None:
        """Write the current state of a group."""
        self._actions.append(WriteState((encode_group(group),)))

    def restart(self, group: Group, now_ms: int) -> None:
        """Begin the sessions of a restored group."""
        for member in group.members.values():
            self._begin_session(group, member, now_ms)
        if group.unsynced:
            self._set_deadline("sync", group, now_ms + group.rebalance_timeout_ms)

    def release(self, group: Group) -> None:
        """End the deadlines of a group, and respond to the waiting requests of its members."""
        for kind in ("join", "sync"):
            self._deadlines.cancel((kind, group.group_id, ""))
        for member_id in (*group.members, *group.pending):
            self._deadlines.cancel(("session", group.group_id, member_id))
            self._refuse_waiting(group, member_id, ErrorCode.REBALANCE_IN_PROGRESS)
        self._delays_left_ms.pop(group.group_id, None)
        self._grown.discard(group.group_id)

    def record_activity(self, group: Group, member_id: str, now_ms: int) -> None:
        """Extend the session of a member whose request counts as a heartbeat."""
        if member_id not in group.joining and member_id not in group.syncing:
            self._begin_session(group, group.members[member_id], now_ms)

    def expect_member(self, group: Group, member_id: str, session_timeout_ms: int, now_ms: int) -> None:
        """Wait for a new member to join with its new id."""
        group.pending.add(member_id)
        self._set_deadline("session", group, now_ms + session_timeout_ms, member_id)

    def add_member(self, group: Group, token: Token, member: Member, protocol_type: str, now_ms: int) -> None:
        """Add a new member, and begin a rebalance. The request waits for its end."""
        group.add(member, protocol_type)
        self._grown.add(group.group_id)
        self._await_join(group, member.member_id, token, now_ms)
        self.rebalance(group, now_ms)

    def rejoin_member(self, group: Group, token: Token, member_id: str, now_ms: int) -> None:
        """Begin or continue a rebalance, because a member joins again. The request waits for its end."""
        self._await_join(group, member_id, token, now_ms)
        self.rebalance(group, now_ms)

    def await_sync(self, group: Group, token: Token, member_id: str) -> None:
        """Make a SyncGroup request wait."""
        group.unsynced.discard(member_id)
        self._make_wait(group.syncing, member_id, token, SyncResult(ErrorCode.REBALANCE_IN_PROGRESS))
        self._deadlines.cancel(("session", group.group_id, member_id))

    def answer_syncs(self, group: Group, now_ms: int, error: ErrorCode = ErrorCode.NONE) -> None:
        """Respond to the waiting SyncGroup requests: with the assignments, unless there is an error."""
        waiting, group.syncing = group.syncing, {}
        for member_id, token in waiting.items():
            result = SyncResult(error)
            if not error:
                assignment = group.members[member_id].assignment
                result = SyncResult(error, group.protocol_type, group.protocol_name, assignment)
            self.answer(token, result)
            self.record_activity(group, member_id, now_ms)

    def remove_id(self, group: Group, member_id: str) -> None:
        """Remove a member or an expected one, and respond to its requests. The caller must call `on_removal` next."""
        self._deadlines.cancel(("session", group.group_id, member_id))
        if member_id in group.pending:
            group.pending.remove(member_id)
        else:
            self._refuse_waiting(group, member_id, ErrorCode.UNKNOWN_MEMBER_ID)
            group.remove(member_id)

    def on_removal(self, group: Group, size: int, now_ms: int) -> None:
        """Continue after members or expected ones were removed. The group had `size` members before."""
        if group.state is GroupState.PREPARING_REBALANCE:
            self._try_complete_join(group, now_ms)
        elif len(group.members) < size:
            self.rebalance(group, now_ms)

    def replace_static(self, group: Group, old_id: str, new_id: str, now_ms: int) -> None:
        """Assign another id to a static member whose client has restarted, and fence the former id."""
        self._refuse_waiting(group, old_id, ErrorCode.FENCED_INSTANCE_ID)
        self._deadlines.cancel(("session", group.group_id, old_id))
        group.replace_static(old_id, new_id)
        self._begin_session(group, group.members[new_id], now_ms)

    def rebalance(self, group: Group, now_ms: int) -> None:
        """Begin a rebalance, or complete its first phase if no member is missing any more."""
        if group.state is GroupState.PREPARING_REBALANCE:
            self._try_complete_join(group, now_ms)
            return
        was_empty = group.state is GroupState.EMPTY
        if group.state is GroupState.COMPLETING_REBALANCE:
            self.answer_syncs(group, now_ms, ErrorCode.REBALANCE_IN_PROGRESS)
        group.unsynced.clear()
        self._deadlines.cancel(("sync", group.group_id, ""))
        group.enter(GroupState.PREPARING_REBALANCE, now_ms)
        delay_ms = self._settings.group_initial_rebalance_delay_ms
        if was_empty and delay_ms:
            self._grown.discard(group.group_id)
            self._delays_left_ms[group.group_id] = max(group.rebalance_timeout_ms - delay_ms, 0)
            self._set_deadline("join", group, now_ms + delay_ms)
        else:
            self._set_deadline("join", group, now_ms + group.rebalance_timeout_ms)
            self._try_complete_join(group, now_ms)

    def _try_complete_join(self, group: Group, now_ms: int) -> None:
        if group.has_all_joined and group.group_id not in self._delays_left_ms:
            self._complete_join(group, now_ms)

    def _complete_join(self, group: Group, now_ms: int) -> None:
        """Begin the next generation with the members that have joined, and with static members within their session."""
        for member in list(group.members.values()):
            if member.member_id not in group.joining and member.group_instance_id is None:
                self.remove_id(group, member.member_id)
        if group.members and not group.joining:
            self._set_deadline("join", group, now_ms + max(group.rebalance_timeout_ms, JOIN_WAIT_MS_MIN))
            return
        self._deadlines.cancel(("join", group.group_id, ""))
        self._grown.discard(group.group_id)
        if group.members:
            group.elect_leader()
        group.begin_generation(now_ms)
        self.write(group)
        if group.members:
            self._set_deadline("sync", group, now_ms + group.rebalance_timeout_ms)
        for member_id, token in group.joining.items():
            self.answer(token, group.join_result(member_id))
            self._begin_session(group, group.members[member_id], now_ms)
        group.joining.clear()

    def _expire_join(self, group: Group, now_ms: int) -> None:
        left_ms = self._delays_left_ms.pop(group.group_id, 0)
        if left_ms and group.group_id in self._grown:
            self._grown.discard(group.group_id)
            delay_ms = min(self._settings.group_initial_rebalance_delay_ms, left_ms)
            self._delays_left_ms[group.group_id] = left_ms - delay_ms
            self._set_deadline("join", group, now_ms + delay_ms)
        else:
            self._complete_join(group, now_ms)

    def _expire_sync(self, group: Group, now_ms: int) -> None:
        size = len(group.members)
        for member_id in list(group.unsynced):
            self.remove_id(group, member_id)
        self.on_removal(group, size, now_ms)

    def _expire_session(self, group: Group, member_id: str, now_ms: int) -> None:
        size = len(group.members)
        self.remove_id(group, member_id)
        self.on_removal(group, size, now_ms)

    def _await_join(self, group: Group, member_id: str, token: Token, now_ms: int) -> None:
        self._make_wait(group.joining, member_id, token, JoinResult(ErrorCode.REBALANCE_IN_PROGRESS, member_id))
        if member_id in group.newcomers:
            deadline_ms = now_ms + self._settings.new_member_join_timeout_ms
            self._set_deadline("session", group, deadline_ms, member_id)
        else:
            self._deadlines.cancel(("session", group.group_id, member_id))

    def _make_wait(self, waiting: dict[str, Token], member_id: str, token: Token, result: object) -> None:
        """Make a request wait. Respond to the previous one, which the client has given up."""
        if member_id in waiting:
            self.answer(waiting[member_id], result)
        waiting[member_id] = token

    def _refuse_waiting(self, group: Group, member_id: str, error: ErrorCode) -> None:
        if member_id in group.joining:
            self.answer(group.joining.pop(member_id), JoinResult(error, member_id))
        if member_id in group.syncing:
            self.answer(group.syncing.pop(member_id), SyncResult(error))

    def _begin_session(self, group: Group, member: Member, now_ms: int) -> None:
        self._set_deadline("session", group, now_ms + member.session_timeout_ms, member.member_id)

    def _set_deadline(self, kind: str, group: Group, deadline_ms: int, member_id: str = "") -> None:
        self._deadlines.set((kind, group.group_id, member_id), deadline_ms)
