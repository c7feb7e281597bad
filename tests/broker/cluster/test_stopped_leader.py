"""A leader whose process was stopped answers nothing that has become untrue meanwhile."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trio

from dafka.batches import encode_batch
from dafka.broker.core.error_codes import ErrorCode
from dafka.kafka.protocol.constants import ApiKey
from tests.broker.cluster.brokers import BrokerNode, find_leaders, open_cluster
from tests.kafka.apis.door import Client, of_logs

LOG = ("orders", 0)
ASKED_AFTER = 300
"""Questions that the broker gets after it has continued."""

QUESTIONS: tuple[tuple[ApiKey, int, dict[str, Any]], ...] = (
    (ApiKey.LIST_OFFSETS, 4, of_logs(ApiKey.LIST_OFFSETS, {LOG: {"timestamp": -1, "current_leader_epoch": -1}})),
    (ApiKey.FETCH, 4, of_logs(ApiKey.FETCH, {LOG: {"fetch_offset": 1}}, max_bytes=10**6)),
    (ApiKey.METADATA, 4, {"topics": [{"name": "later"}], "allow_auto_topic_creation": False}),
)


def find_stale(answers: dict[ApiKey, Any]) -> list[Any]:
    """Return what answers say that was true before the broker was stopped, and is no longer."""
    stale = []
    (offsets,) = answers[ApiKey.LIST_OFFSETS]["topics"][0]["partitions"]
    if not offsets["error_code"] and offsets["offset"] != 2:
        stale.append(offsets)
    (fetched,) = answers[ApiKey.FETCH]["responses"][0]["partitions"]
    if not fetched["error_code"] and not fetched["records"]:
        stale.append(fetched)
    (topic,) = answers[ApiKey.METADATA]["topics"]
    if topic["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        stale.append(topic)
    return stale


async def wait_leader(brokers: Sequence[BrokerNode]) -> BrokerNode:
    """Wait until one of `brokers` says itself that it leads the log, and return it."""
    while True:
        for each in brokers:
            leaders = await trio.to_thread.run_sync(find_leaders, each.servers, "orders")
            if leaders.get(0) == each.number:
                return each
        await trio.sleep(0.1)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("stopped_s", [3, pytest.param(60, marks=pytest.mark.long)])
async def test_a_leader_that_was_stopped_gives_no_stale_answer(tmp_path: Path, stopped_s: float) -> None:
    async with open_cluster(tmp_path) as cluster:
        await cluster.create_topic("orders", 1)
        by_number = {each.number: each for each in cluster.brokers.values()}
        former = find_leaders(cluster.servers, "orders")[0]
        stopped, others = by_number[former], [each for each in by_number.values() if each.number != former]
        batch = encode_batch(0, [b"x"], timestamps=[1])
        with Client(stopped.servers) as client:
            assert client.append("orders", batch) == 0
            clients = [Client(stopped.servers) for _ in QUESTIONS]
            cluster.stop(stopped)
            try:
                begun = trio.current_time()
                for each, (api, version, values) in zip(clients, QUESTIONS, strict=True):
                    each.send(api, version, **values)  # it reads them as soon as it goes on
                leader = await wait_leader(others)
                with Client(leader.servers) as other:
                    assert other.append("orders", batch) == 1
                    other.create_topics("later", logs=1)
                await trio.sleep_until(begun + stopped_s)
            finally:
                cluster.go_on(stopped)
            stale = []
            for _ in range(ASKED_AFTER):
                answers = {}
                for each, (api, version, values) in zip(clients, QUESTIONS, strict=True):
                    answers[api] = each.receive_answer(api, version)
                    each.send(api, version, **values)
                stale += find_stale(answers)
            for each in clients:
                each.socket.close()
        assert not stale
