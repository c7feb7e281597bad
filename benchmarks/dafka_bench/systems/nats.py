"""NATS JetStream with file storage, through nats-py: many outstanding acks, and an ordered push consumer."""

from __future__ import annotations

import asyncio
import time
from importlib import import_module
from typing import Any

from dafka_bench.client import CHUNK_RECORDS, TICK_S, TOPIC, Coordinator, Pace, ReceivedRecords, Task
from dafka_bench.processes import Processes
from dafka_bench.systems.base import Broker

NATS_CONFIGURATION = """\
host: 127.0.0.1
port: {port}
max_payload: 8MB
jetstream {{ store_dir: "{folder}/jetstream" }}
"""

OUTSTANDING_MAX = 4000
"""The maximum number of outstanding acknowledgements: the default of nats-py."""


def produce(task: Task, coordinator: Coordinator) -> None:
    """Send records, and wait until the server has acknowledged all of them."""
    asyncio.run(_produce(task, coordinator))


def consume(task: Task, coordinator: Coordinator) -> None:
    """Receive records."""
    asyncio.run(_consume(task, coordinator))


async def _open(task: Task) -> tuple[Any, Any]:
    """Connect, create the stream, and return the connection and JetStream."""
    connection = await import_module("nats").connect(task.settings["url"])
    stream = connection.jetstream(publish_async_max_pending=OUTSTANDING_MAX)
    await stream.add_stream(name=TOPIC, subjects=[TOPIC], storage="file")
    return connection, stream


async def _produce(task: Task, coordinator: Coordinator) -> None:
    chunks = task.make_chunks(CHUNK_RECORDS)
    if task.opens_on_go:
        await asyncio.to_thread(coordinator.wait_go)
    first = time.perf_counter_ns()
    connection, stream = await _open(task)
    if not task.opens_on_go:
        await asyncio.to_thread(coordinator.wait_go)
        first = time.perf_counter_ns()
    if task.rate:
        pace = Pace(task)
        while not pace.is_over:
            for content in pace.take_due():
                await stream.publish_async(TOPIC, content)
            await asyncio.sleep(TICK_S)
    else:
        for contents in chunks:
            for content in contents:
                await stream.publish_async(TOPIC, content)
    await stream.publish_async_completed()
    last = time.perf_counter_ns()
    stored = (await stream.stream_info(TOPIC)).state.messages
    if stored < task.records:
        raise ValueError(f"expected {task.records} stored records, not {stored}")
    coordinator.done(first=first, last=last)
    await connection.close()


async def _consume(task: Task, coordinator: Coordinator) -> None:
    if task.opens_on_go:
        await asyncio.to_thread(coordinator.wait_go)
    received = ReceivedRecords(task, time.perf_counter_ns())
    connection, stream = await _open(task)
    over = asyncio.get_running_loop().create_future()

    async def handle(message: Any) -> None:
        try:
            received.add_contents([message.data])
        except ValueError as error:
            over.set_exception(error)
        if received.is_complete and not over.done():
            over.set_result(None)

    await stream.subscribe(
        TOPIC,
        cb=handle,
        ordered_consumer=True,
        deliver_policy=import_module("nats.js.api").DeliverPolicy.ALL,
        pending_msgs_limit=2 * task.records,
        pending_bytes_limit=2**31,
    )
    if not task.opens_on_go:
        await asyncio.to_thread(coordinator.wait_go)
    await over
    received.report(coordinator)
    await connection.close()


def _server_command(processes: Processes, port: int) -> list[str]:
    path = processes.folder / "nats.conf"
    path.write_text(NATS_CONFIGURATION.format(port=port, folder=processes.folder))
    return ["nats-server", "-c", str(path), "-l", str(processes.folder / "nats.log")]


NATS = Broker("NATS JetStream", "nats-server", "nats-py", "nats", _server_command)
"""NATS JetStream with file storage."""
