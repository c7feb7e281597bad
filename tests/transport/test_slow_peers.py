"""What waits for a peer that takes record batches too slowly is bounded, at the cost of this peer alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import pytest
import trio
import trio.testing
import zmq

from dafka.config import NodeConfig
from dafka.transport import PublisherSocket, RunSocket, open_context
from dafka.transport.accepted import AcceptedConnection
from dafka.transport.connections import Connection
from dafka.transport.publisher import COMPARE_S, COMPARISONS, RETURN_S, SLOW_PEER, SlowPeers, find_queued_max
from dafka.wire.batch import EncodedRun, iter_frames
from tests.waiting import DEADLINE_S, wait_until

MIB = 2**20
LIMIT = 4 * MIB
MESSAGES: list[list[bytes] | EncodedRun] = [
    [b"Bt", b"batch"],
    [b"H"],
    EncodedRun(None, b"M", 0, [b"record"]),
    [b"CR", b"direct batch"],
    [b"Mt", b"record"],
]
WITHOUT_BATCHES = [MESSAGES[1], MESSAGES[2], MESSAGES[4]]


@attrs.define
class Peers:
    """Stands for the accepted connections, and for the bytes that the system has not sent to them."""

    unsent: dict[int, int]
    ended: list[int] = attrs.field(factory=list)
    measured: int = 0

    def __iter__(self) -> Iterator[AcceptedConnection]:
        return (AcceptedConnection(each, each, 0.0) for each in self.unsent if each not in self.ended)

    def end(self, connection: AcceptedConnection) -> Connection | None:
        self.ended.append(connection.number)
        return Connection(None, None)

    def measure(self, descriptor: int) -> int:
        self.measured += 1
        return self.unsent[descriptor]


@pytest.fixture
def peers() -> Peers:
    return Peers({1: 100, 2: 900, 3: 0})


def limit_for(peers: Peers) -> SlowPeers:
    connections: Any = peers
    return SlowPeers(connections, LIMIT, peers.measure)


@pytest.fixture
def limit(peers: Peers) -> SlowPeers:
    return limit_for(peers)


@pytest.fixture
def clock() -> trio.testing.MockClock:
    return trio.testing.MockClock()


@pytest.mark.parametrize(
    ("queued", "is_measured", "ended", "kept"),
    [
        (0, False, [], MESSAGES),
        (LIMIT // 2, False, [], MESSAGES),
        (LIMIT // 2 + 1, True, [], MESSAGES),
        (LIMIT, True, [], MESSAGES),
        (LIMIT + 1, True, [2], MESSAGES),
        (2 * LIMIT, True, [2], MESSAGES),
        (2 * LIMIT + 1, True, [2], WITHOUT_BATCHES),
    ],
)
async def test_the_slowest_peer_is_ended_above_the_limit_and_batches_are_dropped_above_twice_the_limit(
    queued: int, is_measured: bool, ended: list[int], kept: list[object], peers: Peers, limit: SlowPeers
) -> None:
    assert list(limit.limit(MESSAGES, queued)) == kept
    assert (peers.measured > 0, peers.ended, limit.ended_count) == (is_measured, ended, len(ended))


async def test_peers_that_keep_up_are_not_ended_even_if_nobody_knows_who_is_slow(limit: SlowPeers) -> None:
    peers = Peers({1: 0, 2: 0})
    limit = limit_for(peers)
    assert list(limit.limit(MESSAGES, 10 * LIMIT)) == WITHOUT_BATCHES
    assert (peers.ended, limit.ended_count) == ([], 0)
    nobody = Peers({})
    assert list(limit_for(nobody).limit(MESSAGES, LIMIT + 1)) == MESSAGES


async def test_the_least_that_was_unsent_to_a_peer_counts_until_few_bytes_wait(
    peers: Peers, limit: SlowPeers, clock: trio.testing.MockClock
) -> None:
    limit.limit([], LIMIT)
    peers.unsent |= {1: 500, 2: 0, 3: 10_000}
    clock.jump(COMPARE_S)
    limit.limit([], LIMIT)
    peers.unsent |= {2: 10_000}
    clock.jump(COMPARE_S)
    limit.limit([], LIMIT + 1)
    assert peers.ended == [1]
    peers.unsent |= {2: 0, 3: 5}
    clock.jump(RETURN_S)
    limit.limit([], LIMIT)
    limit.limit([], LIMIT // 2)  # all of that is over
    peers.unsent |= {2: 100, 3: 50}
    clock.jump(COMPARE_S)
    limit.limit([], LIMIT + 1)
    assert peers.ended == [1, 2]


async def test_a_peer_that_kept_up_long_ago_is_ended_and_one_that_keeps_up_now_and_then_is_not(
    clock: trio.testing.MockClock,
) -> None:
    peers = Peers({1: 0, 2: 0})
    limit = limit_for(peers)
    for step in range(COMPARISONS + 1):
        assert peers.ended == []
        limit.limit([], LIMIT + 1)
        peers.unsent = {1: 10, 2: 10_000 if step % 3 else 0}
        clock.jump(COMPARE_S)
    assert peers.ended == [1]


async def test_peers_are_compared_at_intervals_and_ended_more_slowly_than_libzmq_drops_their_messages(
    peers: Peers, limit: SlowPeers, clock: trio.testing.MockClock
) -> None:
    limit.limit([], LIMIT)
    for _ in range(5):
        limit.limit([], 2 * LIMIT)
    assert (peers.measured, peers.ended) == (3, [])
    clock.jump(COMPARE_S)
    limit.limit([], 2 * LIMIT)
    assert (peers.measured, peers.ended) == (6, [2])
    clock.jump(RETURN_S * 0.9)
    limit.limit([], 2 * LIMIT)
    assert (peers.measured, peers.ended) == (6, [2])
    clock.jump(RETURN_S * 0.2)
    peers.unsent |= {3: 500}  # what was unsent to it while 2 was slow does not count any more
    limit.limit([], 2 * LIMIT)
    assert (peers.ended, limit.ended_count) == ([2, 3], 2)


@pytest.mark.parametrize(("message", "expected"), [(1, 256 * MIB), (16 * MIB, 256 * MIB), (17 * MIB, 272 * MIB)])
def test_the_limit_holds_several_of_the_largest_messages(message: int, expected: int) -> None:
    assert find_queued_max(message) == expected


@pytest.mark.usefixtures("either_loops")
@pytest.mark.parametrize("clock", [trio.testing.MockClock(rate=1.0)])
async def test_the_slow_peer_is_disconnected_and_the_others_get_everything(clock: trio.testing.MockClock) -> None:
    config = NodeConfig(bind="tcp://127.0.0.1:*", message_bytes_max=MIB)
    batch = bytes(2**16)
    async with open_context(0) as context:
        publisher = PublisherSocket(
            context.socket(zmq.SocketType.XPUB), config, sends_batches=True, queued_bytes_max=LIMIT
        )
        fast, stalled = RunSocket(context.socket(zmq.SocketType.SUB)), RunSocket(context.socket(zmq.SocketType.SUB))
        try:
            publisher.set_options(sndhwm=0, xpub_verbose=1)
            endpoint = publisher.bind(config.bind)
            with trio.fail_after(DEADLINE_S):
                for each, queue in ((fast, 0), (stalled, 1)):
                    each.set_options(rcvhwm=queue)
                    each.subscribe(b"Bt")
                    each.connect(endpoint)
                    assert await publisher.receive_many() == [[b"\1Bt"]]
                number = most = 0
                waiting: list[list[bytes]] = []
                while not publisher.discarded[SLOW_PEER]:
                    clock.jump(COMPARE_S)  # peers are compared at each batch, however fast they are sent
                    assert publisher.send_many([[b"Bt", b"%8d" % number + batch]]) == 1
                    while not waiting:
                        waiting += [list(frames) for frames in iter_frames(await fast.receive_many())]
                    assert waiting.pop(0)[1][:8] == b"%8d" % number
                    number += 1
                    most = max(most, publisher.queued_bytes)
                assert LIMIT < most < 2 * LIMIT
                async with trio.open_nursery() as nursery:
                    again = trio.Event()

                    async def receive_subscriptions() -> None:
                        while [b"\1Bt"] not in await publisher.receive_many():
                            pass
                        again.set()

                    async def receive_rest() -> None:
                        while True:
                            await stalled.receive_many()

                    nursery.start_soon(receive_subscriptions)
                    await wait_until(lambda: not publisher.queued_bytes)
                    nursery.start_soon(receive_rest)
                    await again.wait()  # it has connected again
                    nursery.cancel_scope.cancel()
            assert publisher.discarded[SLOW_PEER] == 1
        finally:
            for socket in (fast, stalled, publisher):
                socket.close(0)
