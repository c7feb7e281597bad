"""Redis Streams through redis-py: pipelines of XADD, and XREAD of many at a time."""

from __future__ import annotations

import time
from importlib import import_module
from typing import Any

from dafka.bench.clients.control import TICK_S, Arrivals, Control, Pace
from dafka.bench.task import TOPIC, Task

AT_ONCE = 1000
"""Records a pipeline, and records asked for at once."""
BLOCK_MS = 5000


def _open(task: Task) -> Any:
    return import_module("redis").Redis(port=int(task.settings["port"]))


def produce(task: Task, control: Control) -> None:
    """Sends, and waits until the server has acknowledged all."""
    chunks = task.chunks(AT_ONCE)
    if task.is_late:
        control.wait_go()
    first = time.perf_counter_ns()
    redis = _open(task)
    if not task.is_late:
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
    if task.is_late:
        control.wait_go()
    arrivals = Arrivals(task, time.perf_counter_ns())
    redis = _open(task)
    if not task.is_late:
        redis.ping()
        control.wait_go()
    after: bytes | str = "0-0"
    while not arrivals.is_complete:
        for _, entries in redis.xread({TOPIC: after}, count=AT_ONCE, block=BLOCK_MS):
            after = entries[-1][0]
            arrivals.take([fields[b"c"] for _, fields in entries])
    arrivals.report(control)
