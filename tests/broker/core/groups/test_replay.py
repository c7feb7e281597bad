"""Histories of groups: offsets against a dict, sessions by their rules, and the records alone give the same state."""

from __future__ import annotations

import random
import struct
from collections import Counter
from collections.abc import Mapping
from typing import Any

import attrs
import pytest

from dafka.broker.core.coordination.effects import Action, Answer, WriteState
from dafka.broker.core.coordination.state_records import StateRecord, read_state
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.coordinator import GroupCoordinator
from dafka.broker.core.groups.group import Group, GroupState
from dafka.broker.core.groups.results import (
    CommitRequest,
    FetchedOffset,
    JoinRequest,
    JoinResult,
    LeavingMember,
    OffsetToCommit,
    SyncRequest,
    SyncResult,
)
from dafka.broker.core.groups.settings import GroupSettings
from dafka.broker.core.log.log_table import LogTable
from dafka.broker.core.topic_partition import TopicPartition

GROUPS = ["g", "h"]
LOGS = [TopicPartition(topic, number) for topic in ("orders", "payments") for number in (0, 1)]
TOPIC_IDS = ["", "1D", "2D"]
PRODUCERS = [7, 8]
NONE = FetchedOffset(-1, -1, "", ErrorCode.NONE)
RETENTION_MS, CHECK_MS = 6_000, 500
SETTINGS = GroupSettings(
    group_initial_rebalance_delay_ms=0,
    group_min_session_timeout_ms=1,
    offsets_retention_ms=RETENTION_MS,
    offsets_retention_check_interval_ms=CHECK_MS,
)


def subscription(*topics: str) -> bytes:
    return struct.pack(">hi", 0, len(topics)) + b"".join(
        struct.pack(">h", len(each)) + each.encode() for each in topics
    )


KINDS: dict[tuple[tuple[str, bytes], ...], tuple[int, set[str] | None]] = {
    (("range", subscription("orders")), ("sticky", subscription())): (500, {"orders"}),
    (("sticky", subscription("orders", "payments")),): (5_000, {"orders", "payments"}),
    (("sticky", b""), ("range", subscription("orders"))): (2_500, None),
}
"""The assignors of members, with their session timeouts and the topics that they read; None if that is unknown."""


@attrs.frozen
class Given:
    """An offset in the model, with the number of its commit."""

    offset: int
    leader_epoch: int
    metadata: str
    topic_id: str
    order: int
    committed_ms: int
    expires_ms: int | None

    def fetched(self) -> FetchedOffset:
        return FetchedOffset(self.offset, self.leader_epoch, self.metadata, ErrorCode.NONE, self.topic_id)


