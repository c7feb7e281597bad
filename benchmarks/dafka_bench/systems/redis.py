"""Redis Streams, through redis-py: pipelines of XADD, and XREAD of many entries."""

from __future__ import annotations

import time
from importlib import import_module
from typing import Any

from dafka_bench.client import TICK_S, TOPIC, Coordinator, Pace, ReceivedRecords, Task
from dafka_bench.processes import Processes
from dafka_bench.systems.base import Broker

PIPELINE_RECORDS = 1000
"""The number of records in a pipeline, and in one XREAD."""

BLOCK_MS = 5000
"""How long an XREAD waits for records."""


def _open(task: Task) -> Any:
    return import_module("redis").Redis(port=int(task.settings["port"]))


def produce(task: Task, coordinator: Coordinator) -> None:
    """Send records, and wait until the server has acknowledged all of them."""
    chunks = task.make_chunks(PIPELINE_RECORDS)
    if task.opens_on_go:
        coordinator.wait_go()
    first = time.perf_counter_ns()
    redis = _open(task)
    if not task.opens_on_go:
        redis.ping()
        coordinator.wait_go()
        first = time.perf_counter_ns()
    if task.rate:
        pace = Pace(task)
        while not pace.is_over:
            _add(redis, pace.take_due())
            time.sleep(TICK_S)
    else:
        for contents in chunks:
            _add(redis, contents)
    coordinator.done(first=first, last=time.perf_counter_ns())


def _add(redis: Any, contents: list[bytes]) -> None:
    if contents:
        with redis.pipeline(transaction=False) as pipeline:
            for content in contents:
                pipeline.xadd(TOPIC, {b"c": content})
            pipeline.execute()


def consume(task: Task, coordinator: Coordinator) -> None:
    """Receive records from the beginning; a live consumer starts on an empty stream."""
    if task.opens_on_go:
        coordinator.wait_go()
    received = ReceivedRecords(task, time.perf_counter_ns())
    redis = _open(task)
    if not task.opens_on_go:
        redis.ping()
        coordinator.wait_go()
    after: bytes | str = "0-0"
    while not received.is_complete:
        for _, entries in redis.xread({TOPIC: after}, count=PIPELINE_RECORDS, block=BLOCK_MS):
            after = entries[-1][0]
            received.add_contents([fields[b"c"] for _, fields in entries])
    received.report(coordinator)


def _server_command(processes: Processes, port: int) -> list[str]:
    log = ["--appendonly", "yes", "--appendfsync", "everysec", "--save", ""]
    network = ["--bind", "127.0.0.1", "--port", str(port), "--dir", str(processes.folder)]
    return ["redis-server", *network, *log, "--logfile", str(processes.folder / "redis.log")]


REDIS = Broker("Redis Streams", "redis-server", "redis", "redis", _server_command)
"""Redis Streams with an append-only file that is synchronized every second."""
