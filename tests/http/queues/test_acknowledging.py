"""Responses about records of queues are true, whichever brokers lead the logs, and whatever these respond."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import attrs
import pytest
import trio
import trio.testing

from dafka.batches import check_crc, encode_batch
from dafka.broker.connections.memory import Memory
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.share.share_partition import Acknowledgement, AcknowledgeType, AcquiredRange
from dafka.broker.core.log.log import Log
from dafka.broker.core.metadata.leader_and_isr import LeaderAndIsr
from dafka.http.forwarding.broker_client import BrokerError
from dafka.http.forwarding.broker_link import UnsentError
from dafka.http.forwarding.leaders import RETRIED
from dafka.http.forwarding.remote_queues import RemoteQueues
from dafka.http.logs.log_access import LEADER_WAIT_S, ReadRecords
from dafka.http.queues.cluster_queues import ClusterQueues
from dafka.http.queues.encoding import encode_locked
from dafka.http.queues.local_queues import RETRY_S, VERIFIED_S, LocalQueues
from dafka.http.queues.queue_access import (
    AcknowledgedRecords,
    Acknowledgements,
    LockedRecords,
    Queue,
    QueueState,
    ReceiveLimits,
    RefusedRecords,
)
from dafka.http.server.errors import LeaderMovedError, WebError
from dafka.http.server.principal import Principal
from dafka.http.websocket import messages, queue_tasks
from tests.http.running import TOPIC, make_log, outcome
from tests.seeds import each_seed

A, B, C = "a" * 32, "b" * 32, "c" * 32
QUEUE = Queue("workers", TOPIC)
KINDS = [AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE]
SIZE = 9
"""How many records each log has."""


def draw_ranges(draw: Random) -> list[Acknowledgement]:
    cuts = sorted(draw.sample(range(SIZE), 2 * draw.randint(0, 3)))
    return [Acknowledgement(*each, draw.choice(KINDS)) for each in zip(cuts[::2], cuts[1::2], strict=True)]


def offsets_of(log: int, ranges: Iterable[tuple[Any, ...]]) -> set[tuple[int, int]]:
    return {(log, offset) for first, end, *_ in ranges for offset in range(first, end)}


def refused_in(refused: Iterable[RefusedRecords]) -> dict[tuple[int, int], str]:
    """Return the code for each record, which is refused once."""
    found = [((each.log, offset), each.code) for each in refused for offset in range(each.offset, each.last + 1)]
    assert len(dict(found)) == len(found)
    return dict(found)


# The logs that this broker leads


@attrs.define(eq=False)
class Shares:
    """Stands for the share partitions of a broker, which has some, and of which some are not written in the end."""

    held: dict[int, list[Acknowledgement]]
    """By log, what a receipt has of what it is said about, and of all else."""
    uncertain: dict[int, ErrorCode]
    written: trio.Event = attrs.field(factory=trio.Event)
    said: list[tuple[Any, ...]] = attrs.field(factory=list)

    def served(self, group: str, topic_id: str, number: int) -> Any:
        assert (group, topic_id) == (QUEUE.name, "id")
        return number if number in self.held else None

    def acknowledge_acquired(self, served: int, receipt: str, asked: object, others: object) -> list[Acknowledgement]:
        self.said.append((served, receipt, asked, others))
        return self.held[served]

    async def wait_written(self, changed: Iterable[int]) -> dict[int, ErrorCode]:
        await self.written.wait()
        return {each: self.uncertain[each] for each in changed if each in self.uncertain}


@each_seed(100)
def test_records_are_acknowledged_when_that_is_durable_and_all_others_are_named(seed: int) -> None:
    draw, logs = Random(seed), [make_log(number) for number in range(3)]
    asked = {log.number: ranges for log in logs if (ranges := draw_ranges(draw))}
    others = draw.choice([None, *KINDS])
    said = Acknowledgements("receipt", asked, others)
    held: dict[int, list[Acknowledgement]] = {}
    for log in draw.sample(logs, 2):
        of_asked = [each for each in asked.get(log.number, ()) if draw.random() < 0.6]
        taken = offsets_of(log.number, asked.get(log.number, ()))
        rest = [n for n in range(SIZE, SIZE + 3) if others is not None and (log.number, n) not in taken]
        held[log.number] = of_asked + [Acknowledgement(n, n + 1, KINDS[0]) for n in rest]
    errors = [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR]
    shares = Shares(held, {number: draw.choice(errors) for number in held if draw.random() < 0.5})
    node = SimpleNamespace(watchers=None, find_topic=lambda _name: SimpleNamespace(topic_id="id"))
    broker: Any = SimpleNamespace(shares=shares, node=node)
    memory: Any = None
    answers: list[dict[tuple[int, int], str]] = []

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(acknowledge)
            await trio.testing.wait_all_tasks_blocked()
            assert not answers
            shares.written.set()

    async def acknowledge() -> None:
        answers.append(refused_in(await LocalQueues(broker, memory).acknowledge(QUEUE, logs, said)))

    trio.run(main)
    expected: dict[tuple[int, int], str] = {}
    for log in logs:
        mine, found = offsets_of(log.number, asked.get(log.number, ())), held.get(log.number, [])
        expected |= dict.fromkeys(mine - offsets_of(log.number, found), "lock_lost")
        if log.number in shares.uncertain:
            is_failed = shares.uncertain[log.number] is ErrorCode.KAFKA_STORAGE_ERROR
            code = "storage_failed" if is_failed else "leader_changed"
            expected |= dict.fromkeys(mine | offsets_of(log.number, found), code)
    assert answers == [expected]
    assert shares.said == [(number, "receipt", asked.get(number, ()), others) for number in sorted(held)]
    for change, code in ((attrs.evolve(logs[0].leadership, is_led=False), "not_leader"), (None, "topic_not_found")):
        logs[2].leadership, logs[2].is_gone = change or logs[2].leadership, change is None
        shares.said.clear()
        assert trio.run(outcome, LocalQueues(broker, memory).acknowledge(QUEUE, logs, said)) == code
        assert not shares.said, "nothing is acknowledged before"


@attrs.define(eq=False)
class Served:
    """Stands for a share partition with seven available records and two locked ones."""

    is_current: bool = True
    partition: Any = attrs.field(
        factory=lambda: SimpleNamespace(start_offset=5, count_available=lambda _end: 7, count_acquired=lambda: 2)
    )
    error: ErrorCode = ErrorCode.NONE
    verified_at: float = 0.0
    changed: trio.Event = attrs.field(factory=trio.Event)


FOUND, NOTHING, GONE = QueueState(5, 7, 2), QueueState(5, 0, 2), ErrorCode.GROUP_ID_NOT_FOUND
STATES: list[tuple[Any, dict[str, Any], object, float]] = [
    ([{}], {}, FOUND, 0),
    ([{}], {"has_lease": False}, NOTHING, 0),
    ([{}], {"unread": None}, NOTHING, 0),
    ([{"error": GONE}], {}, "group_not_found", 0),
    ([{"is_current": False}, {}], {}, FOUND, RETRY_S),
    ([{"is_current": False}], {}, "leader_unavailable", LEADER_WAIT_S),
    ([{"is_current": False}], {"problem": "the disk is full"}, "storage_failed", LEADER_WAIT_S),
    ([{"partition": None}], {}, "leader_unavailable", LEADER_WAIT_S),
    ([{"verified_at": -2 * VERIFIED_S}], {}, "group_not_found", 0),
    ([{"verified_at": -VERIFIED_S / 2}], {}, FOUND, 0),
    ([{}], {"is_led": False}, "not_leader", 0),
    ([{}], {"is_gone": True}, "topic_not_found", 0),
]
"""Share partitions as they are found one after the other, what else is so, the state, and when it is known.

