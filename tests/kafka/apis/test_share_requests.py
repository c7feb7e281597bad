"""ShareFetch and ShareAcknowledge against a table of which member has which records, under any history."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from random import Random
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import attrs
import trio
from trio.testing import MockClock

from dafka.broker.connections.memory import MemoryPool
from dafka.broker.coordinator.share_partitions import SharePartitions
from dafka.broker.coordinator.share_reads import AcquiredRecords, ShareRead
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.share.share_partition import Acknowledgement, AcquiredRange
from dafka.broker.log.waiters import LogWaiters
from dafka.errors import StorageError
from dafka.kafka.apis.share_records import share_acknowledge, share_fetch
from dafka.kafka.protocol.constants import FINAL_EPOCH, INITIAL_EPOCH, RECORD_LIMIT
from dafka.kafka.protocol.messages.logs import LeaderIdAndEpoch
from dafka.kafka.protocol.messages.share_records import (
    AcknowledgementBatch,
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
    ShareFetchPartition,
    ShareFetchRequest,
    ShareFetchTopic,
    ShareForgottenTopic,
)
from dafka.kafka.server.share_sessions import SharedLog, ShareMemberId, ShareSessions
from tests.seeds import each_seed

SEEDS, STEPS = 30, 60
MEMBERS = ("m", "n", "o")
SESSIONS_MAX, LOGS_MAX = 2, 5
TOPIC, UNKNOWN, FORBIDDEN = UUID(int=1), UUID(int=2), UUID(int=3)
LOGS = [SharedLog(TOPIC, number) for number in range(4)]
OTHERS = {
    SharedLog(UNKNOWN, 0): ErrorCode.UNKNOWN_TOPIC_ID,
    SharedLog(FORBIDDEN, 0): ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    SharedLog(TOPIC, 9): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
}
NONE, NOT_LEADER = ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER
RECORD_BYTES, RANGE_BYTES = 100, 18
LOCK_MS = 1234
LEADER = LeaderIdAndEpoch(leader_id=7, leader_epoch=3)


@attrs.define(eq=False)
class SharedRecords:
    """A log that a group shares: how often each record was delivered, and which member has it."""

    named: SharedLog
    topic: str = "orders"
    leadership: Any = attrs.field(factory=lambda: SimpleNamespace(is_led=True, epoch=0))
    end: int = 0
    counts: Counter[int] = attrs.field(factory=Counter)
    holders: dict[int, str] = attrs.field(factory=dict)
    ended: set[int] = attrs.field(factory=set)
    error: ErrorCode = NONE
    has_lease: bool = True
    is_readable: bool = True
    key: Any = attrs.field(factory=lambda: SimpleNamespace(group_id="group"))

    @property
    def is_current(self) -> bool:
        return not self.error and bool(self.leadership.is_led)

    def find_available(self) -> list[int]:
        return [each for each in range(self.end) if each not in self.holders and each not in self.ended]


class World:
    """A broker with some logs, whose members ask it one by one."""

    def __init__(self, seed: int) -> None:
        self.draw = Random(seed)
        self.logs = {each: SharedRecords(each) for each in LOGS}
        self.answers = MemoryPool(2**20)
        self.watchers = LogWaiters()
        self.sessions = ShareSessions(SESSIONS_MAX, LOGS_MAX)
        self.epochs: dict[str, int] = {}
        self.named: dict[str, list[SharedLog]] = {}
        self.consumed = Counter[str]()
        self.delivered: list[tuple[SharedLog, int, int]] = []
        self.reads: list[ShareRead] = []
        self.is_disturbed = False
        self.may_use_group = True
        topics = {TOPIC: "orders", FORBIDDEN: "secret"}
        names = {key: SimpleNamespace(name=name) for key, name in topics.items()}
        table = SimpleNamespace(find_client_topic_by_id=lambda topic_id: names.get(UUID(topic_id)))
        part: Any = self
        broker = SimpleNamespace(
            node=SimpleNamespace(log_table=table, watchers=self.watchers),
            shares=part,
            share_reader=part,
            reads_of=lambda _source: trio.CapacityLimiter(1),
        )
        view = SimpleNamespace(describe_leader=lambda _log: LEADER, describe_endpoints=lambda leaders: [*leaders])
        self.context: Any = SimpleNamespace(
            broker=broker,
            server=SimpleNamespace(
                answers=self.answers, share_sessions=self.sessions, counters=SimpleNamespace(consumed=self.consumed)
            ),
            connection="connection",
            source="anne",
            may_use_group=lambda _group: self.may_use_group,
            may_read=lambda name: name == "orders",
            find_log=lambda _name, topic_id, number: self.logs.get(SharedLog(topic_id, number)),
            limit_response=lambda size: size,
            view_cluster=lambda: view,
        )

    # What handlers use

    def settings_of(self, _group_id: str) -> Any:
        return SimpleNamespace(may_renew=False, limits=SimpleNamespace(lock_ms=LOCK_MS))

    def find(self, _group_id: str, log: SharedRecords, _topic_id: str) -> SharedRecords:
        return log

    def served(self, _group_id: str, topic_id: str, number: int) -> SharedRecords:
        return self.logs[SharedLog(UUID(topic_id), number)]

    async def verify(self, _served: SharedRecords) -> None:
        await trio.lowlevel.checkpoint()

    def holds_lease(self, served: SharedRecords) -> bool:
        return served.has_lease and served.is_current

    def release(self, group_id: str, member_id: str) -> None:
        assert group_id == "group"
        for log in self.logs.values():
            log.holders = {each: holder for each, holder in log.holders.items() if holder != member_id}

    def acknowledge(self, log: SharedRecords, member_id: str, said: Sequence[Acknowledgement]) -> ErrorCode:
        offsets = [each for first, end, _ in said for each in range(first, end)]
        if any(log.holders.get(each) != member_id for each in offsets):
            return ErrorCode.INVALID_RECORD_STATE
        for each in offsets:
            del log.holders[each]
            log.ended.add(each)
        return NONE

    async def wait_written(self, _changed: Iterable[SharedRecords]) -> dict[SharedRecords, ErrorCode]:
        await trio.lowlevel.checkpoint()
        return {}

    def delivering(self, member_id: str) -> AbstractContextManager[dict[Any, Sequence[AcquiredRange]]]:
        part: Any = self
        return SharePartitions.delivering(part, member_id)

    def withdraw(self, served: SharedRecords, member_id: str, ranges: Iterable[AcquiredRange]) -> None:
        for offset in [each for first, end, _ in ranges for each in range(first, end)]:
            assert served.holders.pop(offset) == member_id
            served.counts[offset] -= 1
            self.delivered.remove((served.named, offset, served.counts[offset] + 1))

    async def read(self, served: SharedRecords, wanted: ShareRead, bytes_max: int) -> AcquiredRecords:
        """Acquire the next batch or batches, each of one to three records, as a `ShareReader` does."""
        await trio.lowlevel.checkpoint()
        if self.is_disturbed:
            self._disturb(served)
        if not served.is_readable:
            raise StorageError("unreadable")
        if wanted.records_max <= 0 or bytes_max <= 0:
            return AcquiredRecords()
        self.reads.append(wanted)
        batches, ranges, left = list[bytes](), list[AcquiredRange](), wanted.records_max
        available = served.find_available()
        while available and left > 0:
            size = self.draw.randint(1, 3)
            taken = available[: min(size, left) if wanted.is_exact else size]
            data = bytes(RECORD_BYTES * len(taken))
            if sum(map(len, batches)) + len(data) > bytes_max and (batches or not wanted.may_exceed):
                break
            batches.append(data)
            for offset in taken:
                served.counts[offset] += 1
                served.holders[offset] = wanted.member_id
                count = served.counts[offset]
                first = offset
                if ranges and (ranges[-1].end, ranges[-1].delivery_count) == (offset, count):
                    first = ranges.pop().first
                ranges.append(AcquiredRange(first, offset + 1, count))
                self.delivered.append((served.named, offset, count))
            available, left = available[len(taken) :], left - len(taken)
        return AcquiredRecords(batches, ranges)

    def _disturb(self, served: SharedRecords) -> None:
        """Apply one of five faults: the end of the lease, leadership, reads, the permission, or the memory."""
        self.is_disturbed = False
        kind = self.draw.randrange(5)
        if kind == 0:
            served.has_lease = False
        elif kind == 1:
            served.leadership = SimpleNamespace(is_led=False, epoch=1)
        elif kind == 2:
            served.is_readable = False
        elif kind == 3:
            self.may_use_group = False
        else:
            self.answers.take_now(2**20)

    def calm(self) -> None:
        self.answers.give_back(self.answers.taken_bytes)
        self.may_use_group, self.is_disturbed = True, False
        for log in self.logs.values():
            log.has_lease = log.is_readable = True
            log.leadership = SimpleNamespace(is_led=True, epoch=0)

    # Members

    def say(self, member_id: str) -> dict[SharedLog, list[int]]:
        """Return the records that a member acknowledges: some of its own, and at times one that it does not have."""
        said = dict[SharedLog, list[int]]()
        for each, log in self.logs.items():
            own = sorted(offset for offset, holder in log.holders.items() if holder == member_id)
            said[each] = [offset for offset in own if self.draw.random() < 0.5]
            if log.end and self.draw.random() < 0.05:
                said[each] = [self.draw.randrange(log.end)]
        return {each: offsets for each, offsets in said.items() if offsets}

    def find_errors(self, member_id: str, said: Mapping[SharedLog, Sequence[int]]) -> dict[SharedLog, ErrorCode]:
        """Return the errors of what a member says now."""
        errors = dict[SharedLog, ErrorCode]()
        for each, offsets in said.items():
            log = self.logs[each]
            is_held = all(log.holders.get(offset) == member_id for offset in offsets)
            errors[each] = NONE if is_held else ErrorCode.INVALID_RECORD_STATE
        return errors

    def choose_epoch(self, member_id: str) -> int:
        known = self.epochs.get(member_id, INITIAL_EPOCH)
        return self.draw.choice([known, known, known, known, known, INITIAL_EPOCH, FINAL_EPOCH, 77])

    def find_session_error(self, member_id: str, epoch: int, logs: Sequence[SharedLog]) -> ErrorCode:
        """Return the error of a request after which the session has some logs."""
        others = [each for each in self.epochs if each != member_id]
        if epoch != INITIAL_EPOCH and member_id not in self.epochs:
            return ErrorCode.SHARE_SESSION_NOT_FOUND
        if epoch not in {INITIAL_EPOCH, FINAL_EPOCH, self.epochs.get(member_id)}:
            return ErrorCode.INVALID_SHARE_SESSION_EPOCH
        log_count = len(logs) + sum(len(self.named[each]) for each in others)
        is_large = log_count > LOGS_MAX and len(logs) > LOGS_MAX // SESSIONS_MAX
        return ErrorCode.SHARE_SESSION_LIMIT_REACHED if len(others) >= SESSIONS_MAX or is_large else NONE

    def begin(self, member_id: str, epoch: int, error: ErrorCode) -> None:
        """Follow the session of a member, which has nothing any more if it has none."""
        if error is ErrorCode.SHARE_SESSION_LIMIT_REACHED or (not error and epoch == FINAL_EPOCH):
            self.epochs.pop(member_id, None)
            self.named.pop(member_id, None)
        elif not error:
            self.epochs[member_id] = epoch + 1

    def check_released(self, member_id: str) -> None:
        if member_id not in self.epochs:
            assert not any(member_id in log.holders.values() for log in self.logs.values()), "nobody else gets them"

    async def append(self) -> None:
        log: Any = self.draw.choice([*self.logs.values()])
        log.end += self.draw.randint(1, 4)
        self.watchers.notify(log)
        await trio.lowlevel.checkpoint()

    async def acknowledge_some(self) -> None:
        member_id = self.draw.choice(MEMBERS)
        epoch, said = self.choose_epoch(member_id), self.say(member_id)
        error = self.find_session_error(member_id, epoch, self.named.get(member_id, []))
        errors = self.find_errors(member_id, said)
        request = ShareAcknowledgeRequest(
            group_id="group",
            member_id=member_id,
            share_session_epoch=epoch,
            topics=[AcknowledgeTopic(topic_id=TOPIC, partitions=self._describe(said, AcknowledgePartition))],
        )
        found = await share_acknowledge(self.context, request)
        if epoch == INITIAL_EPOCH:
            assert found.error_code is ErrorCode.INVALID_REQUEST
            return
        assert found.error_code == error
        self.begin(member_id, epoch, error)
        if not error:
            got = {
                SharedLog(topic.topic_id, each.partition_index): each.error_code
                for topic in found.responses
                for each in topic.partitions
            }
            assert (got, found.acquisition_lock_timeout_ms) == (errors, LOCK_MS)
            self._check_ended(member_id, said, errors)
        self.check_released(member_id)

    def _check_ended(
        self, member_id: str, said: Mapping[SharedLog, Sequence[int]], errors: Mapping[SharedLog, ErrorCode]
    ) -> None:
        for each, offsets in said.items():
            assert errors[each] or self.logs[each].ended.issuperset(offsets)

    def _describe(self, said: Mapping[SharedLog, Sequence[int]], table: Any, others: Iterable[SharedLog] = ()) -> Any:
        return [
            table(
                partition_index=each.number,
                acknowledgement_batches=[
                    AcknowledgementBatch(first_offset=offset, last_offset=offset, acknowledge_types=[1])
                    for offset in said.get(each, ())
                ],
            )
            for each in dict.fromkeys((*said, *others))
        ]

    async def fetch(self) -> None:
        member_id = self.draw.choice(MEMBERS)
        epoch = self.choose_epoch(member_id)
        said = self.say(member_id) if epoch != INITIAL_EPOCH else {}
        added = self.draw.sample([*LOGS, *OTHERS], self.draw.randint(0, 3))
        forgotten = self.draw.sample(LOGS, 1) if self.draw.random() < 0.1 else []
        topics = [
            ShareFetchTopic(
                topic_id=topic_id,
                partitions=self._describe(
                    {each: offsets for each, offsets in said.items() if each.topic_id == topic_id},
                    ShareFetchPartition,
                    [each for each in added if each.topic_id == topic_id],
                ),
            )
            for topic_id in (TOPIC, UNKNOWN, FORBIDDEN)
        ]
        asked = [SharedLog(topic.topic_id, part.partition_index) for topic in topics for part in topic.partitions]
        before = self.named.get(member_id, []) if epoch != INITIAL_EPOCH else []
        logs = [each for each in dict.fromkeys([*before, *asked]) if each not in forgotten]
        error, errors = self.find_session_error(member_id, epoch, logs), self.find_errors(member_id, said)
        request = ShareFetchRequest(
            group_id="group",
            member_id=member_id,
            share_session_epoch=epoch,
            max_wait_ms=self.draw.choice([0, 0, 1000]),
            min_bytes=1,
            max_bytes=self.draw.choice([50, 350, 2**16]),
            max_records=self.draw.choice([1, 3, 20]),
            batch_size=5,
            share_acquire_mode=self.draw.choice([0, RECORD_LIMIT]),
            topics=topics,
            forgotten_topics_data=[ShareForgottenTopic(topic_id=TOPIC, partitions=[each.number for each in forgotten])],
        )
        self.delivered, self.reads = [], []
        consumed = self.consumed.total()
        self.is_disturbed = self.draw.random() < 0.2
        is_calm, begun = not self.is_disturbed, trio.current_time()
        async with trio.open_nursery() as nursery:
            if self.draw.random() < 0.3:
                nursery.start_soon(self._append_later)
            found = await share_fetch(self.context, request)
            nursery.cancel_scope.cancel()
        waited_s = trio.current_time() - begun
        may_use_group = self.may_use_group
        error_code = error if error or may_use_group else ErrorCode.GROUP_AUTHORIZATION_FAILED
        assert found.error_code == error_code
        self.begin(member_id, epoch, error)
        delivered = sorted(self.delivered)
        if not error and epoch != FINAL_EPOCH:
            self.named[member_id] = logs
        if error_code:
            assert not delivered, "the member does not get them"
            if not error and epoch != FINAL_EPOCH:  # the order does not matter
                session = self.sessions._sessions[ShareMemberId("group", member_id)]
                assert session.logs.keys() == {*self.named[member_id]}
                self.named[member_id] = [*session.logs]
        else:
            self._check_response(request, found, delivered, errors)
            self._check_ended(member_id, said, errors)
            assert self.consumed.total() - consumed == len(delivered)
            if epoch != FINAL_EPOCH:
                self._check_order(member_id, found)
                if is_calm:
                    self._check_wait(member_id, request, found, waited_s)
        self.check_released(member_id)
        self.calm()
        assert self.answers.taken_bytes == 0

    async def _append_later(self) -> None:
        await trio.sleep(self.draw.choice([0, 0.5]))
        await self.append()

    def _check_response(
        self, request: ShareFetchRequest, found: Any, delivered: Sequence[tuple[SharedLog, int, int]], errors: Any
    ) -> None:
        parts = {
            SharedLog(topic.topic_id, each.partition_index): each
            for topic in found.responses
            for each in topic.partitions
        }
        got = [
            (named, offset, each.delivery_count)
            for named, part in parts.items()
            for each in part.acquired_records
            for offset in range(each.first_offset, each.last_offset + 1)
        ]
        assert sorted(got) == delivered, "exactly what it has acquired"
        assert {each: parts[each].acknowledge_error_code for each in errors} == errors
        assert found.acquisition_lock_timeout_ms == LOCK_MS
        size = sum(len(part.records) for part in parts.values())
        assert size == len(got) * RECORD_BYTES
        largest = max([len(part.records) for part in parts.values()], default=0)
        assert size <= request.max_bytes or size == largest <= 3 * RECORD_BYTES
        spare = 0 if request.share_acquire_mode == RECORD_LIMIT else 2
        assert len(got) <= request.max_records + spare
        for named, part in parts.items():
            if named in OTHERS:
                assert part.error_code is OTHERS[named]
            if part.error_code:
                assert not part.records
                assert not part.acquired_records
            assert not part.acquired_records or (self.logs[named].has_lease and self.logs[named].is_current)
            is_elsewhere = NOT_LEADER in {part.error_code, part.acknowledge_error_code} and named in self.logs
            assert part.current_leader.leader_id == (LEADER.leader_id if is_elsewhere else -1)
        assert bool(found.node_endpoints) == any(part.current_leader.leader_id >= 0 for part in parts.values())

    def _check_order(self, member_id: str, found: Any) -> None:
        """Check that logs of which something was answered come last, the next time."""
        order = self.named[member_id]
        answered = {
            SharedLog(topic.topic_id, each.partition_index)
            for topic in found.responses
            for each in topic.partitions
            if each.acquired_records or each.error_code
        }
        order = [each for each in order if each not in answered] + [each for each in order if each in answered]
        session = self.sessions._sessions[ShareMemberId("group", member_id)]
        assert [*session.logs] == order
        self.named[member_id] = order

    def _check_wait(self, member_id: str, request: ShareFetchRequest, found: Any, waited_s: float) -> None:
        """Check that a member is answered when there is something for it, and at the deadline otherwise."""
        has_news = any(
            each.acquired_records or each.error_code for topic in found.responses for each in topic.partitions
        )
        if has_news:
            assert waited_s < 0.6
        else:
            assert waited_s == request.max_wait_ms / 1000
            logs = [self.logs[each] for each in self.named[member_id] if each in self.logs]
            assert request.max_bytes < 3 * RECORD_BYTES or not any(each.find_available() for each in logs)


async def play(seed: int) -> None:
    world = World(seed)
    for _ in range(STEPS):
        (act,) = world.draw.choices([world.append, world.acknowledge_some, world.fetch], [3, 3, 6])
        await act()


@each_seed(SEEDS)
def test_members_get_exactly_what_they_have_acquired_within_their_limits(seed: int) -> None:
    trio.run(play, seed, clock=MockClock(autojump_threshold=0))
