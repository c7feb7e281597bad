"""The outcome of each handshake, what is reported of it, and when a refused connection is tried again."""

from __future__ import annotations

import socket as sockets
from collections.abc import AsyncIterator
from pathlib import Path

import attrs
import pytest
import trio
import trio.testing
import zmq

from dafka.endpoints import PeerEndpoint
from dafka.errors import TransportError
from dafka.protocol import RefusedByPeer
from dafka.protocol.trust import KEY_NOT_AUTHORIZED, NO_KEY, UNKNOWN, WRONG_KEY
from dafka.transport import (
    Connector,
    KeyPair,
    Security,
    Socket,
    diagnose_connection,
    find_resolution_problem,
    listen,
    open_context,
)
from dafka.transport.connector import EVENT_HEADING, MESSAGE_BYTES_MAX, RETRY_S, Outcome, decode_handshake
from dafka.transport.keys import AuthorizedKeys
from tests.transport.scripted_monitor import ScriptedSocket
from tests.waiting import DEADLINE_S, wait_until

PEER, OTHER = "tcp://10.0.0.1:1", "tcp://10.0.0.2:1"
MADE = (zmq.EVENT_HANDSHAKE_SUCCEEDED, 0)
LOST = (zmq.EVENT_DISCONNECTED, 0)
REFUSED = (zmq.EVENT_HANDSHAKE_FAILED_AUTH, 400)
WRONG = (zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL, 0x11000001)
UNLOCKED = (zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL, 0x11000002)
BROKEN = (zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL, 32)

OUTCOMES = [
    (MADE, Outcome.MADE),
    (LOST, Outcome.LOST),
    (REFUSED, Outcome.NOT_AUTHORIZED),
    ((zmq.EVENT_HANDSHAKE_FAILED_AUTH, 0x11000001), Outcome.NOT_AUTHORIZED),
    (WRONG, Outcome.WRONG_SERVER_KEY),
    (UNLOCKED, Outcome.NO_CURVE),
    ((zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL, 0x10000001), Outcome.BROKEN),
    ((zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL, 0x11000003), Outcome.BROKEN),
    (BROKEN, Outcome.BROKEN),
    ((zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL, 0x11000001), Outcome.BROKEN),
]


def test_each_event_of_libzmq_is_one_outcome() -> None:
    for event, outcome in OUTCOMES:
        handshake = decode_handshake([EVENT_HEADING.pack(*event), PEER.encode()])
        assert (handshake.endpoint, handshake.outcome) == (PEER, outcome)


@pytest.fixture
def clock() -> trio.testing.MockClock:
    return trio.testing.MockClock()


@pytest.fixture
def pair() -> KeyPair:
    return KeyPair.generate()


@attrs.define
class Watched:
    """A connector, and what it has reported."""

    socket: ScriptedSocket
    connector: Connector
    made: list[str]
    lost: list[str]
    refused: list[RefusedByPeer]

    async def report(self, *events: tuple[int, int], endpoint: str = PEER) -> None:
        for event in events:
            self.socket.monitored.report(*event, endpoint)
        await trio.testing.wait_all_tasks_blocked()

    async def reasons_after(self, *events: tuple[int, int]) -> list[str]:
        """Return the reasons that were reported because of these events."""
        count = len(self.refused)
        await self.report(*events)
        return [event.reason for event in self.refused[count:]]

    async def calls_after(self, seconds: float, clock: trio.testing.MockClock) -> list[tuple[str, object]]:
        """Return the calls on the socket while this time passes."""
        self.socket.calls.clear()
        clock.jump(seconds)
        await trio.testing.wait_all_tasks_blocked()
        return self.socket.calls


@pytest.fixture
async def watched(pair: KeyPair, tmp_path: Path) -> AsyncIterator[Watched]:
    (tmp_path / "list").touch()
    socket = ScriptedSocket()
    made, lost, refused = list[str](), list[str](), list[RefusedByPeer]()
    security = Security(pair, AuthorizedKeys(tmp_path / "list", pair.public), ())
    connector = Connector(socket.as_socket(), security, made.append, refused.append, lost.append)
    for endpoint in (PEER, OTHER):
        connector.connect(endpoint, f"key of {endpoint}")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connector.watch)
        yield Watched(socket, connector, made, lost, refused)
        nursery.cancel_scope.cancel()
    connector.close()


