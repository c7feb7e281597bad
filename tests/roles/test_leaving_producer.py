"""A producer among nodes of libdafka leaves when their consumers have everything (erratum 17)."""

from __future__ import annotations

import pytest
import trio

from dafka import Config, open_producer
from dafka.protocol.machines import producer as producer_machine
from dafka.testing import open_cluster
from tests.roles.helpers import contents
from tests.roles.libdafka_consumer import LibdafkaConsumer, open_libdafka_consumer
from tests.roles.libdafka_store import open_libdafka_store
from tests.waiting import wait_until

COUNT = 200
PRODUCERS = 3
SECOND_S = 0.3
"""How long the second is in which the scripted consumer asks once for a page."""


async def test_a_libdafka_consumer_that_is_behind_gets_everything_of_producers_that_leave_erratum_17(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producer_machine, "LEAVING_HEAD_S", SECOND_S)
    consumer = LibdafkaConsumer("hello", second_s=SECOND_S, page=50)
    async with (
        open_cluster(Config().with_beacon(interval_ms=100), storage=None) as cluster,
        open_libdafka_store(cluster.config) as store,
        trio.open_nursery() as nursery,
    ):
        has_begun = trio.Event()

        async def publish() -> None:
            async with open_producer("hello", cluster.config) as producer:
                await producer.send_many(contents(0, COUNT))
                await producer.wait_stored()
                await has_begun.wait()

        for _ in range(PRODUCERS):
            nursery.start_soon(publish)
        await wait_until(lambda: [len(each) for each in store.records.values()] == [COUNT] * PRODUCERS)
        async with open_libdafka_consumer(cluster.config, consumer):
            await wait_until(lambda: len(consumer.records) == PRODUCERS)
            has_begun.set()
            await wait_until(lambda: [len(each) for each in consumer.records.values()] == [COUNT] * PRODUCERS)
            assert [*consumer.records.values()] == [contents(0, COUNT)] * PRODUCERS
            nursery.cancel_scope.cancel()
