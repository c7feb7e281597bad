"""What waits for a peer that takes record batches too slowly is bounded, at the cost of this peer alone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest
import trio

from dafka.config import NodeConfig
from dafka.endpoints import PeerEndpoint
from dafka.transport import Mesh, open_mesh, publisher
from dafka.transport.publisher import SLOW_PEER
from dafka.wire.batch import iter_frames
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("either_loops")

MIB = 2**20
CONFIG = NodeConfig(bind="tcp://127.0.0.1:*", message_bytes_max=MIB)
STALLED = NodeConfig(bind="tcp://127.0.0.1:*", receive_messages_max=1)
BATCH = [b"Bt", bytes(2**16)]
LIMIT = 16 * MIB
DEADLINE_S = 60


@pytest.fixture(autouse=True)
def low_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "QUEUED_BYTES_MIN", LIMIT)


async def connect(mesh: Mesh, publisher: Mesh, prefix: bytes = b"Bt") -> None:
    mesh.subscriber.subscribe(prefix)
    mesh.subscriber.connect_peer(PeerEndpoint(publisher.endpoint))
    assert await publisher.publisher.receive_many() == [[b"\1" + prefix]]


async def receive_one(mesh: Mesh, waiting: list[list[bytes]]) -> list[bytes]:
    while not waiting:
        items, _ = await mesh.subscriber.receive()
        waiting += [list(frames) for frames in iter_frames(items)]
    return waiting.pop(0)


async def receive_all(receive: Callable[[], Awaitable[Iterable[Any]]], found: list[Any]) -> None:
    while True:
        found += await receive()


async def test_the_slow_peer_is_disconnected_and_the_others_get_everything() -> None:
    with trio.fail_after(DEADLINE_S):
        async with open_mesh(CONFIG, 0) as one, open_mesh(CONFIG, 0) as fast, open_mesh(STALLED, 1) as stalled:
            await connect(fast, one)
            await connect(stalled, one)
            waiting: list[list[bytes]] = []
            number = most = 0
            while not one.publisher.discarded[SLOW_PEER]:
                assert one.publisher.send_many([[b"Bt", b"%8d" % number + BATCH[1]]]) == 1
                assert (await receive_one(fast, waiting))[1][:8] == b"%8d" % number
                number += 1
                most = max(most, one.publisher.queued_bytes)
            assert LIMIT < most < 2 * LIMIT
            async with trio.open_nursery() as nursery:
                subscriptions: list[list[bytes]] = []
                nursery.start_soon(receive_all, one.publisher.receive_many, subscriptions)
                await wait_until(lambda: not one.publisher.queued_bytes)
                nursery.start_soon(receive_all, stalled.subscriber.receive, [])
                await wait_until(lambda: [b"\1Bt"] in subscriptions)  # it has connected again
                nursery.cancel_scope.cancel()
            assert one.publisher.discarded[SLOW_PEER] == 1


async def test_peers_that_get_single_records_are_not_concerned() -> None:
    with trio.fail_after(DEADLINE_S):
        async with open_mesh(CONFIG, 0) as one, open_mesh(STALLED, 1) as stalled:
            await connect(stalled, one, b"Mt")
            waiting: list[list[bytes]] = []
            count = 2 * LIMIT // 1000
            for number in range(count):
                one.publisher.send_many([[b"Mt", b"%8d" % number + bytes(1000)]])
            for number in range(count):
                assert (await receive_one(stalled, waiting))[1][:8] == b"%8d" % number
            assert not one.publisher.discarded[SLOW_PEER]


async def test_batches_are_dropped_far_beyond_the_limit_if_nobody_knows_who_is_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publisher, "unsent_bytes", lambda descriptor: 0)
    with trio.fail_after(DEADLINE_S):
        async with open_mesh(CONFIG, 0) as one, open_mesh(STALLED, 1) as stalled:
            await connect(stalled, one)
            while one.publisher.send_many([BATCH]):
                assert one.publisher.queued_bytes <= 2 * LIMIT + 2 * len(BATCH[1])
                await trio.lowlevel.checkpoint()
            assert one.publisher.queued_bytes > 2 * LIMIT
            assert one.publisher.send_many([BATCH, [b"H"], BATCH]) == 1
            assert not one.publisher.discarded[SLOW_PEER]
            while one.publisher.queued_bytes > LIMIT:
                await stalled.subscriber.receive()
            assert one.publisher.send_many([BATCH]) == 1
