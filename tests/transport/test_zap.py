"""The ZAP handler: requests of libzmq, and floods of refused peers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio
import zmq
from zmq.utils import z85

from dafka.protocol import AuthorizedKeysUnreadable, Event, PeerRefused
from dafka.transport import KeyPair, Security, Socket, ZapHandler, open_context, open_zap_handler
from dafka.transport import zap as module
from dafka.transport.keys import AuthorizedKeys

FRIEND = KeyPair.generate()
DEADLINE_S = 20


@attrs.frozen
class Door:
    handler: ZapHandler
    asker: Socket
    context: zmq.Context[zmq.Socket[bytes]]
    path: Path
    security: Security
    events: list[Event]

    async def ask(self, *frames: bytes) -> list[bytes]:
        """Send a request as libzmq does, and return the answer."""
        self.asker.send_many([[b"", *frames]])
        with trio.fail_after(DEADLINE_S):
            ((_, *answer),) = await self.asker.receive_many()
        return answer

    def request(self, key: str, address: bytes = b"10.0.0.9") -> list[bytes]:
        return [b"1.0", b"7", b"dafka", address, b"", b"CURVE", z85.decode(key.encode())]


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[Door]:
    async with open_door(tmp_path) as door:
        yield door


@asynccontextmanager
async def open_door(folder: Path) -> AsyncIterator[Door]:
    path = folder / "authorized"
    path.write_text(f"{FRIEND.public} friend\n")
    pair = KeyPair.generate()
    security = Security(pair, AuthorizedKeys(path, pair.public), ())
    events: list[Event] = []
    async with open_context(0) as context, open_zap_handler(context, security, events.append) as handler:
        asker = Socket(context.socket(zmq.SocketType.DEALER))
        asker.connect(module.ZAP_ENDPOINT)
        try:
            yield Door(handler, asker, context, path, security, events)
        finally:
            asker.close(0)


async def test_an_authorized_peer_is_accepted(door: Door) -> None:
    answer = await door.ask(*door.request(FRIEND.public))
    assert answer == [b"1.0", b"7", b"200", b"OK", FRIEND.public.encode(), b""]
    own = door.security.pair.public
    assert (await door.ask(*door.request(own)))[4] == own.encode()
    assert door.events == []


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
async def test_other_requests_are_refused(door: Door, change: dict[int, bytes]) -> None:
    frames = [change.get(index, frame) for index, frame in enumerate(door.request(FRIEND.public))]
    answer = await door.ask(*frames)
    assert answer[1:3] == [b"7", b"400"]
    assert answer[4] == b""
    assert door.handler.refused == {"key not authorized": 1}


async def test_requests_of_invalid_length_are_refused_or_ignored(door: Door) -> None:
    door.asker.send_many([[b""], [b"", b"1.0"], [b"x"] * 20, [b"", *door.request(FRIEND.public)[:-1]]])
    door.asker.send_many([[b"", *door.request(FRIEND.public)]])
    verdicts: list[bytes] = []
    with trio.fail_after(DEADLINE_S):
        while b"200" not in verdicts:
            verdicts += [frames[3] for frames in await door.asker.receive_many()]
    assert verdicts == [b"400", b"400", b"200"]


async def test_a_refused_peer_that_keeps_trying_is_reported_once(door: Door) -> None:
    unauthorized = KeyPair.generate().public
    for _ in range(5):
        await door.ask(*door.request(unauthorized))
    assert door.events == [PeerRefused("10.0.0.9", unauthorized, "key not authorized", str(door.path))]
    assert door.handler.refused.total() == 5


async def test_the_number_of_reported_peers_is_limited(door: Door) -> None:
    unauthorized = KeyPair.generate().public
    for number in range(module.REPORTED_MAX + 50):
        await door.ask(*door.request(unauthorized, b"10.0.%d.%d" % divmod(number, 256)))
    assert len(door.events) == module.REPORTED_MAX
    assert door.handler.refused.total() == module.REPORTED_MAX + 50
    assert (await door.ask(*door.request(FRIEND.public)))[2] == b"200"


async def test_an_unreadable_list_is_reported_and_the_former_keys_remain_authorized(door: Door) -> None:
    door.path.write_text("oops\n")
    with trio.fail_after(DEADLINE_S):
        while not door.events:  # noqa: ASYNC110 (there is no event to wait for)
            await trio.sleep(0.01)
    (event,) = door.events
    assert isinstance(event, AuthorizedKeysUnreadable)
    assert "line 1" in str(event)
    assert (await door.ask(*door.request(FRIEND.public)))[2] == b"200"


async def test_without_a_handler_every_peer_is_refused(door: Door) -> None:
    """By default, libzmq would accept every peer."""
    async with open_context(0) as context:
        publisher, subscriber = Socket(context.socket(zmq.SocketType.XPUB)), Socket(context.socket(zmq.SocketType.SUB))
        monitor = subscriber.monitor(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)
        try:
            door.security.require_keys(publisher)
            endpoint = publisher.bind("tcp://127.0.0.1:*")
            door.security.expect_key(subscriber, door.security.pair.public)
            subscriber.connect(endpoint)
            with trio.fail_after(DEADLINE_S):
                frames = (await monitor.receive_many())[0]
            assert int.from_bytes(frames[0][:2], "little") == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
        finally:
            for socket in (subscriber, publisher, monitor):
                socket.close(0)
