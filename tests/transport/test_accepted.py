"""Which connections are ended when there are many, for any history of events of libzmq."""

from __future__ import annotations

import resource
import select
import socket
from contextlib import ExitStack
from random import Random

import attrs
import pytest
import trio
import trio.testing
import zmq

from dafka.transport import AcceptedConnection, AcceptedConnections
from dafka.transport.accepted import REBIND_S, SILENT_S
from dafka.transport.connections import CONNECTIONS_MIN, RESERVED_DESCRIPTORS
from tests.transport.scripted_monitor import ScriptedSocket
from tests.transport.test_connections import connected
from tests.waiting import DEADLINE_S


@attrs.define
class Known:
    """What a model knows of a connection."""

    number: int
    accepted: socket.socket
    peer: socket.socket
    at: float
    is_silent: bool = True
    is_ending: bool = False

    def is_shut(self, *, awaited: bool = False) -> bool:
        """Return whether this side was shut down; the system may take a moment to tell the peer."""
        return bool(select.select([self.peer], [], [], DEADLINE_S if awaited else 0)[0])


@pytest.fixture
def clock() -> trio.testing.MockClock:
    return trio.testing.MockClock()


class Model:
    """The connections that a table must have, and those that it must have ended, in order."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.known: dict[int, Known] = {}
        self.count = 0
        self.ended: list[int] = []
        self.spoken: list[int] = []
        self.ended_count = 0

    def accept(self, accepted: socket.socket, peer: socket.socket, now: float) -> None:
        self.count += 1
        self.known[self.count] = Known(self.count, accepted, peer, now)

    def leave(self, each: Known) -> None:
        del self.known[each.number]
        self.ended.append(each.number)

    def speak(self, each: Known) -> None:
        if each.number not in self.spoken:
            self.spoken.append(each.number)
        each.is_silent = False

    def enforce(self, now: float) -> None:
        """End connections that are silent for long; above the limit, other silent ones and then the newest."""
        if len(self.known) <= self.limit // 2:
            return
        for each in self.known.values():
            if each.is_silent and now - each.at >= SILENT_S:
                self._end(each)
        while len(left := [each for each in self.known.values() if not each.is_ending]) > self.limit:
            self._end(next((each for each in left if each.is_silent), left[-1]))

    def _end(self, each: Known) -> None:
        each.is_ending = True
        each.is_silent = False
        self.ended_count += 1


@pytest.mark.parametrize("seed", range(12))
async def test_the_table_and_the_limits_follow_the_events(seed: int, clock: trio.testing.MockClock) -> None:
    random = Random(seed)
    model = Model(CONNECTIONS_MIN + random.randrange(4))
    scripted = ScriptedSocket()
    table = AcceptedConnections(scripted.as_socket(), model.limit)
    ended, spoken = list[int](), list[int]()
    table.on_ended(ended.append)
    table.on_first_message(lambda connection: spoken.append(connection.number))

    def accept(accepted: socket.socket, peer: socket.socket) -> None:
        scripted.monitored.report(zmq.EVENT_ACCEPTED, accepted.fileno())
        model.accept(accepted, peer, clock.current_time())

    with ExitStack() as stack:
        for _ in range(150):
            kind = random.choices(["accept", "speak", "leave", "wait", "reuse", "rush"], [6, 4, 2, 1, 1, 2])[0]
            chosen = random.choice([*model.known.values()]) if model.known else None
            speaker = chosen if kind == "speak" else None
            if kind == "wait":
                clock.jump(random.choice([0.1, SILENT_S / 2, SILENT_S]))
            elif chosen is None or kind in ("accept", "rush"):
                accept(*stack.enter_context(connected()))
            elif kind == "leave":
                scripted.monitored.report(zmq.EVENT_DISCONNECTED, chosen.accepted.fileno())
                model.leave(chosen)
            elif kind == "reuse" and not chosen.is_ending:  # the end of the former one is not reported
                model.leave(chosen)
                accept(chosen.accepted, chosen.peer)
            if kind == "rush" and chosen is not None:  # it speaks before the limits are applied to it
                assert table.is_open(chosen.number) is not chosen.is_ending
                speaker = model.known[model.count]
            elif scripted.monitored.has_events:
                table.update()
                model.enforce(clock.current_time())
            if speaker is not None:
                found = table.find(speaker.accepted.fileno())
                assert found is not None
                assert (found.number, found.is_silent) == (speaker.number, False)
                model.speak(speaker)
            known = model.known.values()
            assert (len(table), table.ended_count) == (len(known), model.ended_count)
            assert [each.number for each in table] == [each.number for each in known if not each.is_ending]
            assert all(each.is_shut(awaited=each.is_ending) is each.is_ending for each in known)
            assert (ended, spoken) == (model.ended, model.spoken)
            assert all((number in table) == (number in model.known) for number in range(model.count + 2))
        table.close()
    assert (len(table), AcceptedConnections._process_count) == (0, 0)
    assert sorted(ended) == list(range(1, model.count + 1))


async def test_a_watched_silent_connection_is_ended_when_its_time_is_over(clock: trio.testing.MockClock) -> None:
    scripted = ScriptedSocket()
    table = AcceptedConnections(scripted.as_socket(), CONNECTIONS_MIN)
    with ExitStack() as stack:
        peers = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(table.watch)
            for number in range(CONNECTIONS_MIN // 2 + 2):
                accepted, peer = stack.enter_context(connected())
                peers.append(Known(number, accepted, peer, 0.0))
                scripted.monitored.report(zmq.EVENT_ACCEPTED, accepted.fileno())
                if number >= CONNECTIONS_MIN // 2:
                    table.update()  # before the other task can
                await trio.testing.wait_all_tasks_blocked()
                clock.jump(0.5)
            clock.jump(SILENT_S - 0.5 * len(peers) - 0.1)
            await trio.testing.wait_all_tasks_blocked()
            assert table.ended_count == 0
            clock.jump(0.2)
            await trio.testing.wait_all_tasks_blocked()
            assert peers[0].is_shut(awaited=True)
            assert not any(each.is_shut() for each in peers[1:])
            clock.jump(0.5)
            await trio.testing.wait_all_tasks_blocked()
            assert (table.ended_count, len(table)) == (2, len(peers))
            nursery.cancel_scope.cancel()
        table.close()


async def test_a_connection_that_has_ended_is_neither_open_nor_identified_nor_ended_again() -> None:
    scripted = ScriptedSocket()
    table = AcceptedConnections(scripted.as_socket(), 100)
    ended: list[int] = []
    table.on_ended(ended.append)
    with connected() as (accepted, peer), connected() as (other, _):
        for each in (accepted, other):
            scripted.monitored.report(zmq.EVENT_ACCEPTED, each.fileno())
        table.update()
        first, second = table
        assert table.is_open(first.number)
        ends = table.identify(first)
        assert ends is not None
        assert ends.host == "127.0.0.1"
        assert table.end(first) == ends
        assert peer.recv(1) == b""
        assert not table.is_open(first.number)
        assert ([*table], len(table), first.number in table) == ([second], 2, True)
        # The end of the first one waits to be processed, and its descriptor is reused.
        scripted.monitored.report(zmq.EVENT_DISCONNECTED, accepted.fileno())
        scripted.monitored.report(zmq.EVENT_ACCEPTED, accepted.fileno())
        assert table.identify(first) is None
        assert (ended, first.number in table) == ([first.number], False)
        assert table.end(first) is None
        assert (ended, len(table), table.is_open(second.number)) == ([first.number], 2, True)
        assert not table.is_open(99)
    gone = AcceptedConnection(second.number, second.descriptor, 0.0)
    assert table.identify(gone) is None
    assert table.end(second) is None  # libzmq has not reported its end
    assert second.number not in table
    table.close()
    assert scripted.monitored.is_closed


@pytest.mark.parametrize("busy", [0, 1, 20])
async def test_dropping_all_connections_waits_until_the_port_is_free_again(
    busy: int, autojump_clock: trio.testing.MockClock
) -> None:
    scripted = ScriptedSocket(busy=busy)
    table = AcceptedConnections(scripted.as_socket(), 100)
    ended: list[int] = []
    table.on_ended(ended.append)
    for descriptor in (7, 8):
        scripted.monitored.report(zmq.EVENT_ACCEPTED, descriptor)
    before = trio.current_time()
    await table.drop_all()
    pauses = [min(REBIND_S * 2**number, 1.0) for number in range(busy)]
    assert trio.current_time() - before == pytest.approx(sum(pauses))
    assert scripted.calls == [("unbind", scripted.endpoint), ("bind", scripted.endpoint)]
    assert (len(table), ended) == (0, [1, 2])


async def test_the_tables_of_a_process_share_its_descriptors(descriptor_limits: tuple[int, int]) -> None:
    least, more = CONNECTIONS_MIN, 10
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (RESERVED_DESCRIPTORS + (least + more) * 4 // 3 + 1, descriptor_limits[1])
    )
    one, two = ScriptedSocket(), ScriptedSocket()
    tables = [AcceptedConnections(each.as_socket(), 1000) for each in (one, two)]
    for count, scripted, expected in ((5, two, [0, 5]), (40, one, [least + more - 5, 5]), (40, two, [21, least])):
        for number in range(count):
            scripted.monitored.report(zmq.EVENT_ACCEPTED, 10**6 + 100 * count + number)
        for table in tables:
            table.update()
        assert [len(table) for table in tables] == expected
        assert [table.ended_count for table in tables] == [0, 0]  # none of them was there any more
    for table in tables:
        table.close()
    assert AcceptedConnections._process_count == 0
