"""Which batches of a divergent epoch a log gets."""

from __future__ import annotations

import pytest

from dafka.broker.core.log.entries import BatchEntry, RunEntry
from tests.broker.core.entries import batch_entry, run_entry
from tests.http.brokers import open_broker_service


@pytest.mark.parametrize("availability", ["majority", "branch"])
async def test_batches_of_idempotent_producers_are_left_out_unless_both_sides_acknowledge(availability: str) -> None:
    async with open_broker_service() as broker:
        await broker.node.create_topic("orders", 1, {"availability": availability}).wait()
        log = broker.node.find_log("orders", 0)
        assert log is not None
        first, second = (batch_entry(each, 5, 7, 0, each, 0, 0) for each in (0, 5))
        run = run_entry(0, "another", 0, 10)
        admitted = broker.node.replicator.led_logs.admitted
        once = [run, first, second] if availability == "branch" else []
        assert _without_empty(admitted(log, [run, first, second])) == once
        assert _without_empty(admitted(log, [run, first, second])) == []


def _without_empty(entries: list[RunEntry | BatchEntry]) -> list[RunEntry | BatchEntry]:
    return [each for each in entries if each.record_count]
