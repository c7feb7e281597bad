"""Producers that continue a partition whose address and next sequence the program knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from dafka import Config, open_producer, wire
from dafka.errors import ConfigError, StorageSequenceError, UnacknowledgedError
from dafka.testing import Cluster, open_cluster
from tests.roles.helpers import DEADLINE_S, contents, open_store, receive_partition

ADDRESS = "0123456789ABCDEF" * 2


async def test_a_partition_continues_at_its_next_sequence(dafka_cluster: Cluster) -> None:
    async with open_producer("t", dafka_cluster.config, address=ADDRESS) as producer:
        assert producer.partition.address == ADDRESS
        assert await producer.send_many(contents(0, 500)) == range(500)
    async with open_producer("t", dafka_cluster.config, address=ADDRESS, next_sequence=500) as producer:
        assert await producer.send_many(contents(500, 900)) == range(500, 900)
    assert producer.statistics().unacknowledged == 0
    async with dafka_cluster.consumer(["t"]) as consumer:
        await receive_partition(consumer, 0, 900)


async def test_records_before_count_as_unacknowledged_until_a_store_has_them() -> None:
    async with open_cluster(storage=None) as cluster:
        config = cluster.config.with_producer(close_timeout_ms=200)
        with pytest.raises(UnacknowledgedError) as caught:
            async with open_producer("t", config, address=ADDRESS, next_sequence=5):
                pass
    assert (caught.value.count, caught.value.first_sequence) == (5, 0)


async def test_min_stores_0_waits_for_no_store() -> None:
    async with open_cluster(storage=None) as cluster:
        config = cluster.config.with_producer(min_stores=0)
        with trio.fail_after(DEADLINE_S):
            async with open_producer("t", config, address=ADDRESS, next_sequence=5) as producer:
                assert await producer.send(b"5") == 5


async def test_a_store_that_lacks_earlier_records_gets_them_from_another(tmp_path: Path) -> None:
    async with open_cluster(storage=f"sqlite:{tmp_path / 'one.db'}") as cluster:
        async with open_producer("t", cluster.config, address=ADDRESS) as producer:
            await producer.send_many(contents(0, 300))
        config = cluster.config.with_producer(min_stores=2)
        async with open_store(cluster.config) as late:
            async with open_producer("t", config, address=ADDRESS, next_sequence=300) as producer:
                await producer.send(b"300")
            assert late.statistics().records_stored == 301


async def test_a_next_sequence_that_is_too_low_is_noticed(dafka_cluster: Cluster) -> None:
    async with open_producer("t", dafka_cluster.config, address=ADDRESS) as producer:
        await producer.send_many(contents(0, 300))

    async def publish() -> None:
        async with open_producer("t", dafka_cluster.config, address=ADDRESS, next_sequence=100) as producer:
            await producer.wait_stored()

    with pytest.raises(StorageSequenceError, match="up to sequence 299, but this producer continues at 100: another"):
        await publish()
    assert dafka_cluster.store is not None
    assert dafka_cluster.store.statistics().records_stored == 300


async def test_a_rival_that_is_noticed_after_the_last_ack_is_an_error() -> None:
    """The ACK may be for the rival's record, and not for this producer's."""
    async with open_cluster(storage=None) as cluster:

        async def publish() -> None:
            async with open_producer("t", cluster.config, address=ADDRESS) as producer:
                await producer.wait_settled()
                await producer.send(b"0")
                acks = [wire.Ack(ADDRESS, "t", sequence, "STORE") for sequence in (0, 5)]
                producer._node.receive(acks, trio.current_time())
                assert producer.statistics().unacknowledged == 0

        with pytest.raises(StorageSequenceError, match="another producer publishes the same partition"):
            await publish()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"address": ADDRESS.lower()}, "address: expected 32 upper-case hexadecimal digits, not '0123456789abcdef"),
        ({"address": ""}, "address: expected 32 upper-case hexadecimal digits, not ''"),
        (
            {"address": ADDRESS, "next_sequence": -1},
            "next_sequence: expected a whole number from 0 to 2\\^62 - 1, not -1",
        ),
        ({"address": ADDRESS, "next_sequence": True}, "next_sequence: expected a whole number"),
        ({"next_sequence": 1}, "next_sequence: expected an address with it, that of the partition to continue"),
    ],
)
async def test_invalid_identities_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}"):
        async with open_producer("t", **arguments):
            pass


async def test_a_spool_has_an_identity_of_its_own(tmp_path: Path) -> None:
    config = Config().with_producer(spool=f"sqlite:{tmp_path / 'spool.db'}")
    with pytest.raises(ConfigError, match="address: expected none with a spool, which has its own"):
        async with open_producer("t", config, address=ADDRESS):
            pass