def keyed(pair: KeyPair, endpoint: str) -> list[tuple[str, object]]:
    """Return the calls that connect to a peer."""
    options = {
        "curve_serverkey": f"key of {endpoint}".encode(),
        "curve_publickey": pair.public.encode(),
        "curve_secretkey": pair.secret.encode(),
    }
    return [("set", options), ("connect", endpoint)]


async def test_the_key_of_a_peer_is_expected_before_it_is_connected(watched: Watched, pair: KeyPair) -> None:
    assert watched.socket.calls == [*keyed(pair, PEER), *keyed(pair, OTHER)]


async def test_connections_are_reported_when_they_are_made_and_lost(watched: Watched) -> None:
    await watched.report(MADE, LOST, MADE)
    await watched.report(MADE, LOST, REFUSED, endpoint="tcp://10.0.0.9:1")
    assert (watched.made, watched.lost, watched.refused) == ([PEER, PEER], [PEER], [])
    watched.connector.disconnect(PEER)
    await watched.report(MADE, LOST, REFUSED)
    assert (watched.made, watched.lost, watched.refused) == ([PEER, PEER], [PEER], [])


@pytest.mark.parametrize(
    ("event", "reason"), [(REFUSED, KEY_NOT_AUTHORIZED), (WRONG, WRONG_KEY), (UNLOCKED, NO_KEY), (BROKEN, UNKNOWN)]
)
async def test_a_refusal_is_reported_once_until_the_connection_is_made(
    event: tuple[int, int], reason: str, watched: Watched, pair: KeyPair
) -> None:
    attempts = 3 if event == BROKEN else 1
    assert await watched.reasons_after(*[event] * (attempts - 1)) == []
    assert await watched.reasons_after(event) == [reason]
    assert watched.refused == [RefusedByPeer(PEER, pair.public, reason)]
    assert await watched.reasons_after(*[event] * 5) == []
    assert await watched.reasons_after(MADE, *[event] * (attempts - 1)) == []
    assert await watched.reasons_after(event) == [reason]
    watched.connector.disconnect(PEER)
    watched.connector.connect(PEER, "")
    assert await watched.reasons_after(*[event] * (attempts - 1)) == []
    assert await watched.reasons_after(event) == [reason]


async def test_another_reason_is_reported_unless_it_is_unknown(watched: Watched) -> None:
    assert await watched.reasons_after(REFUSED, UNLOCKED, UNLOCKED, REFUSED) == [
        KEY_NOT_AUTHORIZED,
        NO_KEY,
        KEY_NOT_AUTHORIZED,
    ]
    assert await watched.reasons_after(*[BROKEN] * 5) == []
    await watched.report(REFUSED, endpoint=OTHER)
    assert [event.endpoint for event in watched.refused] == [PEER] * 3 + [OTHER]


@pytest.mark.parametrize("event", [REFUSED, WRONG, UNLOCKED])
async def test_a_refused_connection_is_tried_again_after_a_while(
    event: tuple[int, int], watched: Watched, pair: KeyPair, clock: trio.testing.MockClock
) -> None:
    await watched.report(event)
    assert await watched.calls_after(RETRY_S * 0.9, clock) == []
    assert await watched.calls_after(RETRY_S * 0.2, clock) == [("disconnect", PEER), *keyed(pair, PEER)]
    assert await watched.calls_after(100 * RETRY_S, clock) == []


async def test_libzmq_itself_tries_broken_and_lost_connections_again(
    watched: Watched, clock: trio.testing.MockClock
) -> None:
    await watched.report(*[BROKEN] * 5, LOST)
    assert await watched.calls_after(100 * RETRY_S, clock) == []


async def test_a_peer_that_was_disconnected_meanwhile_is_not_tried_again(
    watched: Watched, clock: trio.testing.MockClock
) -> None:
    await watched.report(REFUSED)
    watched.connector.disconnect(PEER)
    assert await watched.calls_after(2 * RETRY_S, clock) == []


