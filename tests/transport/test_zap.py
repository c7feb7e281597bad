"""The ZAP handler: the requests of libzmq, and peers that flood it."""

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
        """As libzmq does; gives the answer."""
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


async def test_who_is_listed_gets_in_by_its_key(door: Door) -> None:
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
async def test_everybody_else_is_refused(door: Door, change: dict[int, bytes]) -> None:
    frames = [change.get(index, frame) for index, frame in enumerate(door.request(FRIEND.public))]
    answer = await door.ask(*frames)
    assert answer[1:3] == [b"7", b"400"]
    assert answer[4] == b""
    assert door.handler.refused == {"key not authorized": 1}


async def test_requests_of_other_lengths_do_no_harm(door: Door) -> None:
    door.asker.send_many([[b""], [b"", b"1.0"], [b"x"] * 20, [b"", *door.request(FRIEND.public)[:-1]]])
    door.asker.send_many([[b"", *door.request(FRIEND.public)]])
    verdicts: list[bytes] = []
    with trio.fail_after(DEADLINE_S):
        while b"200" not in verdicts:
            verdicts += [frames[3] for frames in await door.asker.receive_many()]
    assert verdicts == [b"400", b"400", b"200"]


async def test_who_keeps_trying_is_told_of_once(door: Door) -> None:
    stranger = KeyPair.generate().public
    for _ in range(5):
        await door.ask(*door.request(stranger))
    assert door.events == [PeerRefused("10.0.0.9", stranger, "key not authorized", str(door.path))]
    assert door.handler.refused.total() == 5


async def test_ever_new_strangers_fill_no_log(door: Door) -> None:
    stranger = KeyPair.generate().public
    for number in range(module.REPORTED_MAX + 50):
        await door.ask(*door.request(stranger, b"10.0.%d.%d" % divmod(number, 256)))
    assert len(door.events) == module.REPORTED_MAX
    assert door.handler.refused.total() == module.REPORTED_MAX + 50
    assert (await door.ask(*door.request(FRIEND.public)))[2] == b"200"


async def test_a_list_that_cannot_be_read_is_told_of_and_changes_nothing(door: Door) -> None:
    door.path.write_text("oops\n")
    with trio.fail_after(DEADLINE_S):
        while not door.events:  # noqa: ASYNC110 (a list)
            await trio.sleep(0.01)
    (event,) = door.events
    assert isinstance(event, AuthorizedKeysUnreadable)
    assert "line 1" in str(event)
    assert (await door.ask(*door.request(FRIEND.public)))[2] == b"200"


async def test_without_a_doorkeeper_nobody_gets_in(door: Door) -> None:
    """libzmq itself would let everybody in."""
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
