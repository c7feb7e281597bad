"""What clients are told when a log or a group cannot be used: a table of failures and codes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from dafka.batches import check_crc, encode_batch
from dafka.broker.coordinator.coordinator_shard import CoordinatorError
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.log.log import Log
from dafka.broker.core.metadata.leader_and_isr import LeaderAndIsr
from dafka.broker.core.positions import Offset
from dafka.broker.core.topic_partition import TopicPartition
from dafka.broker.log.appending import AppendRefusedError
from dafka.errors import NotLeaderError, OutcomeUnknownError, StorageError, TopicDeletedError
from dafka.http.forwarding.broker_client import BrokerError
from dafka.http.logs.group_access import GroupAccess
from dafka.http.logs.local_logs import LocalLogs, refused_append
from dafka.http.logs.log_access import LEADER_WAIT_S
from dafka.http.server.errors import STATUSES, LeaderMovedError, WebError
from tests.http.running import make_log, outcome

REFUSED = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ("topic_not_found", 404),
    ErrorCode.KAFKA_STORAGE_ERROR: ("storage_failed", 503),
    ErrorCode.NOT_ENOUGH_REPLICAS: ("leader_unavailable", 503),
    ErrorCode.MESSAGE_TOO_LARGE: ("too_large", 413),
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: ("conflict", 409),
    ErrorCode.INVALID_PRODUCER_EPOCH: ("conflict", 409),
    ErrorCode.INVALID_TXN_STATE: ("conflict", 409),
    ErrorCode.INVALID_RECORD: ("bad_request", 400),
    ErrorCode.CORRUPT_MESSAGE: ("bad_request", 400),
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE: ("bad_request", 400),
}


def test_a_refused_append_has_a_code_that_says_what_to_do() -> None:
    for error_code, expected in REFUSED.items():
        error = refused_append(make_log(3), AppendRefusedError(error_code, "the reason"))
        assert (error.code, error.status) == expected
        assert "'orders'" in error.message or error.code == "bad_request"
        assert error.code in {"topic_not_found", "conflict"} or "the reason" in error.message


def test_every_code_has_the_status_that_clients_know() -> None:
    found: dict[int, set[str]] = {}
    for code, status in STATUSES.items():
        found.setdefault(status, set()).add(code)
    assert found == {
        400: {"bad_request", "offset_out_of_range"},
        401: {"unauthenticated"},
        403: {"forbidden"},
        404: {"not_found", *(f"{each}_not_found" for each in ("topic", "log", "group", "broker"))},
        405: {"method_not_allowed"},
        408: {"request_timeout"},
        409: {"conflict", "topic_exists"},
        413: {"too_large"},
        415: {"unsupported"},
        421: {"not_leader"},
        429: {"too_many_requests"},
        500: {"internal_error"},
        503: {
            "storage_failed",
            "controller_unavailable",
            "leader_unavailable",
            "leader_changed",
            "broker_unavailable",
        },
    }


class Node:
    """Stands for a broker's node, whose lease of each log comes when it is let."""

    def __init__(self) -> None:
        self.has_lease = trio.Event()
        self.leases = self
        self.reader: Any = self
        self.on_wait: Callable[[], None] = lambda: None
        self.failure: Exception | None = None
        self.found: tuple[int, int] | None = (0, 0)

    def holds_lease(self, _log: Log) -> bool:
        return self.has_lease.is_set()

    async def wait_lease(self, _log: Log) -> None:
        self.on_wait()
        await self.has_lease.wait()

    async def find_offset_by_time(self, _log: Log, _timestamp_ms: int) -> tuple[int, int] | None:
        await trio.lowlevel.checkpoint()
        if self.failure is not None:
            raise self.failure
        return self.found


def access_to(node: Node, appender: Any = None) -> LocalLogs:
    broker: Any = SimpleNamespace(node=node, appender=appender)
    return LocalLogs(broker)


