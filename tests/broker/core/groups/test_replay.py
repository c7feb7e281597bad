"""Histories of groups: positions against a dict, and after every request the records alone give the same state."""

from __future__ import annotations

import random
from typing import Any

import attrs
import pytest

from dafka.broker.core.coordination.effects import Action, Answer, WriteState
from dafka.broker.core.coordination.state_records import StateRecord, read_state
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.coordinator import CommitRequest, FetchedOffset, GroupCoordinator, OffsetToCommit
from dafka.broker.core.groups.results import JoinRequest, JoinResult, LeavingMember, SyncRequest
from dafka.broker.core.groups.settings import GroupSettings
from dafka.broker.core.topic_partition import TopicPartition

GROUPS = ["g", "h"]
LOGS = [TopicPartition(topic, number) for topic in ("orders", "payments") for number in (0, 1)]
TOPIC_IDS = ["", "1D", "2D"]
PRODUCERS = [7, 8]
NONE = FetchedOffset(-1, -1, "", ErrorCode.NONE)
SETTINGS = GroupSettings(group_initial_rebalance_delay_ms=0, group_min_session_timeout_ms=1)


@attrs.frozen
class Given:
    """An offset in the model, with the number of its commit."""

    offset: int
    leader_epoch: int
    metadata: str
    topic_id: str
    order: int

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
        self.coordinator = self.restore(self.records)

    def make_id(self) -> str:
        self.ids += 1
        return str(self.ids)

    def restore(self, records: list[StateRecord]) -> GroupCoordinator:
        coordinator = GroupCoordinator(SETTINGS, self.make_id)
        for each in records:
            found = read_state(each.key, each.value)
            assert found == each
            coordinator.restore(found)
        coordinator.start(self.now_ms)
        return coordinator

    def take(self, actions: list[Action]) -> list[Any]:
        kinds = [isinstance(each, Answer) for each in actions]
        assert kinds == sorted(kinds)
        for each in actions:
            self.records += each.records if isinstance(each, WriteState) else ()
        answers: list[Any] = [each.result for each in actions if isinstance(each, Answer)]
        for result in answers:
            if isinstance(result, JoinResult) and not result.error_code:
                group = next(group for group in GROUPS if f"-{group}-" in result.member_id)
                static = result.member_id.partition("-")[0]
                self.joined.append((group, static if static == "static" else None, result))
        return answers

    def step(self) -> None:
        kind = self.draw.choice(
            [self.commit, self.commit, self.end, self.delete, self.join, self.join, self.sync, self.sync]
        )
        self.draw.choice([kind, kind, kind, self.leave, self.wait, self.forget_topic, self.delete_group])()

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
        request = CommitRequest(group_id=group, offsets=given)
        if producer_id is None:
            actions = self.coordinator.commit_offsets(0, request, self.now_ms)
        else:
            actions = self.coordinator.commit_transaction_offsets(0, request, producer_id, self.now_ms)
        (errors,) = self.take(actions)
        accepted = {log for log in given if log != long}
        if errors[next(iter(given))] is ErrorCode.UNKNOWN_MEMBER_ID:
            assert producer_id is None
            assert set(errors.values()) == {ErrorCode.UNKNOWN_MEMBER_ID}
            return
        assert errors == {
            log: ErrorCode.NONE if log in accepted else ErrorCode.OFFSET_METADATA_TOO_LARGE for log in given
        }
        for log, (offset, epoch, metadata, topic_id) in given.items():
            if log in accepted:
                self.order += 1
                found = Given(offset, epoch, metadata or "", topic_id, self.order)
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
        group, instance_id = self.draw.choice(GROUPS), self.draw.choice([None, None, "static"])
        members = [result.member_id for name, static, result in self.joined if (name, static) == (group, instance_id)]
        request = JoinRequest(
            group_id=group,
            member_id=self.draw.choice(["", *members[-3:]]),
            group_instance_id=None if instance_id is None else f"static-{group}",
            client_id=f"client-{group}",
            session_timeout_ms=self.draw.choice([500, 5_000]),
            rebalance_timeout_ms=self.draw.choice([300, 3_000]),
            protocol_type="consumer",
            protocols=(("range", self.draw.choice([b"", b"other"])), ("sticky", b"")),
            supports_skipping_assignment=self.draw.random() < 0.5,
        )
        self.take(self.coordinator.join_group(0, request, self.now_ms))

    def sync(self) -> None:
        if self.joined:
            group, static, result = self.draw.choice(self.joined[-4:])
            assignments = tuple((member.member_id, b"part %d" % number) for number, member in enumerate(result.members))
            request = SyncRequest(
                group_id=group,
                generation_id=result.generation_id,
                member_id=result.member_id,
                group_instance_id=None if static is None else f"static-{group}",
                assignments=assignments,
            )
            self.take(self.coordinator.sync_group(0, request, self.now_ms))

    def leave(self) -> None:
        if self.joined:
            group, _, result = self.draw.choice(self.joined)
            self.take(self.coordinator.leave_group(0, group, (LeavingMember(result.member_id),), self.now_ms))

    def wait(self) -> None:
        end_ms = self.now_ms + self.draw.choice([1, 400, 4_000])
        while (due_ms := self.coordinator.next_deadline_ms()) is not None and due_ms <= end_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self.take(self.coordinator.advance(self.now_ms))
        self.now_ms = end_ms

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
                if expected.state == "PreparingRebalance":
                    assert max(found.generation_id, 0) == expected.generation_id
                    assert found.state != "PreparingRebalance"
                elif expected.generation_id > 0:
                    assert found == expected


@pytest.mark.parametrize("first", range(0, 20, 10))
def test_positions_are_those_of_a_dict_and_records_give_the_same_state_after_every_request(first: int) -> None:
    for seed in range(first, first + 10):
        history = History(seed)
        for _ in range(60):
            history.step()
            history.check(history.coordinator)
            history.check_restored()
            if history.draw.random() < 0.05:
                history.coordinator = history.restore(history.records)
