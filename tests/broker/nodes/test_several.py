"""Several brokers over real sockets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import trio

from dafka import Config
from dafka.broker.core.log.log import Log
from dafka.broker.node import BrokerNode
from dafka.broker.startup import serve_broker
from dafka.roles import open_producer
from dafka.testing import open_cluster
from tests.broker.nodes.test_broker import encode, read_all, values_of
from tests.waiting import wait_until

QUICK: dict[str, Any] = {"heartbeat_ms": 100, "leader_timeout_ms": 2000, "initial_brokers": 3}


async def test_records_of_producers_are_in_the_same_order_whoever_leads(tmp_path: Path) -> None:
    async with open_cluster(Config().with_broker(**QUICK), storage=None) as cluster, trio.open_nursery() as nursery:
        scopes: list[trio.CancelScope] = []

        async def run(number: int, task_status: trio.TaskStatus[BrokerNode]) -> None:
            with trio.CancelScope() as scope:
                scopes.append(scope)
                await serve_broker(
                    cluster.config.with_store(storage=f"filelog:{tmp_path / str(number)}"), task_status=task_status
                )

        brokers: list[BrokerNode] = [await nursery.start(run, number) for number in range(3)]
        await wait_until(lambda: all(len(each.brokers.living()) == 3 for each in brokers))
        stopped: set[BrokerNode] = set()

        async def wait_led(end: int) -> tuple[BrokerNode, Log]:
            """Wait until the log has so many records, and return it with its leader."""

            def find() -> list[tuple[BrokerNode, Log]]:
                logs = [(each, log) for each in brokers if each not in stopped for log in each.log_table.logs("orders")]
                return [(each, log) for each, log in logs if log.leadership.is_led and log.high_watermark == end]

            await wait_until(lambda: len(find()) == 1)
            return find()[0]

        async with open_producer("orders", cluster.config) as producer:
            await producer.send_many([b"%d" % number for number in range(50)])
            # Brokers that do not know of each other yet may both create the topic; one of the two remains.
            leader, log = await wait_led(50)
            await leader.writer.append(log, encode([b"own"])).wait_offset()
            before = values_of(await read_all(leader, log))
            stopped.add(leader)
            scopes[brokers.index(leader)].cancel()
            await producer.send_many([b"later %d" % number for number in range(50)])
            leader, log = await wait_led(101)
        assert values_of(await read_all(leader, log)) == [*before, *(b"later %d" % number for number in range(50))]
        nursery.cancel_scope.cancel()