CALLS: list[Callable[[LocalLogs, Log], Awaitable[object]]] = [
    lambda access, log: access.bounds([log]),
    lambda access, log: access.find_offset_by_time(log, 5),
    lambda access, log: access.read(log, 0),
]
"""Calls that tell the end of a log."""


async def test_a_leader_that_may_have_been_replaced_tells_no_end(autojump_clock: trio.testing.MockClock) -> None:
    """Its lease comes, does not come in time, or another broker leads the log meanwhile, or it is deleted."""
    for call in CALLS:
        node, log, begun_s = Node(), make_log(), trio.current_time()
        with pytest.raises(WebError, match="too few replicas of log 0 of the topic 'orders'") as refused:
            await call(access_to(node), log)
        assert (refused.value.code, trio.current_time()) == ("leader_unavailable", begun_s + LEADER_WAIT_S)
        node.on_wait = node.has_lease.set
        await call(access_to(node), log)
        node = Node()
        node.on_wait = partial(lose, log, node)
        with pytest.raises(LeaderMovedError):
            await call(access_to(node), log)
        node, gone = Node(), make_log()
        gone.is_gone, node.on_wait = True, node.has_lease.set
        with pytest.raises(WebError, match="there is no topic 'orders'"):
            await call(access_to(node), gone)


def lose(log: Log, node: Node) -> None:
    """Give a log another leader, after which it has a lease."""
    log.leadership = LeaderAndIsr("b" * 32, 2, is_led=False)
    node.has_lease.set()


async def test_offsets_are_told_while_the_lease_is_held() -> None:
    """It can be lost between the wait for it and the look at the offsets."""
    held, waits = [False, False, True], list[Log]()

    class Losing(Node):
        def holds_lease(self, _log: Log) -> bool:
            return held.pop(0)

        async def wait_lease(self, log: Log) -> None:
            waits.append(log)

    log = make_log()
    log.index.end_offset = Offset(5)
    found = (await access_to(Losing()).bounds([log]))[log]
    assert len(waits) == 3
    assert (found.end_offset, found.offset_max) == (0, 5), "readers may be ahead of what the leader knows as committed"


async def test_a_time_after_all_records_is_the_end_and_a_storage_that_fails_is_told() -> None:
    node, log = Node(), make_log()
    node.has_lease.set()
    for node.found in (None, (7, 5)):  # it is not committed yet
        assert await access_to(node).find_offset_by_time(log, 5) == log.last_stable_offset == 0
    node.failure = StorageError("the disk is gone")
    with pytest.raises(WebError, match="the disk is gone") as refused:
        await access_to(node).find_offset_by_time(log, 5)
    assert (refused.value.code, refused.value.status) == ("storage_failed", 503)


async def test_records_are_not_deleted_at_a_leader_that_has_just_been_replaced_or_in_a_topic_that_is_gone() -> None:
    log, failures = make_log(), [NotLeaderError("x"), TopicDeletedError("orders")]

    async def delete_before(_log: Log, _offset: int) -> None:
        raise failures.pop(0)

    node: Any = Node()
    node.deletion = SimpleNamespace(delete_before=delete_before)
    assert [await outcome(access_to(node).delete_before(log, 5)) for _ in range(2)] == ["not_leader", "topic_not_found"]
    assert await access_to(node).delete_before(log, 0) == 0, "nothing is before the first record"


@attrs.frozen
class Appended:
    outcome: int | Exception

    def is_durable(self) -> bool:
        return isinstance(self.outcome, int)

    async def wait_offset(self) -> int:
        await trio.lowlevel.checkpoint()
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


OUTCOMES: list[tuple[int | Exception, object]] = [
    (5, 5),
    (0, 0),
    (-1, None),
    (TopicDeletedError("orders"), "topic_not_found"),
    (OutcomeUnknownError("x"), "leader_changed"),
    (NotLeaderError("x"), "not_leader"),
    (AppendRefusedError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "x"), "bad_request"),
    (AppendRefusedError(ErrorCode.DUPLICATE_SEQUENCE_NUMBER, "x"), None),
]


