"""The subscriber of a plain cluster: peers that flood it are put on probation, and the others are served first."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
import zmq

from dafka.endpoints import PeerEndpoint
from dafka.errors import TransportError
from dafka.transport import Socket, open_context, suspect_peers
from dafka.transport import plain_subscriber as module
from dafka.transport.plain_subscriber import PlaintextSubscriber
from dafka.transport.subscribers import UNKNOWN_PEER, Messages

DEADLINE_S = 60


@attrs.define
class Receiver:
    """A subscriber, and the messages that it has received from each peer, by the method that returned them."""

    subscriber: PlaintextSubscriber
    context: zmq.Context[zmq.Socket[bytes]]
    normal: list[tuple[Messages, PeerEndpoint]] = attrs.field(factory=list)
    restricted: list[tuple[Messages, PeerEndpoint]] = attrs.field(factory=list)
    connected: list[PeerEndpoint] = attrs.field(factory=list)

    @asynccontextmanager
    async def open_peer(self, queue: int = 1000) -> AsyncIterator[tuple[Socket, PeerEndpoint]]:
        """Open a publisher that the subscriber is connected to and has subscribed at, with a queue of this length."""
        publisher = Socket(self.context.socket(zmq.SocketType.XPUB))
        try:
            publisher.set_options(xpub_verbose=1, sndhwm=queue)
            peer = PeerEndpoint(publisher.bind("tcp://127.0.0.1:*"))
            self.subscriber.connect_peer(peer)
            await wait_subscribed(publisher)
            yield publisher, peer
        finally:
            publisher.close(0)

    async def wait(self, items: list[tuple[Messages, PeerEndpoint]], message: bytes) -> PeerEndpoint:
        """Wait for a message, and return its sender."""
        with trio.fail_after(DEADLINE_S):
            while True:
                for messages, source in items:
                    if [b"t", message] in messages:
                        return source
                await trio.sleep(0.001)

    async def receive(self, restricted: bool) -> None:
        receive = self.subscriber.receive_restricted if restricted else self.subscriber.receive
        while True:
            messages, source = await receive()
            (self.restricted if restricted else self.normal).append((messages, source))
            bad = sum(message[-1][:3] == b"bad" for message in messages if isinstance(message, list))
            self.subscriber.report_discards(source, bad)


async def wait_subscribed(publisher: Socket) -> None:
    with trio.fail_after(DEADLINE_S):
        while [b"\1t"] not in await publisher.receive_many():
            pass


@asynccontextmanager
async def open_receiver() -> AsyncIterator[Receiver]:
    async with open_context(0) as context:
        subscriber = PlaintextSubscriber(context, {"rcvhwm": 10_000})
        receiver = Receiver(subscriber, context)
        subscriber.subscribe(b"t")

        async def connections() -> None:
            while True:
                receiver.connected += [each.peer for each in await subscriber.receive_connections() if each.is_made]

        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(subscriber.watch)
                nursery.start_soon(connections)
                nursery.start_soon(receiver.receive, False)
                nursery.start_soon(receiver.receive, True)
                yield receiver
                nursery.cancel_scope.cancel()
        finally:
            subscriber.close()


async def flood(receiver: Receiver, publisher: Socket) -> None:
    """Send messages to discard until the peer is on probation, and connected again."""
    before = receiver.subscriber.discarded.total()
    with trio.fail_after(DEADLINE_S):
        while receiver.subscriber.discarded.total() == before:
            publisher.send_many([[b"t", b"bad"]] * 100)
            await trio.sleep(0.001)
    await wait_subscribed(publisher)


async def test_a_peer_that_floods_is_put_on_probation_and_others_are_not() -> None:
    async with (
        open_receiver() as receiver,
        receiver.open_peer() as (honest, known),
        receiver.open_peer() as (bad, peer),
    ):
        honest.send_many([[b"t", b"first"]])
        assert await receiver.wait(receiver.normal, b"first") == UNKNOWN_PEER
        await flood(receiver, bad)
        assert receiver.subscriber.discarded == {module.ON_PROBATION: 1}
        bad.send_many([[b"t", b"from the bad one"]])
        assert await receiver.wait(receiver.restricted, b"from the bad one") == peer
        honest.send_many([[b"t", b"second"]])
        assert await receiver.wait(receiver.normal, b"second") in (known, UNKNOWN_PEER)
        with trio.fail_after(DEADLINE_S):
            while receiver.connected.count(peer) < 2:  # noqa: ASYNC110 (there is no event to wait for)
                await trio.sleep(0.001)
        assert receiver.connected.count(known) == 1


async def test_a_new_peer_of_its_host_begins_on_probation_and_is_served() -> None:
    async with open_receiver() as receiver, receiver.open_peer() as (bad, _):
        await flood(receiver, bad)
        receiver.subscriber.subscribe(b"u")
        receiver.subscriber.unsubscribe(b"u")
        async with receiver.open_peer() as (newcomer, peer):
            newcomer.send_many([[b"t", b"hello"], [b"u", b"nothing"], [b"t", b"end"]])
            assert await receiver.wait(receiver.restricted, b"hello") == peer
            await receiver.wait(receiver.restricted, b"end")
            assert not any([b"u", b"nothing"] in messages for messages, _ in receiver.restricted)
            receiver.subscriber.disconnect_peer(peer)
            with trio.fail_after(DEADLINE_S):
                while [b"\0t"] not in await newcomer.receive_many():
                    pass


async def test_a_peer_that_behaves_leaves_probation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspect_peers, "PROBATION_S", 0.3)
    monkeypatch.setattr(module, "REVIEW_INTERVAL_S", 0.01)
    async with open_receiver() as receiver, receiver.open_peer() as (bad, peer):
        await flood(receiver, bad)
        await wait_subscribed(bad)
        assert len(receiver.subscriber._probations) == 0
        bad.send_many([[b"t", b"better"]])
        assert await receiver.wait(receiver.normal, b"better") in (peer, UNKNOWN_PEER)


async def test_a_peer_on_probation_waits_while_its_messages_are_many() -> None:
    """The short queue here and the buffers of the kernel fill up, and then libzmq keeps messages at the sender."""
    async with open_receiver() as receiver, receiver.open_peer() as (honest, _), receiver.open_peer(100) as (bad, _):
        await flood(receiver, bad)
        started, batches = trio.current_time(), len(receiver.restricted)
        for number in range(20):
            bad.send_many([[b"t", b"bad" + bytes(10_000)]] * 100)
            honest.send_many([[b"t", b"honest %d" % number]])
            await receiver.wait(receiver.normal, b"honest %d" % number)
        handled = len(receiver.restricted) - batches
        assert handled <= (trio.current_time() - started) / module.PAUSE_S + 1


async def test_an_invalid_endpoint_of_a_misbehaving_host_is_not_remembered() -> None:
    async with open_receiver() as receiver, receiver.open_peer() as (bad, peer):
        await flood(receiver, bad)
        with pytest.raises(TransportError):
            receiver.subscriber.connect_peer(PeerEndpoint("tcp://127.0.0.1:99999"))
        assert len(receiver.subscriber._probations) == 1
        receiver.subscriber.connect_peer(peer)  # known already
        receiver.subscriber.disconnect_peer(PeerEndpoint("tcp://127.0.0.1:1"))
        assert len(receiver.subscriber._probations) == 1