@pytest.mark.parametrize("hears_losses", [True, False])
async def test_losses_are_monitored_only_if_somebody_hears_of_them(hears_losses: bool) -> None:
    socket = ScriptedSocket()
    lost: list[str] = []
    Connector(socket.as_socket(), None, lost.append, lambda _: None, lost.append if hears_losses else None)
    assert bool(socket.events & zmq.EVENT_DISCONNECTED) is hears_losses
    for event, outcome in OUTCOMES:
        assert socket.events & event[0] or outcome is Outcome.LOST


async def test_a_refusal_in_a_plain_cluster_names_no_key() -> None:
    socket, refused = ScriptedSocket(), list[RefusedByPeer]()
    connector = Connector(socket.as_socket(), None, lambda _: None, refused.append)
    connector.connect(PEER, "")
    assert socket.calls == [("connect", PEER)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connector.watch)
        socket.monitored.report(*UNLOCKED, PEER)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert refused == [RefusedByPeer(PEER, "", NO_KEY)]


@pytest.mark.parametrize("clock", [trio.testing.MockClock(rate=1.0)])
async def test_listening_takes_the_messages_of_its_prefixes_up_to_the_largest_size(
    clock: trio.testing.MockClock,
) -> None:
    received: list[list[bytes]] = []
    connected: list[str] = []
    done = trio.Event()

    def take(messages: list[list[bytes]]) -> None:
        received.extend(messages)
        if any(each[-1] == b"last" for each in messages):
            done.set()

    async with open_context(0) as context, trio.open_nursery() as nursery:
        publisher = Socket(context.socket(zmq.SocketType.XPUB))
        try:
            peer = PeerEndpoint(publisher.bind("tcp://127.0.0.1:*"))
            nursery.start_soon(listen, context, None, peer, [b"a", b"b"], take, connected.append, lambda _: None)
            with trio.fail_after(DEADLINE_S):
                subscriptions = list[bytes]()
                while len(subscriptions) < 2:
                    subscriptions += [frames[0] for frames in await publisher.receive_many()]
                assert sorted(subscriptions) == [b"\1a", b"\1b"]
                largest = [b"a", b"x" * MESSAGE_BYTES_MAX]
                publisher.send_many([[b"c", b"no"], [b"b", b"yes"], largest, [b"a", b"last"]])
                await done.wait()
                await wait_until(lambda: bool(connected))
                assert (received, connected) == ([[b"b", b"yes"], largest, [b"a", b"last"]], [peer.endpoint])
                publisher.send_many([[b"a", b"x" * (MESSAGE_BYTES_MAX + 1)]])
                while [b"\0a"] not in await publisher.receive_many():  # its connection is ended
                    pass
            nursery.cancel_scope.cancel()
        finally:
            publisher.close(0)
    assert len(received) == 3


async def test_listening_to_an_invalid_endpoint_is_an_error() -> None:
    async with open_context(0) as context:
        with pytest.raises(TransportError, match="cannot connect to rubbish"):
            await listen(context, None, PeerEndpoint("rubbish"), [], print, print, print)


async def test_a_connection_that_cannot_be_made_has_a_diagnosis() -> None:
    with sockets.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        assert await diagnose_connection(endpoint) == ""
    assert await diagnose_connection(endpoint) == f"nothing listens at {endpoint}"
    assert await diagnose_connection("tcp://no.invalid:1") == "the host name 'no.invalid' cannot be resolved"
    for other in ("inproc://here", "tcp://127.0.0.1:*", "tcp://127.0.0.1"):
        assert await diagnose_connection(other) == ""


async def test_a_host_name_that_cannot_be_resolved_has_a_problem() -> None:
    assert await find_resolution_problem("127.0.0.1") == ""
    assert await find_resolution_problem("nobody.invalid") != ""
    assert await find_resolution_problem("a" * 64 + ".example") != ""
    assert "IPv6 address only; write that in its place" in await find_resolution_problem("::1")
