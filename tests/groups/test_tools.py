"""Listing, describing and resetting groups."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio

from dafka import Config, Producer
from dafka.errors import ConfigError
from dafka.roles import describe_group, list_groups, reset_group
from dafka.testing import Cluster
from tests.roles.helpers import DEADLINE_S
from tests.waiting import wait_until


@pytest.fixture
def dafka_config() -> Config:
    return Config().with_beacon(interval_ms=100).with_consumer(group_lease_ms=1000, offset_reset="earliest")


@pytest.fixture
async def producer(dafka_cluster: Cluster) -> AsyncIterator[Producer]:
    """Open a producer with 10 records, of which a group has handled 4."""
    async with dafka_cluster.producer("orders") as producer:
        await producer.send_many([b"%d" % number for number in range(10)])
        await producer.wait_stored()
        async with dafka_cluster.consumer(["orders"], dafka_cluster.config, group="billing") as consumer:
            with trio.fail_after(DEADLINE_S):
                await consumer.next_batch(4)
                await consumer.save_positions()
        yield producer


async def test_a_group_without_members_keeps_its_positions(dafka_cluster: Cluster, producer: Producer) -> None:
    assert await list_groups(dafka_cluster.config) == ["billing"]
    found = await describe_group("billing", dafka_cluster.config)
    handled = found.positions[producer.partition]
    assert (found.members, found.ends) == ((), {producer.partition: 10})
    assert 0 < handled <= 4
    assert found.lag(producer.partition) == 10 - handled


async def test_an_unknown_group_has_nothing(dafka_cluster: Cluster) -> None:
    found = await describe_group("unknown", dafka_cluster.config)
    assert (found.members, found.positions, found.ends) == ((), {}, {})


async def test_a_group_goes_on_where_it_is_reset_to(dafka_cluster: Cluster, producer: Producer) -> None:
    config = dafka_cluster.config
    await reset_group(await describe_group("billing", config), {producer.partition: 7}, config)
    assert (await describe_group("billing", config)).positions == {producer.partition: 7}
    async with dafka_cluster.consumer(["orders"], config, group="billing") as consumer:
        with trio.fail_after(DEADLINE_S):
            assert (await consumer.next_batch()).first_sequence == 7


async def test_a_group_with_a_member_is_described_and_not_reset(dafka_cluster: Cluster, producer: Producer) -> None:
    config = dafka_cluster.config
    async with dafka_cluster.consumer(["orders"], config, group="billing") as consumer:
        await wait_until(lambda: consumer.positions().keys() == {producer.partition})
        found = await describe_group("billing", config)
        [member] = found.members
        assert (member.topics, member.partitions, member.is_silent) == (("orders",), (producer.partition,), False)
        before = consumer.positions()
        with pytest.raises(ConfigError, match="it has members that are alive"):
            await reset_group(found, {producer.partition: 0}, config)
        assert (await describe_group("billing", config)).positions == before
