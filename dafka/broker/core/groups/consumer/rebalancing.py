"""Keeps the assignments of consumer groups current: epochs, assignors, time limits, and the records of each change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from dafka.broker.core.coordination.deadlines import Deadlines
from dafka.broker.core.coordination.state_records import StateRecord
from dafka.broker.core.groups.consumer.assignors import Assignor
from dafka.broker.core.groups.consumer.group import ConsumerGroup
from dafka.broker.core.groups.consumer.members import NOTHING, Assignment, Member, MemberState
from dafka.broker.core.groups.consumer.reconciliation import reconcile
from dafka.broker.core.groups.consumer.records import encode_group, encode_member, encode_member_tombstone
from dafka.broker.core.groups.settings import GroupSettings
from dafka.broker.core.log.log_table import LogTable

SESSION, REVOCATION, REJOIN = "session", "revocation", "rejoin"
"""The purposes of deadlines: a member is silent, keeps what it must give up, or does not join again."""

_Timer: TypeAlias = tuple[str, str, str]
"""The purpose of a deadline, the group, and the member."""


class ConsumerRebalancer:
    """The assignments and the time limits of all consumer groups, with assignors by name."""

    def __init__(self, settings: GroupSettings, log_table: LogTable, assignors: Mapping[str, Assignor]) -> None:
        self.assignors = assignors
        self.log_table = log_table
        self._settings = settings
        self._deadlines: Deadlines[_Timer] = Deadlines()
        self._shrunk: set[str] = set()

    def next_deadline_ms(self) -> int | None:
        """Return when to call `expire`; None if there is no deadline."""
        return self._deadlines.next_deadline_ms()

    def expire(self, groups: Mapping[str, ConsumerGroup], now_ms: int) -> list[StateRecord]:
        """Remove the members whose time limits have passed. Return the records to write."""
        records = list[StateRecord]()
        while (timer := self._deadlines.pop_due(now_ms)) is not None:
            _, group_id, member_id = timer
            records += self.remove(groups[group_id], member_id, now_ms)
        return records

    def restart(self, group: ConsumerGroup, now_ms: int) -> None:
        """Begin the sessions of a restored group."""
        for member in group.members.values():
            self.begin_session(group, member, now_ms)
            self._limit_revocation(group, member, now_ms)

    def update(
        self, group: ConsumerGroup, member: Member, owned: Assignment | None, now_ms: int
    ) -> tuple[list[StateRecord], Member]:
        """Add a member, or change what it wants and has. Return the records to write, and the member.

        `owned` are the logs that the client still reads; None if it has not said.
        """
        member_id, former = member.member_id, group.members.get(member.member_id)
        epochs = group.epoch, group.target_epoch
        group.put(member)
        has_changed = former is None or former.subscription.topics != member.subscription.topics
        self.refresh(group, has_changed=has_changed)
        changed = set(group.assign(self.assignors)) if group.epoch > group.target_epoch else set[str]()
        target = group.targets.get(member_id, NOTHING)
        reconciled = reconcile(
            member, group.target_epoch, target, owned, lambda log: group.is_held_by_others(member_id, log)
        )
        group.put(reconciled)
        if reconciled != former:
            changed.add(member_id)
        records = [] if (group.epoch, group.target_epoch) == epochs else [encode_group(group)]
        records += [encode_member(group, each) for each in sorted(changed)]
        self.begin_session(group, reconciled, now_ms)
        if former is None or (reconciled.state, reconciled.epoch) != (former.state, former.epoch):
            self._limit_revocation(group, reconciled, now_ms)
        return records, reconciled

    def refresh(self, group: ConsumerGroup, *, has_changed: bool = False) -> None:
        """Begin an epoch if the members, what they read, or the topics that they read have changed."""
        if has_changed or group.revision != self.log_table.revision:
            group.revision, topics = self.log_table.revision, group.find_topics(self.log_table)
            group.epoch += has_changed or topics != group.topics
            group.topics = topics

    def replace(self, group: ConsumerGroup, former_id: str, member: Member) -> list[StateRecord]:
        """Replace a static member whose client is back with another id. Return the records to write."""
        target = group.targets.get(former_id, NOTHING)
        self._forget(group, former_id)
        group.remove(former_id, group.state_since_ms)
        group.put(member)
        group.targets[member.member_id] = target
        return [encode_member_tombstone(group.group_id, former_id), encode_member(group, member.member_id)]

    def remove(self, group: ConsumerGroup, member_id: str, now_ms: int) -> list[StateRecord]:
        """Remove a member. Return the records to write. The others get its logs with their next requests."""
        self._forget(group, member_id)
        group.remove(member_id, now_ms)
        group.topics = group.find_topics(self.log_table)
        group.epoch += 1
        self._shrunk.add(group.group_id)
        return [encode_member_tombstone(group.group_id, member_id), encode_group(group)]

    def take_shrunk(self) -> set[str]:
        """Return the groups from which members were removed since the last call."""
        shrunk, self._shrunk = self._shrunk, set()
        return shrunk

    def release(self, group: ConsumerGroup) -> None:
        """End the time limits of a group."""
        for member_id in group.members:
            self._forget(group, member_id)

    def begin_session(self, group: ConsumerGroup, member: Member, now_ms: int) -> None:
        """Extend the session of a member."""
        own_ms = self._settings.own_timeout_of(group.group_id, "consumer")
        timeout_ms = self._settings.group_consumer_session_timeout_ms if own_ms is None else own_ms
        if member.classic is not None:
            timeout_ms = member.classic.session_timeout_ms
        self._deadlines.set((SESSION, group.group_id, member.member_id), now_ms + timeout_ms)

    def expect_request(self, group: ConsumerGroup, member: Member, now_ms: int) -> None:
        """Remove a member that does not join again, or ask for its assignment, within its rebalance timeout."""
        timer = (REJOIN, group.group_id, member.member_id)
        if timer not in self._deadlines:
            self._deadlines.set(timer, now_ms + member.rebalance_timeout_ms)

    def end_expectation(self, group: ConsumerGroup, member: Member) -> None:
        """Record that the expected request has come."""
        self._deadlines.cancel((REJOIN, group.group_id, member.member_id))

    def end_revocation(self, group: ConsumerGroup, member_id: str) -> None:
        """Record that a member has given up what it must."""
        self._deadlines.cancel((REVOCATION, group.group_id, member_id))

    def _limit_revocation(self, group: ConsumerGroup, member: Member, now_ms: int) -> None:
        timer = (REVOCATION, group.group_id, member.member_id)
        if member.state is MemberState.REVOKING:
            self._deadlines.set(timer, now_ms + member.rebalance_timeout_ms)
        else:
            self._deadlines.cancel(timer)

    def _forget(self, group: ConsumerGroup, member_id: str) -> None:
        for kind in (SESSION, REVOCATION, REJOIN):
            self._deadlines.cancel((kind, group.group_id, member_id))
