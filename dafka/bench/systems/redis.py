"""Redis Streams through redis-py: pipelines of XADD, and XREAD of many at a time."""

from __future__ import annotations

import time
from importlib import import_module
from typing import Any

from dafka.bench.client import TICK_S, TOPIC, Control, Pace, ReceivedRecords, Task
from dafka.bench.processes import Processes
from dafka.bench.systems.base import Broker

AT_ONCE = 1000
"""Records a pipeline, and records asked for at once."""
BLOCK_MS = 5000


def _open(task: Task) -> Any:
    return import_module("redis").Redis(port=int(task.settings["port"]))


def produce(task: Task, control: Control) -> None:
    """Sends, and waits until the server has acknowledged all."""
    chunks = task.chunks(AT_ONCE)
    if task.opens_on_go:
        control.wait_go()
    first = time.perf_counter_ns()
    redis = _open(task)
    if not task.opens_on_go:
        redis.ping()
        control.wait_go()
        first = time.perf_counter_ns()
    if task.rate:
        pace = Pace(task)
        while not pace.is_over:
            _add(redis, pace.due())
            time.sleep(TICK_S)
    else:
        for contents in chunks:
            _add(redis, contents)
    control.done(first=first, last=time.perf_counter_ns())


def _add(redis: Any, contents: list[bytes]) -> None:
    if contents:
        with redis.pipeline(transaction=False) as pipeline:
            for content in contents:
                pipeline.xadd(TOPIC, {b"c": content})
            pipeline.execute()


def consume(task: Task, control: Control) -> None:
    """Receives; the stream is empty where a live consumer begins, so the beginning is right for it, too."""
    if task.opens_on_go:
        control.wait_go()
    received = ReceivedRecords(task, time.perf_counter_ns())
    redis = _open(task)
    if not task.opens_on_go:
        redis.ping()
        control.wait_go()
    after: bytes | str = "0-0"
    while not received.is_complete:
        for _, entries in redis.xread({TOPIC: after}, count=AT_ONCE, block=BLOCK_MS):
            after = entries[-1][0]
            received.take([fields[b"c"] for _, fields in entries])
    received.report(control)


def _command(processes: Processes, port: int) -> list[str]:
    log = ["--appendonly", "yes", "--appendfsync", "everysec", "--save", ""]
    place = ["--bind", "127.0.0.1", "--port", str(port), "--dir", str(processes.folder)]
    return ["redis-server", *place, *log, "--logfile", str(processes.folder / "redis.log")]


REDIS = Broker("Redis Streams", "redis-server", "redis", "redis", _command)
"""Redis Streams with an append-only file that is synchronised every second."""
