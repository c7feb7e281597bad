"""Records of nodes, and answers that are waited for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import trio

from dafka import open_producer
from tests.http.running import DEADLINE_S, Answer, RunningWeb


async def wait_answer(ask: Callable[[], Awaitable[Answer]], accept: Callable[[Any], bool]) -> Any:
    """Ask until an answer is accepted."""
    with trio.fail_after(DEADLINE_S):
        while True:
            answer = await ask()
            assert answer.status == 200, answer.body
            if accept(answer.document):
                return answer.document
            await trio.sleep(0.1)


async def publish(web: RunningWeb, topic: str, count: int) -> None:
    """Publish records as a node."""
    async with open_producer(topic, web.config) as producer:
        for number in range(count):
            await producer.send(f"record {number}".encode())
        with trio.fail_after(DEADLINE_S):
            await producer.wait_stored()
