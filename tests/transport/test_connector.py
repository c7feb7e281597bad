"""The outcome of each handshake, what is reported of it, and when a refused connection is tried again."""

from __future__ import annotations

import socket as sockets
from pathlib import Path
from random import Random

import pytest
import trio
import trio.testing
import zmq

from dafka.endpoints import PeerEndpoint
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


def keyed(pair: KeyPair, endpoint: str) -> list[tuple[str, object]]:
    """Return the calls that connect to a peer."""
    options = {
        "curve_serverkey": f"key of {endpoint}".encode(),
        "curve_publickey": pair.public.encode(),
        "curve_secretkey": pair.secret.encode(),
    }
    return [("set", options), ("connect", endpoint)]


REASONS: dict[tuple[int, int], str] = {REFUSED: KEY_NOT_AUTHORIZED, WRONG: WRONG_KEY, UNLOCKED: NO_KEY, BROKEN: UNKNOWN}
KINDS = [MADE, LOST, *REASONS, *[BROKEN] * 3, "connect", "disconnect", "wait", "wait"]


def expected_reports(
    known: dict[str, tuple[str, int]], endpoint: str, kind: tuple[int, int]
) -> tuple[list[str], list[str], list[str]]:
    """Return the connections that are reported as made and as lost because of a handshake, and reasons of refusals."""
    if endpoint not in known or kind == LOST:
        return [], [endpoint] if endpoint in known else [], []
    if kind == MADE:
        known[endpoint] = ("", 0)
        return [endpoint], [], []
    reported, broken = known[endpoint]
    broken += kind == BROKEN
    is_new = reported != REASONS[kind] and (kind != BROKEN or (broken >= 3 and not reported))
    known[endpoint] = (REASONS[kind] if is_new else reported, broken)
    return [], [], [REASONS[kind]] if is_new else []


async def test_any_history_of_handshakes_is_reported_and_refused_connections_are_tried_again(
    pair: KeyPair, tmp_path: Path, clock: trio.testing.MockClock
) -> None:
    """A reason is reported until another one is, or the connection is made; an unknown one after three attempts.

    libzmq itself tries broken and lost connections again.
    """
    (tmp_path / "list").touch()
    security = Security(pair, AuthorizedKeys(tmp_path / "list", pair.public), ())
    made, lost, refused = list[str](), list[str](), list[RefusedByPeer]()
    for seed in range(60):
        random, socket = Random(seed), ScriptedSocket()
        connector = Connector(socket.as_socket(), security, made.append, refused.append, lost.append)
        known: dict[str, tuple[str, int]] = {}
        due: list[tuple[float, str]] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connector.watch)
            for _ in range(60):
                endpoint, kind = random.choice((PEER, OTHER)), random.choice(KINDS)
                expected: object = [], [], []
                calls: list[tuple[str, object]] = []
                if kind == "connect" and endpoint not in known:
                    connector.connect(endpoint, f"key of {endpoint}")
                    known[endpoint], calls = ("", 0), keyed(pair, endpoint)
                elif kind == "disconnect":
                    connector.disconnect(endpoint)
                    calls = [("disconnect", endpoint)] if known.pop(endpoint, None) else []
                elif kind == "wait":
                    clock.jump(random.choice((0.1, 0.45, 0.95)) * RETRY_S)
                    for each in [each for at, each in due if at <= trio.current_time() and each in known]:
                        calls += [("disconnect", each), *keyed(pair, each)]
                    due = [each for each in due if each[0] > trio.current_time()]
                elif isinstance(kind, tuple):
                    socket.monitored.report(kind[0], kind[1], endpoint)
                    expected = expected_reports(known, endpoint, kind)
                    if endpoint in known and kind in (REFUSED, WRONG, UNLOCKED):
                        due.append((trio.current_time() + RETRY_S, endpoint))
                await trio.testing.wait_all_tasks_blocked()
                assert all(each == RefusedByPeer(endpoint, pair.public, each.reason) for each in refused)
                assert (made, lost, [each.reason for each in refused]) == expected, (seed, kind)
                order = (lambda each: 0) if kind != "wait" else str  # those that are due together have no order
                assert sorted(socket.calls, key=order) == sorted(calls, key=order), (seed, kind)
                for done in (made, lost, refused, socket.calls):
                    done.clear()
            nursery.cancel_scope.cancel()
        connector.close()


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
