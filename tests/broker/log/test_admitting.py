"""Which batches of another branch a log gets."""

from __future__ import annotations

import pytest

from dafka.broker.core.log.entries import BatchEntry
from tests.http.brokers import open_broker_service


@pytest.mark.parametrize("availability", ["majority", "branch"])
async def test_batches_of_idempotent_producers_are_left_out_unless_both_sides_acknowledge(availability: str) -> None:
    async with open_broker_service() as broker:
        await broker.node.create_topic("orders", 1, {"availability": availability}).wait()
        log = broker.node.find_log("orders", 0)
        assert log is not None
        admit = broker.node.replicator.led_logs.admit_batch
        first, second = (BatchEntry(each, 5, 7, 0, each, 0, 0) for each in (0, 5))
        expected = [True, True, False] if availability == "branch" else [False] * 3
        assert [admit(log, each) for each in (first, second, first)] == expected