class History:
    """A coordinator, its records, and what clients must get."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.now_ms = 0
        self.records: list[StateRecord] = []
        self.committed: dict[tuple[str, TopicPartition], Given] = {}
        self.pending: dict[tuple[str, int, TopicPartition], Given] = {}
        self.order = 0
        self.joined: list[tuple[str, str | None, JoinResult]] = []
        self.ids = 0
        self.active: dict[str, int] = {}
        self.empty_since: dict[str, int] = {}
        self.restart()

    def make_id(self) -> str:
        self.ids += 1
        return str(self.ids)

    def restore(self, records: list[StateRecord]) -> GroupCoordinator:
        coordinator = GroupCoordinator(SETTINGS, self.make_id, LogTable(""))
        for each in records:
            found = read_state(each.key, each.value)
            assert found == each
            coordinator.restore(found)
        coordinator.start(self.now_ms)
        return coordinator

    def restart(self) -> None:
        """Continue with another coordinator, which reads the records."""
        self.coordinator = self.restore(self.records)
        self.check_due_ms = self.now_ms + CHECK_MS
        self.active = {each: self.now_ms for group in self.groups.values() for each in group.members}

    @property
    def groups(self) -> Mapping[str, Group]:
        return self.coordinator._membership.groups

    def take(self, actions: list[Action], token: object = 0) -> list[Any]:
        """Take the records and the answers. Those to other requests than that with the token have waited.

        The token is None if only time has passed.
        """
        kinds = [isinstance(each, Answer) for each in actions]
        assert token is None or kinds == sorted(kinds)
        for each in actions:
            self.records += each.records if isinstance(each, WriteState) else ()
        answers: list[Any] = [each.result for each in actions if isinstance(each, Answer)]
        for each in actions:
            if not isinstance(each, Answer):
                continue
            result: Any = each.result
            if isinstance(result, JoinResult | SyncResult):
                member_id = result.member_id if isinstance(result, JoinResult) else str(each.token)
                if not result.error_code or each.token is not token:
                    self.active[member_id] = self.now_ms
            if isinstance(result, JoinResult) and not result.error_code:
                group = next(group for group in GROUPS if f"-{group}-" in result.member_id)
                static = result.member_id.partition("-")[0]
                self.joined.append((group, static if static == "static" else None, result))
        return answers

    def step(self) -> None:
        kind = self.draw.choice([self.commit, self.commit, self.end, self.join, self.join, self.sync, self.sync])
        others = [self.leave, self.wait, self.beat, self.delete, self.forget_topic, self.delete_group, self.restart]
        self.draw.choice([kind] * 3 + [self.draw.choice(others)])()
        for group in GROUPS:
            if group not in self.groups or self.groups[group].state is not GroupState.EMPTY:
                self.empty_since.pop(group, None)
            else:
                self.empty_since.setdefault(group, self.now_ms)

    def commit(self) -> None:
        group, producer_id = self.draw.choice(GROUPS), self.draw.choice([None, *PRODUCERS])
        given = {
            log: OffsetToCommit(
                self.draw.randrange(9),
                self.draw.randrange(-1, 3),
                self.draw.choice(["", "note"]),
                self.draw.choice(TOPIC_IDS),
            )
            for log in self.draw.sample(LOGS, self.draw.randint(1, 3))
        }
        long = self.draw.choice([None, None, *given])
        if long is not None:
            given[long] = given[long]._replace(metadata="ä" * 2049)
        members = [*self.groups[group].members.values()] if group in self.groups else []
        member = self.draw.choice([None, *members])
        who: dict[str, Any] = {}
        if member is not None:
            who = {"member_id": member.member_id, "generation_id": self.groups[group].generation_id}
            who["group_instance_id"] = member.group_instance_id
        retention_ms = self.draw.choice([None, -1, 0, 3_000]) if producer_id is None else None
        request = CommitRequest(group_id=group, offsets=given, retention_ms=retention_ms, **who)
        if producer_id is None:
            actions = self.coordinator.commit_offsets(0, request, self.now_ms)
        else:
            actions = self.coordinator.commit_transaction_offsets(0, request, producer_id, self.now_ms)
        (errors,) = self.take(actions)
        accepted = {log for log in given if log != long}
        if member is not None:
            self.active[member.member_id] = self.now_ms
        if set(errors.values()) & {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.REBALANCE_IN_PROGRESS}:
            assert producer_id is None
            assert len(set(errors.values())) == 1
            return
        assert errors == {
            log: ErrorCode.NONE if log in accepted else ErrorCode.OFFSET_METADATA_TOO_LARGE for log in given
        }
        for log, (offset, epoch, metadata, topic_id) in given.items():
            if log in accepted:
                self.order += 1
                expires_ms = (
                    self.now_ms + retention_ms if (retention_ms or 0) >= 0 and retention_ms is not None else None
                )
                found = Given(offset, epoch, metadata or "", topic_id, self.order, self.now_ms, expires_ms)
                if producer_id is None:
                    self.committed[group, log] = found
                else:
                    self.pending[group, producer_id, log] = found

    def end(self) -> None:
        group, producer_id, is_commit = self.draw.choice(GROUPS), self.draw.choice(PRODUCERS), self.draw.random() < 0.6
        actions = self.coordinator.end_transaction(group, producer_id, is_commit)
        self.take(actions)
        mine = [key for key in self.pending if key[:2] == (group, producer_id)]
        assert bool(actions) == bool(mine)
        for key in mine:
            found = self.pending.pop(key)
            former = self.committed.get((group, key[2]))
            if is_commit and (former is None or former.order < found.order):
                self.committed[group, key[2]] = found

    def delete(self) -> None:
        group, logs = self.draw.choice(GROUPS), self.draw.sample(LOGS, 2)
        (result,) = self.take(self.coordinator.delete_offsets(0, group, logs))
        for log, error in result.partitions.items():
            if not error:
                self.committed.pop((group, log), None)

    def forget_topic(self) -> None:
        topic_id, name = self.draw.choice(TOPIC_IDS[1:]), self.draw.choice(["", "orders", "payments"])
        self.take(self.coordinator.delete_topics({topic_id}, name))

        def is_gone(log: TopicPartition, found: Given) -> bool:
            return found.topic_id == topic_id if found.topic_id else log.topic == name

        self.committed = {key: each for key, each in self.committed.items() if not is_gone(key[1], each)}
        self.pending = {key: each for key, each in self.pending.items() if not is_gone(key[2], each)}

    def delete_group(self) -> None:
        group = self.draw.choice(GROUPS)
        (errors,) = self.take(self.coordinator.delete_groups(0, [group]))
        if errors[group] is ErrorCode.NONE:
            self.committed = {key: each for key, each in self.committed.items() if key[0] != group}
            self.pending = {key: each for key, each in self.pending.items() if key[0] != group}
            self.joined = [each for each in self.joined if each[0] != group]

    def join(self) -> None:
        group, instance_id = self.draw.choice(GROUPS), self.draw.choice([None, "static"])
        members = [result.member_id for name, static, result in self.joined if (name, static) == (group, instance_id)]
        protocols = self.draw.choice([*KINDS])
        request = JoinRequest(
            group_id=group,
            member_id=self.draw.choice(["", *members[-3:]]),
            group_instance_id=None if instance_id is None else f"static-{group}",
            client_id=f"client-{group}",
            session_timeout_ms=KINDS[protocols][0],
            rebalance_timeout_ms=KINDS[protocols][0] - 100,
            protocol_type="consumer",
            protocols=protocols,
            supports_skipping_assignment=self.draw.random() < 0.5,
        )
        token = object()
        self.take(self.coordinator.join_group(token, request, self.now_ms), token)

    def sync(self) -> None:
        last = self.joined[-4:]
        for group, static, result in self.draw.choice([last, last[: self.draw.randint(0, 4)]]):
            assignments = tuple((member.member_id, b"part %d" % number) for number, member in enumerate(result.members))
            request = SyncRequest(
                group_id=group,
                generation_id=result.generation_id,
                member_id=result.member_id,
                group_instance_id=None if static is None else f"static-{group}",
                assignments=assignments,
            )
            self.take(self.coordinator.sync_group(result.member_id, request, self.now_ms), result.member_id)

    def beat(self) -> None:
        if self.joined:
            group, static, result = self.draw.choice(self.joined[-4:])
            instance_id = None if static is None else f"static-{group}"
            beat = group, result.generation_id, result.member_id, instance_id, self.now_ms
            if self.coordinator.heartbeat(*beat) in {ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS}:
                self.active[result.member_id] = self.now_ms

    def leave(self) -> None:
        if self.joined:
            group, _, result = self.draw.choice(self.joined)
            self.take(self.coordinator.leave_group(0, group, (LeavingMember(result.member_id),), self.now_ms))

    def wait(self) -> None:
        end_ms = self.now_ms + self.draw.choice([1, 400, 4_000])
        while (due_ms := self.coordinator.next_deadline_ms()) is not None and due_ms <= end_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self.take(self.coordinator.advance(self.now_ms), None)
            for group in GROUPS:
                if group in self.groups and self.groups[group].state is GroupState.EMPTY:
                    self.empty_since.setdefault(group, self.now_ms)
            if self.now_ms >= self.check_due_ms:
                self.check_due_ms = self.now_ms + CHECK_MS
                self.committed = {key: each for key, each in self.committed.items() if not self.has_expired(*key, each)}
                kept = {key[0] for key in (*self.committed, *self.pending)}
                assert {name for name, each in self.groups.items() if each.is_unused} <= kept
        self.now_ms = end_ms

    def has_expired(self, name: str, log: TopicPartition, given: Given) -> bool:
        group = self.groups.get(name)
        topics = [KINDS[each.protocols][1] for each in group.members.values()] if group is not None else []
        if any(each is None or log.topic in each for each in topics):
            return False
        if any(key[0] == name and key[2] == log for key in self.pending):
            return False
        begun_ms = given.committed_ms
        if group is not None and group.protocol_type and not group.members:
            begun_ms = max(begun_ms, self.empty_since[name])
        return self.now_ms >= (begun_ms + RETENTION_MS if given.expires_ms is None else given.expires_ms)

    def check_groups(self) -> None:
        """A session ends its timeout after the last sign of a member none of whose requests waits. Votes count."""
        deadlines = self.coordinator._membership._rebalancer._deadlines
        for name, group in self.groups.items():
            for member_id, member in group.members.items():
                timeout_ms = KINDS[member.protocols][0]
                assert (member.session_timeout_ms, member.rebalance_timeout_ms) == (timeout_ms, timeout_ms - 100)
                found = deadlines._deadlines.get(("session", name, member_id))
                if member_id in group.joining and member_id in group.newcomers:
                    assert found is not None
                elif member_id in group.joining or member_id in group.syncing:
                    assert found is None
                else:
                    assert found == self.active[member_id] + timeout_ms
            if group.state in {GroupState.STABLE, GroupState.COMPLETING_REBALANCE}:
                lists = [[each for each, _ in member.protocols] for member in group.members.values()]
                common = set(lists[0]).intersection(*lists)
                votes = Counter(next(each for each in names if each in common) for names in lists)
                assert votes[group.protocol_name or ""] == max(votes.values())

    def check(self, coordinator: GroupCoordinator) -> None:
        for group in GROUPS:
            expected = {log: found.fetched() for (name, log), found in self.committed.items() if name == group}
            assert coordinator.fetch_offsets(group, None) == expected
            assert coordinator.fetch_offsets(group, LOGS) == {log: expected.get(log, NONE) for log in LOGS}
            unstable = {log for name, _, log in self.pending if name == group}
            waiting = FetchedOffset(-1, -1, "", ErrorCode.UNSTABLE_OFFSET_COMMIT)
            assert coordinator.fetch_offsets(group, LOGS, require_stable=True) == {
                log: waiting if log in unstable else expected.get(log, NONE) for log in LOGS
            }
            assert coordinator.fetch_offsets(group, None, require_stable=True).keys() == expected.keys() | unstable

    def check_restored(self) -> None:
        latest = {record.key: record for record in self.records}
        for records in (self.records, [each for each in latest.values() if each.value is not None]):
            restored = self.restore(records)
            self.check(restored)
            for group in GROUPS:
                found, expected = restored.describe_group(group), self.coordinator.describe_group(group)
                assert max(found.generation_id, 0) == max(expected.generation_id, 0)
                if expected.state == "PreparingRebalance":
                    assert found.state != "PreparingRebalance"
                elif expected.generation_id > 0:
                    assert found == expected


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_every_history_follows_the_rules_and_its_records_give_the_same_state(first: int) -> None:
    for seed in range(first, first + 20):
        history = History(seed)
        for number in range(150):
            history.step()
            history.check(history.coordinator)
            history.check_groups()
            if number % 8 == 0:
                history.check_restored()
