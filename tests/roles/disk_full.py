"""A store on a disk that fills up, in its own process. Prints a line per step; exits with 0 if all checks pass.

    unshare --mount [--map-root-user] python -m tests.roles.disk_full SCHEME FOLDER

Mounts a small tmpfs on the folder, in the process's mount namespace, which ends with the process.
"""

from __future__ import annotations

import sys
from pathlib import Path

import trio

from dafka import Config, Producer
from dafka.protocol import StorageFailed
from dafka.protocol.store_events import StorageRecovered
from dafka.storage import open_storage
from dafka.storage.tools.verify import verify_storage
from dafka.testing import open_cluster
from tests.roles.helpers import contents, open_store, wait_event
from tests.waiting import wait_until

SIZE_BYTES = 6 * 2**20

RECORD_BYTES = 1000


def records(first: int, end: int) -> list[bytes]:
    return [content.ljust(RECORD_BYTES, b".") for content in contents(first, end)]


async def produce(producer: Producer) -> None:
    while True:
        first = producer.statistics().next_sequence
        await producer.send_many(records(first, first + 100))
        await producer.wait_stored()


async def main(url: str, folder: Path) -> None:
    await trio.run_process(["mount", "-t", "tmpfs", "-o", f"size={SIZE_BYTES}", "none", str(folder)])
    filler = folder / "filler"
    filler.write_bytes(b"." * (SIZE_BYTES // 2))
    config = Config().with_store(retry_ms=20)
    async with open_cluster(config, storage=None) as cluster, cluster.producer("hello") as producer:
        async with open_store(cluster.config, url) as store:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(produce, producer)
                failed = await wait_event(store.events, StorageFailed)
                nursery.cancel_scope.cancel()
            sent = producer.statistics().next_sequence
            print(f"full after {sent} records: {failed}", flush=True)

            def acknowledged() -> int:
                return sent - producer.statistics().unacknowledged

            await wait_until(lambda: acknowledged() == store.statistics().records_stored)
            assert 0 < acknowledged() < sent
            async with open_storage(url, read_only=True) as reader:
                assert (await reader.partitions())[producer.partition].end_sequence == acknowledged()
            filler.unlink()
            with trio.fail_after(20):
                await wait_event(store.events, StorageRecovered)
                await producer.wait_stored()
            print(f"room again: {store.statistics().records_stored} records stored", flush=True)
            assert store.statistics().records_stored == sent
        async with open_storage(url) as storage:
            assert (await verify_storage(storage)).damages == ()
            assert list(storage.repairs) == []
            batch = await storage.read(producer.partition, 0, sent)
            assert batch is not None
            assert list(batch.values) == records(0, len(batch))


if __name__ == "__main__":
    trio.run(main, f"{sys.argv[1]}:{sys.argv[2]}/store", Path(sys.argv[2]))
