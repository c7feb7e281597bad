"""Logs that other brokers lead are used at their leaders, whatever these answer and whoever leads them next."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import attrs
import trio
import trio.testing

from dafka import Config
from dafka.broker.core.log.log import Log
from dafka.broker.core.metadata.brokers import BrokerRegistration
from dafka.broker.core.metadata.leader_and_isr import LeaderAndIsr
from dafka.http.forwarding.broker_client import SHOWN_WAIT_S, BrokerError
from dafka.http.forwarding.leaders import RETRY_S
from dafka.http.forwarding.remote_logs import RemoteLogs
from dafka.http.logs.log_access import LEADER_WAIT_S, LogOffsets
from dafka.http.server.errors import WebError
from tests.http.forwarding.test_appends import append_nowhere
from tests.http.forwarding.test_link import RECORDS
from tests.http.running import make_log, outcome

B, C = "b" * 32, "c" * 32
BOUNDS = LogOffsets(1, 2, 3, 4)
TOLERANCE_S = 0.001
LOST, NEW = BrokerError("is lost"), WebError("not_leader", "no")


@attrs.define
class Cluster:
    """Stands for two leaders and the connections to them.

    A reply is a value, an error, or what happens before the leader replies: it never does, or the leadership changes.
    """

    replies: list[Any]
    asked: list[tuple[str, Any]] = attrs.field(factory=list)
    logs: list[Log] = attrs.field(factory=list)
    moved: trio.Event = attrs.field(factory=trio.Event)

    def open(self, *leaders: str) -> RemoteLogs:
        """Return the access to logs with these leaders; every two logs are those of a topic."""
        for number, leader in enumerate(leaders):
            self.logs.append(make_log(number % 2, leader, topic=f"t{number // 2}"))
        node = SimpleNamespace(
            address="a" * 32,
            brokers=SimpleNamespace(find=lambda address: BrokerRegistration(address=address)),
            replicator=SimpleNamespace(led_logs=SimpleNamespace(wait_leadership=self._wait_leadership)),
        )
        broker: Any = SimpleNamespace(node=node, config=Config())
        client: Any = None
        access = RemoteLogs(broker, client, append_nowhere)
        leaders_of: Any = access._leaders
        leaders_of.link = lambda log: SimpleNamespace(
            describe=lambda topic: self._reply(log, topic),
            find_offset_by_time=lambda *place: self._reply(log, place),
            read=lambda *place: self._reply(log, place),
        )
        return access

    async def _wait_leadership(self, _log: Log) -> None:
        await self.moved.wait()

    async def _reply(self, log: Log, what: Any) -> Any:
        self.asked.append((log.leadership.leader, what))
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        if reply in ("moves", "comes here", "is deleted"):
            log.leadership = LeaderAndIsr(C, 2, is_led=reply == "comes here")
            log.is_gone = reply == "is deleted"
            self.moved.set()
            self.moved = trio.Event()
        if isinstance(reply, str):
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()
        if isinstance(reply, Exception):
            raise reply
        return reply


REPLIES: list[tuple[list[Any], object, float]] = [
    ([7], 7, 0),
    ([LOST, 7], 7, RETRY_S),
    *(([WebError(each, "no"), 7], 7, RETRY_S) for each in ("not_leader", "topic_not_found", "log_not_found")),
    *(([WebError(each, "no")], each, 0) for each in ("forbidden", "storage_failed", "leader_unavailable")),
    (["moves", 7], 7, RETRY_S),
    (["comes here"], "not_leader", RETRY_S),
    (["is deleted"], "topic_not_found", 0),
    *(([each], "leader_unavailable", LEADER_WAIT_S) for each in (LOST, NEW, "nothing")),
]


async def test_a_request_is_repeated_until_the_leader_answers_or_refuses_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    for replies, expected, seconds in REPLIES:
        cluster, begun_s = Cluster([*replies]), trio.current_time()
        access = cluster.open(B)
        found = await outcome(access.find_offset_by_time(cluster.logs[0], 5))
        assert found == expected, replies
        assert seconds - RETRY_S <= trio.current_time() - begun_s + TOLERANCE_S <= seconds + RETRY_S, replies
        assert [leader for leader, _ in cluster.asked[:2]] == [B, C if "moves" in replies else B][: len(cluster.asked)]


async def test_bounds_are_those_that_each_leader_says_of_its_logs(autojump_clock: trio.testing.MockClock) -> None:
    """Logs 0 and 1 of the topic `t0` are led by different brokers, and those of `t1` by the same one."""
    for replies, expected, known, seconds in (
        ([{0: BOUNDS, 1: BOUNDS}], 4, {4}, 0),
        ([LOST, {0: BOUNDS, 1: BOUNDS}], 4, {2, 3}, RETRY_S),
        ([{}, {0: BOUNDS, 1: BOUNDS}], 4, {2, 3}, RETRY_S),
        ([{0: BOUNDS}], "leader_unavailable", {2}, LEADER_WAIT_S),
        (["nothing"], "leader_unavailable", {0}, LEADER_WAIT_S),
        ([WebError("forbidden", "no")], "forbidden", {0}, 0),
    ):
        cluster, begun_s = Cluster([*replies]), trio.current_time()
        access = cluster.open(B, C, C, C)
        found: Any = await outcome(access.bounds(cluster.logs))
        assert (found if isinstance(found, str) else len(found)) == expected, replies
        assert isinstance(found, str) or found == dict.fromkeys(cluster.logs, BOUNDS)
        assert seconds <= trio.current_time() - begun_s + TOLERANCE_S <= seconds + 2 * RETRY_S, replies
        cluster, begun_s = Cluster([*replies]), trio.current_time()
        shown = await cluster.open(B, C, C, C).known_bounds(cluster.logs)
        assert len(shown) in known, replies
        assert {*shown.values()} <= {BOUNDS}
        assert sorted(cluster.asked) == [(B, "t0"), (C, "t0"), (C, "t1")], "each leader is asked once"
        assert trio.current_time() - begun_s <= SHOWN_WAIT_S


async def test_a_read_ends_with_records_or_when_they_must_come_from_elsewhere(
    autojump_clock: trio.testing.MockClock,
) -> None:
    for replies, expected, seconds in (
        ([RECORDS], RECORDS, 0),
        ([LOST, NEW, RECORDS], RECORDS, 2 * RETRY_S),
        (["moves", RECORDS], RECORDS, 0),
        (["comes here"], "not_leader", 0),
        (["is deleted"], "topic_not_found", 0),
        ([WebError("storage_failed", "no")], "storage_failed", 0),
        (["nothing"], "leader_unavailable", LEADER_WAIT_S),
    ):
        cluster, begun_s = Cluster([*replies]), trio.current_time()
        access = cluster.open(B)
        (log,) = cluster.logs
        async with trio.open_nursery() as nursery:
            access._nursery = nursery
            assert await outcome(access.read(log, 5)) == expected, replies
            assert seconds <= trio.current_time() - begun_s + TOLERANCE_S <= seconds + 2 * RETRY_S, replies
            assert access.has_records(log, 5) == (expected is RECORDS)
            assert cluster.asked[-1] == (C if "moves" in replies else B, ("t0", 0, 5))
            nursery.cancel_scope.cancel()