async def test_an_append_tells_where_the_records_are_or_what_has_become_of_them() -> None:
    """Those that the next leader may append are sent to it."""
    log, data = make_log(), encode_batch(0, [b"a", b"b"], timestamps=5)
    batches, resent = [(check_crc(data), data)], list[object]()

    def resend(*again: object) -> Any:
        resent.append(again)
        return Appended(77)

    for result, expected in OUTCOMES:

        def append(*_: object, records: object, result: int | Exception = result) -> Appended:
            if isinstance(result, AppendRefusedError):
                raise result
            return Appended(result)

        access = access_to(Node(), SimpleNamespace(append=append))
        for choice, wanted in ((None, expected), (resend, 77 if isinstance(result, NotLeaderError) else expected)):
            try:
                pending = access.append(log, batches, resend=choice)
            except WebError as error:
                assert error.code == expected  # noqa: PT017
                continue
            assert (pending.log, pending.record_count) == (log, 2)
            assert pending.is_durable == (not isinstance(result, Exception) or expected is None)
            assert await outcome(pending.wait_offset()) == wanted
    assert resent == [(log, batches)]


# Groups


@attrs.define
class Coordinator:
    """Stands for a broker and for the coordinator of a group: this broker, another one, or none."""

    place: str
    replies: list[Any]
    problem: str = ""
    asked: list[tuple[object, ...]] = attrs.field(factory=list)

    def access(self, *, is_forwarded: bool = False) -> GroupAccess:
        waits = SimpleNamespace(problem=self.problem)
        broker: Any = SimpleNamespace(
            coordinator_of=lambda _name: None if self.place == "none" else SimpleNamespace(address=self.place),
            node=SimpleNamespace(address="own", storage=SimpleNamespace(waits=waits)),
            groups=self,
        )
        client: Any = None if is_forwarded else self
        return GroupAccess(broker, client)

    async def request(self, _broker: object, method: str, target: str, document: Any = None) -> Any:
        self.asked.append((method, target, document))
        return self._next()

    async def delete_groups(self, names: list[str]) -> dict[str, ErrorCode]:
        return {names[0]: self._next()}

    async def describe_groups(self, names: list[str]) -> dict[str, Any]:
        return {names[0]: SimpleNamespace(error_code=self._next())}

    async def fetch_offsets(self, _name: str) -> dict[Any, Any]:
        places = [("orders", 0, 1), ("other", 0, 5), ("orders", 1, 11)]
        return {TopicPartition(topic, log): SimpleNamespace(offset=offset) for topic, log, offset in places}

    async def commit_offsets(self, request: Any) -> dict[Any, ErrorCode]:
        return dict.fromkeys(request.offsets, self._next())

    def _next(self) -> Any:
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        if isinstance(reply, Exception):
            raise reply
        return reply


NOT_FOUND = WebError("group_not_found", "no")
LOST = BrokerError("does not answer")

DELETIONS: list[tuple[str, list[Any], str]] = [
    ("own", [ErrorCode.NONE], ""),
    ("own", [ErrorCode.GROUP_ID_NOT_FOUND], "group_not_found"),
    ("own", [ErrorCode.NON_EMPTY_GROUP], "conflict"),
    ("own", [ErrorCode.NOT_COORDINATOR, ErrorCode.NONE], ""),
    ("own", [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NONE], ""),
    ("own", [ErrorCode.NOT_COORDINATOR], "leader_unavailable"),
    ("other", [None], ""),
    ("other", [NOT_FOUND], "group_not_found"),
    ("other", [LOST, NOT_FOUND], ""),  # the first request has deleted it
    ("other", [WebError("not_leader", "no"), None], ""),
    ("other", [WebError("not_leader", "no")], "leader_unavailable"),
    ("other", [WebError("conflict", "no")], "conflict"),
    ("other", [LOST], "leader_unavailable"),
    ("none", [None], "leader_unavailable"),
]


