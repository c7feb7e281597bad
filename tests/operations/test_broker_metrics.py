"""Metrics of a broker among others."""

from __future__ import annotations

import pytest

pytest.importorskip("prometheus_client")

from dafka.broker.metrics import BrokerMetrics
from dafka.operations.metrics import TopicLabels
from tests.http.api.test_brokers import FAST, create
from tests.http.running import RunningWeb, open_webs
from tests.waiting import wait_until


def read(web: RunningWeb) -> dict[tuple[str, ...], float]:
    metrics = BrokerMetrics(web.broker.node, web.broker.broker.memory).read(TopicLabels(0))
    return {(each.name, *each.labels.values()): each.value for metric in metrics for each in metric.samples}


def led(webs: list[RunningWeb]) -> float:
    return sum(read(web)["dafka_broker_logs_led",] for web in webs)


async def test_logs_and_brokers_are_counted() -> None:
    async with open_webs(2, FAST) as webs:
        before = led(webs)
        await create(webs, "orders", 5)
        await wait_until(lambda: led(webs) >= before + 5)  # and those that get their leaders meanwhile
        for found in map(read, webs):
            assert found["dafka_broker_memory_limit_bytes",] > 0
            assert found["dafka_broker_memory_waiting",] == 0
            assert (found["dafka_broker_brokers", "alive"], found["dafka_broker_brokers", "dead"]) == (2, 0)
            assert found["dafka_broker_replicas",] >= 5
            assert found["dafka_broker_draining",] == 0
            assert found["dafka_broker_has_controller",] == 1
            assert (found["dafka_broker_voters", "heard"], found["dafka_broker_voters", "silent"]) == (1, 0)
        await wait_until(lambda: all(read(web)["dafka_broker_metadata_lag",] == 0 for web in webs))
        assert sum(read(web)["dafka_broker_active_controller",] for web in webs) == 1
        await webs[0].broker.node.admin.set_draining(webs[0].broker.node.address, is_draining=True)
        assert read(webs[0])["dafka_broker_draining",] == 1
