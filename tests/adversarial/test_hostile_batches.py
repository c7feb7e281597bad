"""Live nodes under hostile record batches: they stay up, their memory is bounded, and honest records arrive."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import pytest
import trio
from crc32c import crc32c

from dafka import Config
from dafka.batches import Compression
from dafka.batches.compression import compress
from dafka.testing.cluster import open_cluster
from dafka.wire import Dialect, encode
from dafka.wire.messages import RecordBatchMessage
from tests.adversarial.test_roles import TOPIC, check_honest
from tests.batches.hostile import hostile_batches
from tests.batches.samples import SHAPES
from tests.batches.test_compression import BOMBS, resident_bytes
from tests.roles.helpers import contents, open_unverified_peer, receive_partition, wait_subscribed

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

DEADLINE_S = 200
"""Until both nodes have decompressed the bombs, on a busy machine."""

BATCHES = 2000
BOMB_ROUNDS = 3
STEP = 200
DISCARDED_MIN = 100
"""More than all bombs. Then the attacker is on probation, and few of its messages are handled."""

MEMORY_BYTES_MAX = 512 * 2**20
"""What a node may take more than before: twice the largest batch (64 MiB), decoded, in each of the two nodes."""


def hostile_messages() -> Iterator[list[bytes]]:
    """Yield batches of an unknown producer, wrong in every way, and bombs of each compression."""
    batches: list[bytes] = []
    (sample, *_) = [records.encode(0) for records in SHAPES.values()]
    for kind, make in BOMBS.values():
        head = sample[:21] + kind.value.to_bytes(2, "big") + sample[23:61]
        bomb = head + make()
        batches += [bomb[:8] + (len(bomb) - 12).to_bytes(4, "big") + bomb[12:]] * BOMB_ROUNDS
    batches += [compress(kind, sample) for kind in Compression if kind is not Compression.NONE]
    batches += islice(hostile_batches(7, BATCHES), BATCHES)
    for number, each in enumerate(batches):
        batch = each[:17] + crc32c(each[21:]).to_bytes(4, "big") + each[21:]
        yield encode(RecordBatchMessage(f"{number % 50:032X}", TOPIC, batch), Dialect.RFC46)


@pytest.mark.parametrize("storage", ["memory:", "filelog:{folder}"])
async def test_a_store_and_a_consumer_outlive_hostile_batches(
    storage: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("log")
    config = Config().with_store(storage=storage.format(folder=folder))
    async with (
        open_cluster(config) as cluster,
        cluster.producer(TOPIC) as producer,
        cluster.consumer([TOPIC]) as consumer,
        open_unverified_peer(cluster.config) as attacker,
    ):
        assert cluster.store is not None
        await producer.send_many(contents(0, 100))
        await receive_partition(consumer, 0, 100)
        await wait_subscribed(attacker, b"B" + TOPIC.encode())
        before = resident_bytes("VmRSS")
        messages = list(hostile_messages())
        for start in range(0, len(messages), STEP):
            attacker.send_many(messages[start : start + STEP])
            await trio.sleep(0.001)
            assert resident_bytes("VmRSS") - before < MEMORY_BYTES_MAX
        with trio.fail_after(DEADLINE_S):
            for node in (cluster.store, consumer):
                while sum(node.statistics().discarded.values()) <= DISCARDED_MIN:  # noqa: ASYNC110
                    await trio.sleep(0.1)
        await check_honest(cluster)
        assert resident_bytes("VmRSS") - before < MEMORY_BYTES_MAX