async def test_a_group_is_deleted_at_its_coordinator(autojump_clock: trio.testing.MockClock) -> None:
    for place, replies, code in DELETIONS:
        coordinator, begun_s = Coordinator(place, [*replies]), trio.current_time()
        assert await outcome(coordinator.access().delete("a/b")) == (code or None), (place, replies)
        assert (trio.current_time() - begun_s > LEADER_WAIT_S - 1) == (code == "leader_unavailable")
        assert all(each == ("DELETE", "/groups/a%2Fb", None) for each in coordinator.asked)


async def test_a_group_is_described_by_its_coordinator(autojump_clock: trio.testing.MockClock) -> None:
    async def describe(group: Any) -> object:
        return group

    none, moved, unknown = ErrorCode.NONE, ErrorCode.NOT_COORDINATOR, ErrorCode.GROUP_ID_NOT_FOUND
    cases: list[tuple[str, list[Any], object]] = [
        *(("own", [none], SimpleNamespace(error_code=none)), ("own", [moved, none], SimpleNamespace(error_code=none))),
        *(("own", [moved], "leader_unavailable"), ("own", [moved, unknown], "group_not_found")),
        *(("other", [{"group": "g"}], {"group": "g"}), ("other", [NOT_FOUND], "group_not_found")),
        *(("other", [LOST, NOT_FOUND], "group_not_found"), ("none", [none], "leader_unavailable")),
    ]
    for place, replies, expected in cases:
        coordinator = Coordinator(place, [*replies])
        assert await outcome(coordinator.access().describe("a/b", describe)) == expected, (place, replies)
        assert all(each == ("GET", "/groups/a%2Fb", None) for each in coordinator.asked)
    assert await Coordinator("own", []).access().fetch_offsets("g", "orders") == {0: 1, 1: 11}


async def test_a_commit_reaches_the_coordinator_or_says_why_not(autojump_clock: trio.testing.MockClock) -> None:
    coordinator = Coordinator("other", [None])
    await coordinator.access().commit("g", "orders", {0: 5, 1: 7})
    assert coordinator.asked == [("PUT", "/groups/g/offsets", {"topic": "orders", "offsets": {"0": 5, "1": 7}})]
    for reply, code, message in (
        (ErrorCode.UNKNOWN_MEMBER_ID, "conflict", "has members"),
        (ErrorCode.OFFSET_METADATA_TOO_LARGE, "conflict", "OFFSET_METADATA_TOO_LARGE"),
        (CoordinatorError(ErrorCode.NOT_COORDINATOR), "leader_unavailable", "is changing"),
    ):
        with pytest.raises(WebError, match=message) as refused:
            await Coordinator("own", [reply]).access().commit("g", "orders", {0: 5})
        assert refused.value.code == code
    coordinator = Coordinator("own", [ErrorCode.COORDINATOR_NOT_AVAILABLE], problem="the disk is full")
    with pytest.raises(WebError, match="the disk is full") as refused:
        await coordinator.access().delete("g")
    assert refused.value.code == "storage_failed"
    coordinator, begun_s = Coordinator("other", [None]), trio.current_time()
    assert await outcome(coordinator.access(is_forwarded=True).delete("g")) == "not_leader"
    assert (coordinator.asked, trio.current_time()) == ([], begun_s), "it is not forwarded again"


async def test_offsets_of_a_group_elsewhere_are_those_of_the_topic() -> None:
    places = [("orders", 0, 1), ("other", 0, 5), ("orders", 1, 11), ("other", 2, 7)]
    offsets = [{"topic": topic, "log": log, "offset": offset} for topic, log, offset in places]
    coordinator = Coordinator("other", [{"offsets": offsets}])
    assert await coordinator.access().fetch_offsets("g", "orders") == {0: 1, 1: 11}
    assert await Coordinator("other", [NOT_FOUND]).access().fetch_offsets("g", "orders") == {}
    forbidden = Coordinator("other", [WebError("forbidden", "no")])
    assert await outcome(forbidden.access().fetch_offsets("g", "orders")) == "forbidden"
