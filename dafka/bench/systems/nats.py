"""Two brokers to compare with: NATS JetStream with file storage, Redis Streams with a log synchronised every second."""

from __future__ import annotations

import asyncio
import time
from importlib import import_module
from typing import Any

from dafka.bench.client import CHUNK_RECORDS, TICK_S, TOPIC, Control, Pace, ReceivedRecords, Task
from dafka.bench.processes import Processes
from dafka.bench.systems.base import Broker

NATS_CONFIGURATION = """\
host: 127.0.0.1
port: {port}
max_payload: 8MB
jetstream {{ store_dir: "{folder}/jetstream" }}
"""

OUTSTANDING_MAX = 4000
"""nats-py's own default."""


def produce(task: Task, control: Control) -> None:
    """Sends, and waits until the server has acknowledged all."""
    asyncio.run(_produce(task, control))


def consume(task: Task, control: Control) -> None:
    """Receives."""
    asyncio.run(_consume(task, control))


async def _open(task: Task) -> tuple[Any, Any]:
    """A connection, and JetStream with the stream in it."""
    connection = await import_module("nats").connect(task.settings["url"])
    stream = connection.jetstream(publish_async_max_pending=OUTSTANDING_MAX)
    await stream.add_stream(name=TOPIC, subjects=[TOPIC], storage="file")
    return connection, stream


async def _produce(task: Task, control: Control) -> None:
    chunks = task.chunks(CHUNK_RECORDS)
    if task.opens_on_go:
        await asyncio.to_thread(control.wait_go)
    first = time.perf_counter_ns()
    connection, stream = await _open(task)
    if not task.opens_on_go:
        await asyncio.to_thread(control.wait_go)
        first = time.perf_counter_ns()
    if task.rate:
        pace = Pace(task)
        while not pace.is_over:
            for content in pace.due():
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
        raise ValueError(f"{task.records} records were sent, and {stored} are stored")
    control.done(first=first, last=last)
    await connection.close()


async def _consume(task: Task, control: Control) -> None:
    if task.opens_on_go:
        await asyncio.to_thread(control.wait_go)
    received = ReceivedRecords(task, time.perf_counter_ns())
    connection, stream = await _open(task)
    over = asyncio.get_running_loop().create_future()

    async def take(message: Any) -> None:
        try:
            received.take([message.data])
        except ValueError as error:
            over.set_exception(error)
        if received.is_complete and not over.done():
            over.set_result(None)

    await stream.subscribe(
        TOPIC,
        cb=take,
        ordered_consumer=True,
        deliver_policy=import_module("nats.js.api").DeliverPolicy.ALL,
        pending_msgs_limit=2 * task.records,
        pending_bytes_limit=2**31,
    )
    if not task.opens_on_go:
        await asyncio.to_thread(control.wait_go)
    await over
    received.report(control)
    await connection.close()


def _command(processes: Processes, port: int) -> list[str]:
    path = processes.folder / "nats.conf"
    path.write_text(NATS_CONFIGURATION.format(port=port, folder=processes.folder))
    return ["nats-server", "-c", str(path), "-l", str(processes.folder / "nats.log")]


NATS = Broker("NATS JetStream", "nats-server", "nats-py", "nats", _command)
"""NATS JetStream with file storage."""
