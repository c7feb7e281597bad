"""Brokers that lead logs and follow them, on a clock that jumps."""

from __future__ import annotations

import pytest

from tests.broker.replication.virtual_cluster import open_virtual_cluster, wait_for

pytestmark = pytest.mark.usefixtures("autojump_clock")


async def test_a_log_goes_on_when_its_leader_stops() -> None:
    async with open_virtual_cluster() as cluster:
        await cluster.start("A", "B", "C")
        await cluster.create("orders", "ABC")
        assert cluster.leader() == "A"
        assert await cluster.append("A", b"a", b"b") == 0
        await cluster.stop("A")
        leader = await cluster.wait_leader("BC")
        assert await cluster.append(leader, b"c") == 2
        await cluster.start("A")
        await wait_for(lambda: cluster.replicated("A").replica.high_watermark == 3)
        assert await cluster.read(leader) == [b"a", b"b", b"c"]
