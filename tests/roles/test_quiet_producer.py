"""An idle producer is quiet among nodes of this project only (erratum 33)."""

from __future__ import annotations

import trio
import zmq

from dafka import Config
from dafka.testing import open_cluster
from dafka.transport import Socket, open_context
from dafka.wire import Command
from tests.roles.helpers import AN_HOUR_MS, DEADLINE_S, contents, receive_partition
from tests.waiting import wait_until

HEADS = 15
"""With growing intervals, the last of these HEADs would be sent after minutes."""


async def test_heads_are_regular_for_a_peer_of_another_implementation() -> None:
    config = Config().with_producer(head_interval_ms=20, head_interval_max_ms=AN_HOUR_MS)
    async with (
        open_cluster(config) as cluster,
        cluster.consumer(["hello"]) as consumer,
        cluster.producer("hello") as producer,
        open_context(0) as context,
    ):
        await producer.send_many(contents(0, 3))
        await receive_partition(consumer, 0, 3)
        await producer.wait_stored()
        peer = Socket(context.socket(zmq.SocketType.SUB))
        try:
            peer.subscribe(b"Hhello")
            peer.connect(f"tcp://127.0.0.1:{producer.endpoint.rpartition(':')[2]}")
            heads = 0
            with trio.fail_after(DEADLINE_S):
                while heads < HEADS:
                    heads += sum(frames[0][:1] == Command.HEAD.value for frames in await peer.receive_many())
            assert producer._sockets.need_regular_heads()
        finally:
            peer.close(0)
        await wait_until(lambda: not producer._sockets.need_regular_heads())
