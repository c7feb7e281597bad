"""Many subscribers of one topic, of which one does not read: nobody else waits for it, and nothing is lost."""

from __future__ import annotations

import json
import re
import tracemalloc
from contextlib import AsyncExitStack

import trio

from tests.http.running import RunningWeb, open_web
from tests.http.websocket.clients import open_client
from tests.http.websocket.raw import TEXT, RawClient, frame, open_raw

SUBSCRIBERS = 100
ROUNDS = 20
ROUND_RECORDS = 100
RECORDS = ROUNDS * ROUND_RECORDS
MEMORY_MAX = 16 * 2**20
DEADLINE_S = 100

_PLACE = re.compile(rb'"offset":(\d+),"next_offset":(\d+)')


class Follower:
    """A subscriber that checks that each message follows the one before."""

    def __init__(self, client: RawClient) -> None:
        self._client = client
        self.next_offset = 0

    async def subscribe(self) -> None:
        message = {"type": "subscribe", "id": 1, "topic": "orders", "from": "earliest", "credit": 10**6}
        await self._client.send(frame(TEXT, json.dumps(message).encode()))

    async def take(self, end: int) -> None:
        """Receive up to an offset."""
        while self.next_offset < end:
            _, payload = await self._client.receive()
            if payload.startswith(b'{"type":"records"'):
                place = _PLACE.search(payload)
                assert place is not None
                assert int(place[1]) == self.next_offset
                self.next_offset = int(place[2])
                assert payload.count(b'"value":') == self.next_offset - int(place[1])


async def publish(web: RunningWeb) -> None:
    async with open_client(web) as publisher:
        for number in range(ROUNDS):
            await publisher.publish("orders", *(f"{number} {'x' * 100}" for _ in range(ROUND_RECORDS)))


async def test_slow_subscriber_holds_up_nobody() -> None:
    with trio.fail_after(DEADLINE_S):
        async with open_web() as web, AsyncExitStack() as stack:
            await web.broker.node.create_topic("orders").wait()
            followers = [Follower(await stack.enter_async_context(open_raw(web))) for _ in range(SUBSCRIBERS)]
            for each in followers:
                await each.subscribe()
            slow, *others = followers
            tracemalloc.start()
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(publish, web)
                    for each in others:
                        nursery.start_soon(each.take, RECORDS)
                assert tracemalloc.get_traced_memory()[1] < MEMORY_MAX
            finally:
                tracemalloc.stop()
            assert slow.next_offset == 0
            await slow.take(RECORDS)
