"""The ZAP handler: requests of libzmq, and floods of refused peers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import attrs
import pytest
import trio
import trio.testing
import zmq
from trio.testing import MockClock
from zmq.utils import z85

from dafka.protocol import AuthorizedKeysUnreadable, Event, PeerRefused
from dafka.protocol.trust import KEY_NOT_AUTHORIZED
from dafka.transport import AcceptedConnections, KeyPair, Security, Socket, ZapHandler, open_context, open_zap_handler
from dafka.transport import zap as module
from dafka.transport.keys import AuthorizedKeys
from tests.waiting import DEADLINE_S, wait_until

AUTHORIZED = KeyPair.generate()


@attrs.frozen
class HandlerClient:
    """A socket that sends requests to a ZAP handler in place of libzmq."""

    handler: ZapHandler
    socket: Socket
    context: zmq.Context[zmq.Socket[bytes]]
    path: Path
    security: Security
    events: list[Event]

    async def send_request(self, *frames: bytes) -> list[bytes]:
        """Send a request as libzmq does, and return the answer."""
        self.socket.send_many([[b"", *frames]])
        with trio.fail_after(DEADLINE_S):
            ((_, *answer),) = await self.socket.receive_many()
        return answer

    def request(self, key: str, address: bytes = b"10.0.0.9") -> list[bytes]:
        """Return the frames of a request for a peer with this key."""
        return [b"1.0", b"7", b"dafka", address, b"", b"CURVE", z85.decode(key.encode())]


@pytest.fixture
def clock() -> MockClock:
    """Return a clock that runs like the real one, and that a test can put forward."""
    return MockClock(rate=1.0)


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[HandlerClient]:
    async with open_client(tmp_path) as client:
        yield client


@asynccontextmanager
async def open_client(folder: Path) -> AsyncIterator[HandlerClient]:
    path = folder / "authorized"
    path.write_text(f"{AUTHORIZED.public} peer\n")
    pair = KeyPair.generate()
    security = Security(pair, AuthorizedKeys(path, pair.public), ())
    events: list[Event] = []
    async with open_context(0) as context, open_zap_handler(context, security, events.append) as handler:
        socket = Socket(context.socket(zmq.SocketType.DEALER))
        socket.connect(module.ZAP_ENDPOINT)
        try:
            yield HandlerClient(handler, socket, context, path, security, events)
        finally:
            socket.close(0)


async def test_an_authorized_peer_is_accepted(client: HandlerClient) -> None:
    answer = await client.send_request(*client.request(AUTHORIZED.public))
    assert answer == [b"1.0", b"7", b"200", b"OK", AUTHORIZED.public.encode(), b""]
    own = client.security.pair.public
    assert (await client.send_request(*client.request(own)))[4] == own.encode()
    assert client.events == []


@pytest.mark.parametrize(
    "change",
    [
        {6: z85.decode(KeyPair.generate().public.encode())},
        {6: b""},
        {6: b"x" * 31},
        {5: b"NULL"},
        {5: b"PLAIN"},
        {2: b"another domain"},
        {0: b"2.0"},
    ],
    ids=["another key", "no key", "short key", "no mechanism", "a password", "another domain", "another version"],
)
async def test_other_requests_are_refused(client: HandlerClient, change: dict[int, bytes]) -> None:
    frames = [change.get(index, frame) for index, frame in enumerate(client.request(AUTHORIZED.public))]
    answer = await client.send_request(*frames)
    assert answer[1:3] == [b"7", b"400"]
    assert answer[4] == b""
    assert client.handler.refused == {"key not authorized": 1}


async def test_requests_of_invalid_length_are_refused_or_ignored(client: HandlerClient) -> None:
    client.socket.send_many([[b""], [b"", b"1.0"], [b"x"] * 20, [b"", *client.request(AUTHORIZED.public)[:-1]]])
    client.socket.send_many([[b"", *client.request(AUTHORIZED.public), b"x"]])
    client.socket.send_many([[b"", *client.request(AUTHORIZED.public)]])
    verdicts: list[bytes] = []
    with trio.fail_after(DEADLINE_S):
        while b"200" not in verdicts:
            verdicts += [frames[3] for frames in await client.socket.receive_many()]
    assert verdicts == [b"400"] * 3 + [b"200"]


@pytest.mark.parametrize("clock", [MockClock()])
async def test_each_refused_peer_is_reported_once_in_an_interval_and_few_peers_at_all(
    clock: MockClock, client: HandlerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REPORTED_MAX", 3)
    draw, interval_s = Random(1), module.REPORT_INTERVAL_S
    peers = [(key, host) for key in (KeyPair.generate().public for _ in range(3)) for host in ("10.0.0.1", "10.0.0.2")]
    recent: dict[tuple[str, str], float] = {}
    expected: list[Event] = []
    for count in range(1, 150):
        if count % 30 == 0:  # a change of the list makes all of them worth another report
            changed = trio.Event()
            client.handler.on_keys_changed(changed.set)
            client.path.write_text(f"{KeyPair.generate().public} peer\n")
            clock.jump(module.REFRESH_S)
            await changed.wait()
            recent.clear()
        clock.jump(draw.choice([0.0, 0.0, 0.0, interval_s / 4, interval_s / 2, interval_s]))
        now = trio.current_time()
        key, host = draw.choice(peers)
        recent = {peer: at for peer, at in recent.items() if now - at < interval_s}
        if (key, host) not in recent and len(recent) < 3:
            recent[key, host] = now
            expected.append(PeerRefused(host, key, KEY_NOT_AUTHORIZED, str(client.path)))
        assert (await client.send_request(*client.request(key, host.encode())))[2] == b"400"
        assert client.events == expected
        assert client.handler.refused == {KEY_NOT_AUTHORIZED: count}


async def test_an_unreadable_list_is_reported_and_the_former_keys_remain_authorized(
    client: HandlerClient, clock: MockClock
) -> None:
    client.path.write_text("oops\n")
    clock.jump(module.REFRESH_S)
    await wait_until(lambda: bool(client.events))
    (event,) = client.events
    assert isinstance(event, AuthorizedKeysUnreadable)
    assert "line 1" in str(event)
    assert (await client.send_request(*client.request(AUTHORIZED.public)))[2] == b"200"
    changed = trio.Event()
    client.handler.on_keys_changed(changed.set)
    client.path.write_text("")  # it is still read
    clock.jump(module.REFRESH_S)
    with trio.fail_after(DEADLINE_S):
        await changed.wait()
    assert (await client.send_request(*client.request(AUTHORIZED.public)))[2] == b"400"


async def test_without_a_handler_every_peer_is_refused(client: HandlerClient) -> None:
    """By default, libzmq would accept every peer."""
    async with open_context(0) as context:
        publisher, subscriber = Socket(context.socket(zmq.SocketType.XPUB)), Socket(context.socket(zmq.SocketType.SUB))
        monitor = subscriber.monitor(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)
        try:
            client.security.require_keys(publisher)
            endpoint = publisher.bind("tcp://127.0.0.1:*")
            client.security.expect_key(subscriber, client.security.pair.public)
            subscriber.connect(endpoint)
            with trio.fail_after(DEADLINE_S):
                frames = (await monitor.receive_many())[0]
            assert int.from_bytes(frames[0][:2], "little") == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
        finally:
            for socket in (subscriber, publisher, monitor):
                socket.close(0)


@pytest.mark.parametrize("is_revoked", [True, False])
async def test_revoked_keys_lose_their_connections_to_every_socket(
    is_revoked: bool, client: HandlerClient, clock: MockClock
) -> None:
    """Everybody is disconnected, and those who are still authorized connect again. A new key costs no connection."""
    changed = trio.Event()
    client.handler.on_keys_changed(changed.set)
    publishers = [Socket(client.context.socket(zmq.SocketType.XPUB)) for _ in range(2)]
    subscriber = Socket(client.context.socket(zmq.SocketType.SUB))
    bound = [AcceptedConnections(each, 100) for each in publishers]
    ended: list[int] = []
    client.security.expect_key(subscriber, client.security.pair.public)
    subscriber.subscribe(b"x")
    try:
        async with trio.open_nursery() as nursery:
            for publisher, accepted in zip(publishers, bound, strict=True):
                publisher.set_options(xpub_verbose=1)
                accepted.on_ended(ended.append)
                subscriber.connect(client.handler.bind(accepted, "tcp://127.0.0.1:*"))
                with trio.fail_after(DEADLINE_S):
                    assert await publisher.receive_many() == [[b"\1x"]]
                accepted.update()
            assert client.handler.refused == {}
            nursery.start_soon(subscriber.receive_many)  # libzmq repeats subscriptions in calls on the socket
            client.path.write_text("" if is_revoked else f"{AUTHORIZED.public}\n{KeyPair.generate().public}\n")
            clock.jump(module.REFRESH_S)
            with trio.fail_after(DEADLINE_S):
                await changed.wait()
                assert ended == ([1, 1] if is_revoked else [])
                for publisher in publishers if is_revoked else ():
                    while [b"\1x"] not in await publisher.receive_many():
                        pass
            nursery.cancel_scope.cancel()
    finally:
        for socket in (subscriber, *publishers):
            socket.close(0)
        for accepted in bound:
            accepted.close()
