"""Each producer id is given once, by whichever shard, and only after a record has reserved it."""

from __future__ import annotations

import json

import pytest

from dafka.broker.core.coordination.state_records import StateRecord
from dafka.broker.core.transactions.producer_ids import BLOCK, ProducerIds


@pytest.mark.parametrize("count", [1, 2, 16])
def test_ids_are_reserved_before_they_are_used_and_never_given_twice(count: int) -> None:
    given: set[int] = set()
    for shard in range(count):
        records: list[StateRecord] = []
        reserved = 0
        for taken in (1, BLOCK - 1, BLOCK, BLOCK + 1, 3):  # and then the broker restarts
            ids = ProducerIds(shard, count)
            for each in records:
                ids.restore(each)
            for number in range(taken):
                found, written = ids.take()
                assert bool(written) == (number % BLOCK == 0)
                for each in written:
                    reserved = json.loads(each.value or b"")["next_producer_id"]
                records += written
                assert reserved - BLOCK <= found < reserved
                assert found // BLOCK % count == shard
                assert found not in given
                given.add(found)


@pytest.mark.parametrize("reserved", [0, 1, BLOCK, 33 * BLOCK, 33 * BLOCK + 1])
def test_shards_continue_after_what_any_of_them_has_reserved(reserved: int) -> None:
    for shard in range(16):
        record = ProducerIds().take()[1][0]
        ids = ProducerIds(shard, 16)
        ids.restore(record._replace(value=json.dumps({"version": 1, "next_producer_id": reserved}).encode()))
        found, _ = ids.take()
        assert reserved <= found < reserved + 16 * BLOCK
        assert (found // BLOCK % 16, found % BLOCK) == (shard, 0)