A comparison with the coordinator finds that the queue was deleted.
"""


async def test_a_queue_is_used_when_it_is_loaded_and_known_to_be_current(
    autojump_clock: trio.testing.MockClock,
) -> None:
    for given, options, expected, seconds in STATES:
        begun_s, log = trio.current_time(), make_log(is_led=options.get("is_led"))
        log.is_gone = options.get("is_gone", False)
        served = [Served(**{**each, "verified_at": begun_s + each.get("verified_at", 0)}) for each in given]

        async def verify(each: Served) -> None:
            await trio.lowlevel.checkpoint()
            each.error, each.is_current = GONE, False

        def find(*place: object, log: Log = log, served: list[Served] = served) -> Served:
            assert place == (QUEUE.name, log, "id")
            return served.pop(0) if len(served) > 1 else served[0]

        unread, has_lease = options.get("unread", (0, 9)), options.get("has_lease", True)
        waits = SimpleNamespace(problem=options.get("problem", ""))
        broker: Any = SimpleNamespace(
            shares=SimpleNamespace(find=find, verify=verify, holds_lease=lambda _, has_lease=has_lease: has_lease),
            share_reader=SimpleNamespace(find_next=lambda _, unread=unread: unread),
            node=SimpleNamespace(
                watchers=None,
                find_topic=lambda _name: SimpleNamespace(topic_id="id"),
                storage=SimpleNamespace(waits=waits),
            ),
        )
        memory: Any = None
        found = await outcome(LocalQueues(broker, memory).known_states(QUEUE, [log]))
        assert found == (expected if isinstance(expected, str) else {log: expected}), (given, options)
        assert trio.current_time() - begun_s == pytest.approx(seconds)


# All logs, whichever broker leads them


@attrs.define(eq=False)
class Access:
    """Stands for the queues in the logs that are led here, or elsewhere. What happens to the next calls is scripted."""

    is_here: bool
    script: list[str]
    available: dict[Log, int] = attrs.field(factory=dict)
    done: list[tuple[int, int]] = attrs.field(factory=list)
    failures: list[str] = attrs.field(factory=list)
    receipts: list[tuple[object, ...]] = attrs.field(factory=list)

    async def _begin(self, logs: Sequence[Log]) -> str:
        await trio.lowlevel.checkpoint()
        assert logs
        what = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if what == "moves":
            log = logs[0]
            log.leadership = LeaderAndIsr(B if log.leadership.is_led else A, is_led=not log.leadership.is_led)
        for log in logs:
            if log.leadership.is_led != self.is_here:
                raise LeaderMovedError(log)
        if what == "fails":
            self.failures.append(what)
            raise WebError("storage_failed", "no")
        return what

    async def acknowledge(self, queue: Queue, logs: Sequence[Log], said: Acknowledgements) -> list[RefusedRecords]:
        what = await self._begin(logs)
        numbers = {log.number for log in logs}
        assert (queue, said.receipt, {*said.ranges} <= numbers) == (QUEUE, "receipt", True)
        if what == "refuses":
            return said.refuse(WebError("conflict", "no"))
        for number, ranges in said.ranges.items():
            self.done += offsets_of(number, ranges)
        return []

    async def known_states(self, _queue: Queue, logs: Sequence[Log]) -> dict[Log, QueueState]:
        await trio.lowlevel.checkpoint()
        return {log: QueueState(0, self.available[log], 0) for log in logs if log in self.available}

    async def lock(
        self, _queue: Queue, logs: Sequence[Log], receipt: str, limits: ReceiveLimits, source: str
    ) -> list[LockedRecords]:
        assert (receipt, source, min(limits) > 0) == ("receipt", "ada", True)
        await self._begin(logs)
        left, found = limits.records_max, list[LockedRecords]()
        for log in logs:
            count = min(self.available[log], left)
            left -= count
            self.available[log] -= count
            if count:
                found.append(LockedRecords(log.number, ReadRecords(0, count, (), 0), [AcquiredRange(0, count, 1)]))
        return found

    def release(self, _queue: Queue, logs: Sequence[Log], receipt: str) -> None:
        self.receipts.append((receipt, [log.number for log in logs]))


def open_queues(logs: Iterable[Log], script: list[str], *available: int) -> tuple[Any, Access, Access]:
    """Return the access to all logs, and to those that are led here and elsewhere. Some have available records."""
    here: Any = Access(True, script, dict(zip(logs, available, strict=False)))
    elsewhere: Any = Access(False, script, here.available, here.done, here.failures)
    return ClusterQueues(here, elsewhere), here, elsewhere


def run(call: Any) -> object:
    return trio.run(outcome, call, clock=trio.testing.MockClock(autojump_threshold=0))


@each_seed(150)
def test_each_record_is_acknowledged_once_or_refused_while_leaders_move(seed: int) -> None:
    """If some of the others are not known, so that they cannot be named, the request fails."""
    draw = Random(seed)
    logs = [make_log(number, draw.choice([A, B])) for number in range(4)]
    asked = {log.number: ranges for log in logs if (ranges := draw_ranges(draw))}
    happens = draw.sample(["moves", "fails", "refuses"], draw.randint(0, 3))
    script = [*draw.choices(["ok", *happens], k=8), draw.choice(["ok", "ok", "fails"])]
    access, here, _ = open_queues(logs, [*script])
    others = draw.choice([None, None, AcknowledgeType.RELEASE])
    said = Acknowledgements("receipt", asked, others)
    refused: Any = run(access.acknowledge(QUEUE, logs, said))
    wanted = {each for number, ranges in asked.items() for each in offsets_of(number, ranges)}
    assert len({*here.done}) == len(here.done)
    if isinstance(refused, str):
        assert (refused, others is not None, bool(here.failures)) == ("storage_failed", True, True)
        return
    assert refused == sorted(refused, key=lambda each: (each.log, each.offset))
    found = refused_in(refused)
    assert found.keys() == wanted - {*here.done}
    assert {*found.values()} <= {"conflict"} | ({"storage_failed"} if others is None else set())
    assert len(here.failures) <= len(logs), "what has failed is not repeated"


@pytest.mark.parametrize("others", [None, AcknowledgeType.ACCEPT])
def test_leaders_that_move_for_ever_are_not_waited_for_for_ever(others: AcknowledgeType | None) -> None:
    asked = {0: [Acknowledgement(2, 4, AcknowledgeType.ACCEPT)]}
    access, here, _ = open_queues([], ["moves"])
    found: Any = run(access.acknowledge(QUEUE, [make_log()], Acknowledgements("receipt", asked, others)))
    expected = "leader_unavailable" if others else {(0, 2): "leader_unavailable", (0, 3): "leader_unavailable"}
    assert (found if others else refused_in(found)) == expected
    assert not here.done
    access, *_ = open_queues([], ["ok"])
    assert run(access.lock(QUEUE, [make_log()], "receipt", ReceiveLimits(1, 1), "ada")) == "leader_unavailable"


@each_seed(150)
def test_what_is_locked_is_what_is_available_within_limits_in_turns(seed: int) -> None:
    draw = Random(seed)
    logs = [make_log(number, draw.choice([A, B])) for number in range(4)]
    what = draw.choice(["ok", "ok", "moves", "fails"])
    script = [*["ok"] * draw.randint(0, 3), what, "ok"]
    access, here, _ = open_queues(logs, script, *draw.choices(range(3), k=4))
    available, limit, first = sum(here.available.values()), draw.randint(1, 5), list[int]()
    for _ in range(2 * len(logs)):
        before = sum(here.available.values())
        found: Any = run(access.lock(QUEUE, logs, "receipt", ReceiveLimits(limit, 100), "ada"))
        if isinstance(found, str):
            assert (found, what) == ("storage_failed", "fails"), "nothing was locked that a client does not get"
            assert sum(here.available.values()) == before
            here.failures.clear()
            continue
        count = sum(each.record_count for each in found)
        assert count or not here.failures, "a failure is an error unless there are records"
        here.failures.clear()
        assert count == before - sum(here.available.values())
        assert count <= limit
        assert what != "ok" or count == min(limit, before)
        first += [each.log for each in found[:1]]
        here.available.update(dict.fromkeys(logs, 1))
    assert (
        what != "ok"
        or not available
        or {logs[each].leadership.leader for each in first} == {log.leadership.leader for log in logs}
    )
    access.release(QUEUE, logs, "receipt")
    for each, is_led in ((here, True), (access._remote, False)):
        assert each.receipts == [("receipt", [log.number for log in logs if log.leadership.is_led == is_led])]


# The logs that other brokers lead


@attrs.define
class Leaders:
    """Stands for the connections to the leaders of logs, which all have the same reply."""

    reply: Any
    asked: list[tuple[Any, ...]] = attrs.field(factory=list)

    def find(self, log: Log) -> object:
        return log.leadership.leader or None

    def link(self, log: Log) -> Any:
        if isinstance(self.reply, BrokerError):
            raise self.reply

        def note(*given: object) -> None:
            self.asked.append((log.leadership.leader, *given))

        return SimpleNamespace(describe_queue=note, receive=note, acknowledge=note, release=note)

    def unavailable(self, _log: Log, problem: str) -> WebError:
        return WebError("leader_unavailable", problem)

    async def retry_on_leader_change(self, log: Log, call: Any, _deadline: float) -> Any:
        await trio.lowlevel.checkpoint()
        if isinstance(self.reply, Exception):
            raise self.reply
        call(self.link(log))
        return self.reply


STATE, REFUSAL = QueueState(1, 2, 3), RefusedRecords(0, 1, 1, "lock_lost", "no")
LOCKED = LockedRecords(0, ReadRecords(0, 1, ()), [AcquiredRange(0, 1, 1)])
NO_RESULT = "leader_changed"
REPLIES: list[tuple[Any, object, object, object]] = [
    ([[REFUSAL]], [REFUSAL], None, None),
    ([[LOCKED]], None, [LOCKED], None),
    ([{0: STATE, 1: STATE}], None, None, [0, 1, 3]),
    ([], NO_RESULT, [], []),
    (UnsentError("is gone"), "not_leader", [], []),
    (BrokerError("is gone"), "leader_unavailable", [], []),
    *((WebError(each, "no"), "not_leader", "not_leader", []) for each in RETRIED),
    (WebError("storage_failed", "no"), "storage_failed", "storage_failed", "storage_failed"),
]
"""The reply of a leader, and what becomes of an acknowledgement, of a request for records and of one for states."""


async def test_what_another_leader_says_or_does_not_say_is_what_a_client_gets() -> None:
    """A request that could have been executed is not repeated."""
    logs, said = [make_log(0, B), make_log(1, B), make_log(3, C)], Acknowledgements("receipt", {})
    for reply, acknowledged, locked, known in REPLIES:
        leaders: Any = Leaders(reply)
        queues = RemoteQueues(leaders, lambda *_: None)
        if acknowledged is not None:
            assert await outcome(queues.acknowledge(QUEUE, logs[:2], said)) == acknowledged, reply
        if locked is not None:
            assert await outcome(queues.lock(QUEUE, logs[:2], "receipt", ReceiveLimits(1, 1), "ada")) == locked, reply
        if known is not None:
            leaders.reply = reply if isinstance(reply, Exception) else reply and [reply[0] | {3: STATE}]
            found: Any = await outcome(queues.known_states(QUEUE, logs))
            assert (found if isinstance(found, str) else sorted(log.number for log in found)) == known, reply
        queues.release(QUEUE, logs, "receipt")
        released = [(B, QUEUE, [0, 1], "receipt"), (C, QUEUE, [3], "receipt")]
        assert leaders.asked[-2:] == ([] if isinstance(reply, BrokerError) else released)
    assert await outcome(queues.acknowledge(QUEUE, [make_log(0, "", is_led=False)], said)) == "not_leader"


# Requests and answers


async def test_others_are_acknowledged_in_the_logs_that_a_message_names_or_in_all() -> None:
    logs = [make_log(number) for number in range(3)]
    ranges = [AcknowledgedRecords(1, 5, "accept")]
    for given, others, named, asked in (
        (ranges, None, None, [1]),
        ([], "accept", None, [0, 1, 2]),
        ([], "accept", [2], [2]),
        (ranges, "accept", [2], [1, 2]),
        (ranges, None, [2], [1]),
    ):
        acknowledge = AsyncMock(return_value=[])
        request: Any = SimpleNamespace(
            principal=Principal(None),
            broker=SimpleNamespace(
                node=SimpleNamespace(logs=lambda _topic: logs),
                shares=SimpleNamespace(settings_of=lambda _group: SimpleNamespace(may_renew=True)),
            ),
            queues=SimpleNamespace(acknowledge=acknowledge),
        )
        message = messages.Acknowledge(7, TOPIC, QUEUE.name, "receipt", given, others, named)
        await queue_tasks.acknowledge(request, message)
        ((queue, found, said),) = [each.args for each in acknowledge.await_args_list]
        assert (queue, [log.number for log in found], said.receipt) == (QUEUE, asked, "receipt")


@each_seed(50)
def test_locked_records_are_described_with_their_deliveries_and_no_others_are(seed: int) -> None:
    draw = Random(seed)
    sizes = draw.choices(range(1, 5), k=3)
    starts = [sum(sizes[:number]) for number in range(4)]
    batches = [encode_batch(first, [b"x"] * size, timestamps=5) for first, size in zip(starts, sizes, strict=False)]
    cuts = sorted(draw.sample(range(starts[-1] + 1), 2 * draw.randint(1, (starts[-1] + 1) // 2)))
    ranges = [AcquiredRange(*each, draw.randint(1, 3)) for each in zip(cuts[::2], cuts[1::2], strict=True)]
    read = ReadRecords(0, starts[-1], [(check_crc(each), each) for each in batches])
    locked, pool = LockedRecords(7, read, ranges, 1000), Memory(2**30).make_pool(2**29)
    lines = trio.run(encode_locked, locked, 300, pool, "ada")
    found = [json.loads(b"".join(each.pieces())) for each in lines]
    rest = {"delivery_count", "locked_until", "log", "timestamp", "value"}
    assert all(each.keys() == {"offset", *rest} for each in found)
    assert [(each["offset"], each["delivery_count"]) for each in found] == [
        (offset, count) for first, end, count in ranges for offset in range(first, end)
    ]
    assert {(each["locked_until"], each["log"], each["value"]) for each in found} == {(1300, 7, "x")}
    assert [each.offset for each in lines] == [each["offset"] for each in found]
