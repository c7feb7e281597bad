"""Nodes of closed clusters: who can connect to whom, and which peer each message comes from."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio
import zmq
from trio.testing import MockClock

from dafka.config import NodeConfig
from dafka.endpoints import ConnectionChange, PeerEndpoint
from dafka.errors import TransportError
from dafka.protocol import Event, PeerNotAuthorized, PeerRefused, RefusedByPeer
from dafka.protocol.trust import KEY_NOT_AUTHORIZED, NO_KEY, UNKNOWN, WRONG_KEY
from dafka.transport import Connector, KeyPair, Mesh, Security, Socket, open_context, open_mesh
from dafka.transport.keys import AuthorizedKeys
from dafka.transport.subscribers import CurveSubscriber
from dafka.transport.zap import REFRESH_S
from dafka.wire.batch import iter_frames
from tests.waiting import DEADLINE_S, wait_until

CONFIG = NodeConfig(bind="tcp://127.0.0.1:*")


@attrs.define(eq=False)
class Closed:
    """A node of a closed cluster, and what it reported."""

    pair: KeyPair
    path: Path
    security: Security
    events: list[Event] = attrs.field(factory=list)

    def authorize(self, *pairs: KeyPair) -> None:
        """Replace the list of authorized keys, and have the node notice at once."""
        self.path.write_text("".join(f"{pair.public}\n" for pair in pairs))
        self.security.authorized.refresh()


@pytest.fixture
def close_node(tmp_path: Path) -> Callable[..., Closed]:
    """Return a function that makes a node which authorizes these keys."""

    def make(*authorized: KeyPair) -> Closed:
        pair = KeyPair.generate()
        path = tmp_path / f"list of {pair.public.encode().hex()}"
        path.write_text("".join(f"{each.public}\n" for each in authorized))
        return Closed(pair, path, Security(pair, AuthorizedKeys(path, pair.public), ()))

    return make


@asynccontextmanager
async def opened(node: Closed) -> AsyncIterator[Mesh]:
    with trio.fail_after(DEADLINE_S):
        async with open_mesh(CONFIG, 1000, node.security, node.events.append) as mesh, trio.open_nursery() as nursery:
            nursery.start_soon(mesh.publisher.watch)
            yield mesh
            nursery.cancel_scope.cancel()


STRANGER, FRIEND = KeyPair.generate(), KeyPair.generate()
SERVER = KeyPair.generate()

CASES = {
    "plain to plain": (False, None, "", ""),
    "keys to plain": (False, (FRIEND, SERVER), NO_KEY, ""),
    "no key": (True, None, NO_KEY, NO_KEY),
    "an authorized key": (True, (FRIEND, SERVER), "", ""),
    "the node's own key": (True, (SERVER, SERVER), "", ""),
    "another key": (True, (STRANGER, SERVER), KEY_NOT_AUTHORIZED, KEY_NOT_AUTHORIZED),
    "another key of the server": (True, (FRIEND, STRANGER), UNKNOWN, WRONG_KEY),
}
"""Whether the server is closed; the client's pair and the one that it expects of the server, if it has keys; and the
reasons of a refusal that the client and the server report, empty if there is none.
"""


@pytest.mark.parametrize("case", CASES)
async def test_only_holders_of_the_right_keys_connect_and_both_sides_know_why_others_do_not(
    case: str, tmp_path: Path
) -> None:
    is_closed, keys, client_reason, server_reason = CASES[case]
    path = tmp_path / "list"
    path.write_text(f"{FRIEND.public}\n")
    events, made, refused = list[Event](), list[str](), list[RefusedByPeer]()
    security = Security(SERVER, AuthorizedKeys(path, SERVER.public), ()) if is_closed else None
    async with open_context(0) as context, open_mesh(CONFIG, 1000, security, events.append) as server:
        subscriber = Socket(context.socket(zmq.SocketType.SUB))
        own = None if keys is None else Security(keys[0], AuthorizedKeys(path, keys[0].public), ())
        connector = Connector(subscriber, own, made.append, refused.append)
        try:
            with trio.fail_after(DEADLINE_S):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(server.publisher.watch)
                    nursery.start_soon(connector.watch)
                    subscriber.subscribe(b"t")
                    connector.connect(server.endpoint, "" if keys is None else keys[1].public)
                    if client_reason:
                        await wait_until(lambda: bool(refused) and (bool(events) or not server_reason))
                    else:
                        assert await server.publisher.receive_many() == [[b"\1t"]]
                        server.publisher.send_many([[b"t", b"hello"]])
                        assert await subscriber.receive_many() == [[b"t", b"hello"]]
                        await wait_until(lambda: bool(made))
                    nursery.cancel_scope.cancel()
        finally:
            subscriber.close(0)
            connector.close()
    own_key = "" if keys is None else keys[0].public
    # A server without the client's security may close the connection before libzmq has seen why.
    reasons = {client_reason, UNKNOWN} if client_reason == NO_KEY else {client_reason}
    assert bool(refused) is bool(client_reason)
    assert set(refused) <= {RefusedByPeer(server.endpoint, own_key, reason) for reason in reasons}
    assert bool(made) is not bool(client_reason)
    seen_key = own_key if server_reason == KEY_NOT_AUTHORIZED else ""
    host = "127.0.0.1" if server_reason == KEY_NOT_AUTHORIZED else ""
    assert events == ([PeerRefused(host, seen_key, server_reason, str(path))] if server_reason else [])


async def receive(mesh: Mesh, count: int = 1) -> list[tuple[list[bytes], str]]:
    """Return messages with the keys of their senders."""
    found: list[tuple[list[bytes], str]] = []
    while len(found) < count:
        items, source = await mesh.subscriber.receive()
        assert source.endpoint == ""
        found += [(list(frames), source.key) for frames in iter_frames(items)]
    return found


async def wait_subscribed(mesh: Mesh, frame: bytes) -> None:
    while [frame] not in await mesh.publisher.receive_many():
        pass


def endpoint_of(node: Closed, mesh: Mesh) -> PeerEndpoint:
    return PeerEndpoint(mesh.endpoint, node.pair.public)


async def test_messages_come_with_the_key_of_their_sender(close_node: Callable[..., Closed]) -> None:
    one, two = close_node(), close_node()
    reader = close_node(one.pair, two.pair)
    for each in (one, two):
        each.authorize(reader.pair)
    async with opened(one) as first, opened(two) as second, opened(reader) as mesh:
        mesh.subscriber.subscribe(b"a")
        mesh.subscriber.subscribe(b"a")
        for each, publisher in ((one, first), (two, second)):
            mesh.subscriber.connect_peer(endpoint_of(each, publisher))
            await wait_subscribed(publisher, b"\1a")
        changes: list[ConnectionChange] = []
        while len(changes) < 2:
            changes += await mesh.subscriber.receive_connections()
        assert changes == [
            ConnectionChange(endpoint_of(one, first), is_made=True),
            ConnectionChange(endpoint_of(two, second), is_made=True),
        ]
        for each, publisher in ((one, first), (two, second)):
            publisher.publisher.send_many([[b"a", each.pair.public.encode()]])
            assert await receive(mesh) == [([b"a", each.pair.public.encode()], each.pair.public)]
        mesh.subscriber.subscribe(b"b")
        mesh.subscriber.unsubscribe(b"a")
        for publisher in (first, second):
            await wait_subscribed(publisher, b"\1b")
        first.publisher.send_many([[b"a", b"still"]])
        assert await receive(mesh) == [([b"a", b"still"], one.pair.public)]
        mesh.subscriber.unsubscribe(b"a")
        await wait_subscribed(first, b"\0a")
        mesh.subscriber.disconnect_peer(endpoint_of(one, first))
        await wait_subscribed(first, b"\0b")
        mesh.subscriber.disconnect_peer(endpoint_of(one, first))
        second.publisher.send_many([[b"b", b"other"]])
        assert await receive(mesh) == [([b"b", b"other"], two.pair.public)]
        mesh.subscriber.connect_peer(endpoint_of(one, first))
        assert await first.publisher.receive_many() == [[b"\1b"]]  # nothing else is subscribed to by now
    assert [*one.events, *two.events, *reader.events] == []


async def test_a_peer_is_connected_while_its_key_is_authorized(close_node: Callable[..., Closed]) -> None:
    peer, reader = close_node(), close_node()
    peer.authorize(reader.pair)
    async with opened(peer) as publisher, opened(reader) as mesh:
        assert isinstance(mesh.subscriber, CurveSubscriber)
        target = endpoint_of(peer, publisher)
        unusable = [ConnectionChange(target, is_made=True), ConnectionChange(target, is_made=False)]
        not_authorized = PeerNotAuthorized(target.endpoint, target.key, str(reader.path))
        mesh.subscriber.subscribe(b"t")
        mesh.subscriber.connect_peer(target)
        assert await mesh.subscriber.receive_connections() == unusable
        assert reader.events == [not_authorized]
        mesh.subscriber.review_keys()
        assert reader.events == [not_authorized]
        reader.authorize(peer.pair)
        mesh.subscriber.review_keys()
        await wait_subscribed(publisher, b"\1t")
        assert await mesh.subscriber.receive_connections() == unusable[:1]
        mesh.subscriber.review_keys()
        reader.authorize()
        mesh.subscriber.review_keys()
        await wait_subscribed(publisher, b"\0t")
        assert reader.events == [not_authorized] * 2
        changes: list[ConnectionChange] = []
        while len(changes) < 2:
            changes += await mesh.subscriber.receive_connections()
        assert changes[:2] == unusable
        mesh.subscriber.disconnect_peer(target)
        reader.authorize(peer.pair)
        mesh.subscriber.review_keys()
        mesh.subscriber.connect_peer(target)
        assert await publisher.publisher.receive_many() == [[b"\1t"]]  # once


@pytest.mark.parametrize("clock", [MockClock(rate=1.0)])
async def test_a_changed_list_applies_to_the_peers_of_a_node(
    clock: MockClock, close_node: Callable[..., Closed]
) -> None:
    peer, reader = close_node(), close_node()
    peer.authorize(reader.pair)
    async with opened(peer) as publisher, opened(reader) as mesh:
        mesh.subscriber.subscribe(b"t")
        mesh.subscriber.connect_peer(endpoint_of(peer, publisher))
        reader.path.write_text(f"{peer.pair.public}\n")
        clock.jump(REFRESH_S)
        await wait_subscribed(publisher, b"\1t")


async def test_a_peer_without_a_key_or_with_an_invalid_endpoint_is_refused_and_forgotten(
    close_node: Callable[..., Closed],
) -> None:
    peer = close_node()
    reader = close_node(peer.pair)
    peer.authorize(reader.pair)
    async with opened(peer) as publisher, opened(reader) as mesh:
        for bad in ("", "short", "#" * 40):
            with pytest.raises(TransportError, match="expected the node's public key after the endpoint"):
                mesh.subscriber.connect_peer(PeerEndpoint(publisher.endpoint, bad))
        with pytest.raises(TransportError, match="cannot connect to rubbish"):
            mesh.subscriber.connect_peer(PeerEndpoint("rubbish", peer.pair.public))
        assert isinstance(mesh.subscriber, CurveSubscriber)
        assert mesh.subscriber._sockets == {}
        mesh.subscriber.subscribe(b"t")
        mesh.subscriber.connect_peer(endpoint_of(peer, publisher))
        with pytest.raises(TransportError):
            mesh.subscriber.connect_peer(PeerEndpoint("rubbish", peer.pair.public))
        await wait_subscribed(publisher, b"\1t")  # the other connection with this key goes on
        mesh.subscriber.disconnect_peer(PeerEndpoint(publisher.endpoint, reader.pair.public))
        publisher.publisher.send_many([[b"t"]])
        assert await receive(mesh) == [([b"t"], peer.pair.public)]
        opened_socket = mesh.subscriber._sockets[peer.pair.public].socket
        mesh.subscriber.disconnect_peer(endpoint_of(peer, publisher))
        await wait_until(lambda: opened_socket._is_closed)
        with trio.move_on_after(0) as scope:
            await mesh.subscriber.receive_restricted()
        assert scope.cancelled_caught
        mesh.subscriber.report_discards(PeerEndpoint("", peer.pair.public), 10**6)
        await mesh.subscriber.watch()
        assert mesh.subscriber.discarded == {}


async def test_a_node_connects_to_more_peers_than_libzmq_allows_by_default(close_node: Callable[..., Closed]) -> None:
    """Each key needs three sockets, of which libzmq allows 1023."""
    node = close_node()
    keys = [KeyPair.generate() for _ in range(345)]
    node.authorize(*keys)
    async with opened(node) as mesh:
        for pair in keys:
            mesh.subscriber.connect_peer(PeerEndpoint("tcp://127.0.0.1:9", pair.public))
