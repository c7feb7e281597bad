"""A broker that appends numbers until it is killed, and prints the offset of each record that is durable."""

from __future__ import annotations

import sys

import trio

from dafka.batches import check_crc, encode_batch
from tests.broker.nodes.test_broker import open_broker


async def main() -> None:
    async with open_broker(sys.argv[1]) as (_, broker):
        if broker.find_topic("orders") is None:
            await broker.admin.create_topic("orders")
        log = broker.log_table.find_log("orders", 0)
        assert log is not None
        while True:
            data = encode_batch(0, [b"%d" % log.high_watermark], timestamps=1000)
            print(await broker.writer.append(log, [(check_crc(data), data)]).wait_offset(), flush=True)


if __name__ == "__main__":
    trio.run(main)
