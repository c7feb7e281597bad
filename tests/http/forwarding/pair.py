"""Two brokers, of which one forwards to the other. They are in clusters of their own, so that tests say who leads."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from dafka import Config
from dafka.broker.core.log.log import Log
from dafka.broker.core.metadata.leader_and_isr import LeaderAndIsr
from tests.http.running import RunningWeb, open_web

TOPIC = "orders"


class Leaderships:
    """Says which of two brokers leads each log of a topic that both have."""

    def __init__(self, *webs: RunningWeb) -> None:
        self.webs = webs
        self._moved = trio.Event()
        for web in webs:
            broker: Any = web.broker.node
            broker.replicator.led_logs.wait_leadership = self._wait
            for other_number, other in enumerate(webs):
                if other is not web:
                    own = other.broker.node.brokers.own
                    address = own.address
                    broker.brokers.record_registration(attrs.evolve(own, number=other_number))
                    broker.brokers.record_heartbeat(address, float("inf"))
            broker.brokers.check_alive(trio.current_time())

    async def _wait(self, _log: Log) -> None:
        await self._moved.wait()

    def lead(self, number: int, leader: RunningWeb | None, *, epoch: int = 1) -> None:
        """Let a broker lead a log. Nobody leads it if there is none."""
        address = "" if leader is None else leader.broker.node.address
        for web in self.webs:
            leadership = LeaderAndIsr(address, epoch, is_led=web is leader)
            log_of(web, number).leadership = leadership
            web.broker.node.watchers.notify(log_of(web, number))
        self._moved.set()
        self._moved = trio.Event()


def log_of(web: RunningWeb, number: int = 0) -> Log:
    return web.broker.node.log_table.logs(TOPIC)[number]


@attrs.frozen
class Pair:
    """Clients connect to the first broker. The second one leads all logs of the topic at first."""

    first: RunningWeb
    second: RunningWeb
    leaderships: Leaderships

    def lead(self, number: int, leader: RunningWeb | None) -> None:
        self.leaderships.lead(number, leader)


@asynccontextmanager
async def open_pair(
    log_count: int = 1, config: Config | None = None, *, stay_alive: bool = True
) -> AsyncIterator[Pair]:
    """Run two brokers. They send each other no heartbeats, so that they stay alive only with a long timeout."""
    config = config or Config()
    if stay_alive:
        config = config.with_broker(leader_timeout_ms=3_600_000)
    async with open_web(config=config) as first, open_web(config=config) as second:
        for web in (first, second):
            await web.broker.node.admin.create_topic(TOPIC, log_count)
        pair = Pair(first, second, Leaderships(first, second))
        for number in range(log_count):
            pair.lead(number, second)
        yield pair
