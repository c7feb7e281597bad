"""The subscriber of a plain cluster: peers that flood it are put on probation, and the others are served first."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeAlias

import attrs
import pytest
import trio
import trio.testing
import zmq
from trio.testing import MockClock

from dafka.endpoints import ConnectionChange, PeerEndpoint
from dafka.transport import Socket, open_context
from dafka.transport import plain_subscriber as module
from dafka.transport.plain_subscriber import PlaintextSubscriber
from dafka.transport.subscribers import UNKNOWN_PEER, Messages
from dafka.transport.suspect_peers import PROBATION_S
from tests.waiting import DEADLINE_S, wait_until

Context: TypeAlias = "zmq.Context[zmq.Socket[bytes]]"


@pytest.fixture
def clock() -> MockClock:
    """Return a clock that runs like the real one, and that a test can put forward."""
    return MockClock(rate=1.0)


@attrs.define
class Receiver:
    """A subscriber, and the messages that it has received from each peer, by the method that returned them."""

    subscriber: PlaintextSubscriber
    context: zmq.Context[zmq.Socket[bytes]]
    normal: list[tuple[Messages, PeerEndpoint]] = attrs.field(factory=list)
    restricted: list[tuple[Messages, PeerEndpoint]] = attrs.field(factory=list)
    changes: list[ConnectionChange] = attrs.field(factory=list)

    @property
    def connected(self) -> list[PeerEndpoint]:
        """The peers, once for each time that they were connected."""
        return [each.peer for each in self.changes if each.is_made]

    @asynccontextmanager
    async def open_peer(self) -> AsyncIterator[tuple[Socket, PeerEndpoint]]:
        """Open a publisher that the subscriber is connected to and has subscribed at."""
        async with open_publishers(self.subscriber, self.context, 1) as (opened,):
            yield opened

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
async def open_subscriber(
    work: Callable[[], float] = time.perf_counter,
) -> AsyncIterator[tuple[PlaintextSubscriber, Context]]:
    async with open_context(0) as context:
        subscriber = PlaintextSubscriber(context, {"rcvhwm": 10_000}, work)
        subscriber.subscribe(b"t")
        try:
            yield subscriber, context
        finally:
            subscriber.close()


@asynccontextmanager
async def open_publishers(
    subscriber: PlaintextSubscriber, context: Context, count: int
) -> AsyncIterator[list[tuple[Socket, PeerEndpoint]]]:
    """Open publishers that the subscriber is connected to and has subscribed at."""
    opened: list[tuple[Socket, PeerEndpoint]] = []
    try:
        for _ in range(count):
            publisher = Socket(context.socket(zmq.SocketType.XPUB))
            publisher.set_options(xpub_verbose=1)
            opened.append((publisher, PeerEndpoint(publisher.bind("tcp://127.0.0.1:*"))))
            subscriber.connect_peer(opened[-1][1])
            await wait_subscribed(publisher)
        yield opened
    finally:
        for publisher, _ in opened:
            publisher.close(0)


@asynccontextmanager
async def open_receiver() -> AsyncIterator[Receiver]:
    async with open_subscriber() as (subscriber, context), trio.open_nursery() as nursery:
        receiver = Receiver(subscriber, context)

        async def watch_connections() -> None:
            while True:
                receiver.changes += await subscriber.receive_connections()

        nursery.start_soon(subscriber.watch)
        nursery.start_soon(watch_connections)
        nursery.start_soon(receiver.receive, False)
        nursery.start_soon(receiver.receive, True)
        yield receiver
        nursery.cancel_scope.cancel()


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
        receiver.subscriber.connect_peer(known)  # it is connected already
        assert known.endpoint not in receiver.subscriber._probations
        bad.send_many([[b"t", b"from the bad one"]])
        assert await receiver.wait(receiver.restricted, b"from the bad one") == peer
        honest.send_many([[b"t", b"second"]])
        assert await receiver.wait(receiver.normal, b"second") in (known, UNKNOWN_PEER)
        await wait_until(lambda: receiver.connected.count(peer) == 2)
        assert receiver.connected.count(known) == 1


async def test_a_peer_on_probation_is_subscribed_to_until_each_subscription_is_undone() -> None:
    async with open_receiver() as receiver, receiver.open_peer() as (bad, _):
        for prefix, count in ((b"again", 3), (b"once", 1)):
            for _ in range(count):
                receiver.subscriber.subscribe(prefix)
            receiver.subscriber.unsubscribe(prefix)
        await flood(receiver, bad)
        receiver.subscriber.unsubscribe(b"again")  # one is left
        found: list[object] = []
        with trio.fail_after(DEADLINE_S):
            while [b"again"] not in found:
                bad.send_many([[b"once"], [b"again"]])
                await trio.sleep(0.001)
                found = [message for messages, _ in receiver.restricted for message in messages]
        assert [b"once"] not in found


async def test_a_peer_that_behaves_leaves_probation(clock: MockClock) -> None:
    async with open_receiver() as receiver, receiver.open_peer() as (bad, peer):
        await flood(receiver, bad)
        clock.jump(PROBATION_S)
        await wait_subscribed(bad)
        assert len(receiver.subscriber._probations) == 0
        bad.send_many([[b"t", b"better"]])
        assert await receiver.wait(receiver.normal, b"better") in (peer, UNKNOWN_PEER)


async def test_senders_are_identified_while_many_messages_are_discarded(mock_clock: MockClock) -> None:
    async with open_subscriber() as (subscriber, context), open_publishers(subscriber, context, 1) as ((one, peer),):

        async def source() -> PeerEndpoint:
            one.send_many([[b"t", b"x"]])
            messages, found = await subscriber.receive()
            assert messages == [[b"t", b"x"]]
            return found

        assert await source() == UNKNOWN_PEER
        for _ in range(3):  # in a second each
            subscriber.report_discards(UNKNOWN_PEER, module.DISCARDS_PER_S - 1)
            assert await source() == UNKNOWN_PEER
            mock_clock.jump(1.0)
        subscriber.report_discards(UNKNOWN_PEER, module.DISCARDS_PER_S - 1)
        subscriber.report_discards(UNKNOWN_PEER, 1)
        assert await source() == peer
        subscriber.report_discards(peer, 0)
        mock_clock.jump(module.IDENTIFY_S)
        assert await source() == UNKNOWN_PEER
        subscriber.report_discards(peer, 1)
        assert await source() == peer


async def test_senders_are_identified_for_a_moment_after_messages_that_took_long(mock_clock: MockClock) -> None:
    ticks = [0.0]
    async with (
        open_subscriber(lambda: ticks[0]) as (subscriber, context),
        open_publishers(subscriber, context, 1) as ((one, peer),),
    ):

        async def source(*, is_slow: bool = False) -> PeerEndpoint:
            """Return the source of the next messages; before, that of many messages, each of which took long."""
            if is_slow:
                ticks[0] += 10.0
                subscriber._main.socket.record_returned([[b"t"]] * 101)
                ticks[0] += 10.0
                one.send_many([[b"t", b"x"]])
                await subscriber.receive()  # that they took long is found at the end of this call
            one.send_many([[b"t", b"x"]])
            return (await subscriber.receive())[1]

        assert await source() == UNKNOWN_PEER
        assert await source(is_slow=True) == peer
        mock_clock.jump(module.IDENTIFY_SLOW_S)
        assert await source() == UNKNOWN_PEER
        assert await source(is_slow=True) == UNKNOWN_PEER  # it was not long ago
        mock_clock.jump(module.IDENTIFY_SLOW_INTERVAL_S)
        assert await source(is_slow=True) == peer


async def test_offenders_are_served_after_others_and_put_on_probation_when_they_exceed_their_burst(
    mock_clock: MockClock,
) -> None:
    async with (
        open_subscriber() as (subscriber, context),
        open_publishers(subscriber, context, 2) as ((bad, offender), (good, honest)),
    ):
        subscriber.report_discards(UNKNOWN_PEER, module.DISCARDS_PER_S)
        subscriber.report_discards(offender, module.TOLERATED_BURST - 1)
        subscriber.report_discards(honest, 0)
        with trio.fail_after(DEADLINE_S):
            while True:
                bad.send_many([[b"t", b"bad"]])
                good.send_many([[b"t", b"good"]])
                _, first = await subscriber.receive()
                if subscriber._waiting_groups:  # messages of both came at once
                    with trio.testing.assert_checkpoints():
                        _, second = await subscriber.receive()
                    assert (first, second) == (honest, offender)
                    break
        assert subscriber.discarded == {}
        subscriber.report_discards(PeerEndpoint("tcp://127.0.0.1:1"), module.TOLERATED_BURST)  # it is not connected
        assert subscriber.discarded == {}
        subscriber.report_discards(offender, 1 + module.TOLERATED_PER_S)
        assert subscriber.discarded == {module.ON_PROBATION: 1}
        assert offender.endpoint in subscriber._probations
        subscriber.report_discards(honest, module.TOLERATED_BURST - 1)
        mock_clock.jump(2.0)
        subscriber.report_discards(honest, 2 * module.TOLERATED_PER_S)
        assert honest.endpoint not in subscriber._probations


async def test_changes_of_connections_are_reported_in_order_in_both_states(clock: MockClock) -> None:
    async with open_receiver() as receiver, receiver.open_peer() as (bad, peer):
        await flood(receiver, bad)
        receiver.subscriber.disconnect_peer(peer)
        assert len(receiver.subscriber._probations) == 0  # or it would be connected again in the end
        with trio.fail_after(DEADLINE_S):
            while [b"\0t"] not in await bad.receive_many():
                pass
        await wait_until(lambda: receiver.connected.count(peer) == 2)
        assert receiver.changes[0] == ConnectionChange(peer, is_made=True)
        assert {change.peer for change in receiver.changes} == {peer}
