"""Bare ZeroMQ messages of two frames, moved as fast as pyzmq can: what no protocol above it can pass.

The sender publishes to so many receivers as the task says; each tells it when it has all of them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import zmq

from dafka.bench.clients.control import CHUNK_RECORDS, TICK_S, Arrivals, Control, Pace
from dafka.bench.task import TOPIC, Task

FRAME = b"M" + TOPIC.encode()
DRAIN_RECORDS_MAX = 1000


def produce(task: Task, control: Control) -> None:
    """Sends once all receivers are there, and waits until each has all."""
    chunks = task.chunks(CHUNK_RECORDS)
    with zmq.Context() as context, context.socket(zmq.XPUB) as publisher, context.socket(zmq.PULL) as acknowledged:
        for socket in (publisher, acknowledged):
            socket.set_hwm(0)
        publisher.setsockopt(zmq.XPUB_VERBOSE, 1)
        if task.is_late:
            control.wait_go()
        first = time.perf_counter_ns()
        _join(publisher, acknowledged, task, "produce")
        for _ in range(task.consumers):
            publisher.recv()
        if not task.is_late:
            control.wait_go()
            first = time.perf_counter_ns()
        if task.rate:
            pace = Pace(task)
            while not pace.is_over:
                _send(publisher, pace.due())
                time.sleep(TICK_S)
        else:
            for contents in chunks:
                _send(publisher, contents)
        for _ in range(task.consumers):
            acknowledged.recv()
        control.done(first=first, last=time.perf_counter_ns())


def _send(publisher: zmq.Socket[bytes], contents: Sequence[bytes]) -> None:
    send, more = publisher.send, int(zmq.SNDMORE)
    for content in contents:
        send(FRAME, more)
        send(content)


def consume(task: Task, control: Control) -> None:
    """Receives, and tells the sender when all are there."""
    if task.is_late:
        control.wait_go()
    arrivals = Arrivals(task, time.perf_counter_ns())
    with zmq.Context() as context, context.socket(zmq.SUB) as subscriber, context.socket(zmq.PUSH) as acknowledge:
        subscriber.set_hwm(0)
        subscriber.subscribe(b"M")
        _join(subscriber, acknowledge, task, "consume")
        if not task.is_late:
            control.wait_go()
        while not arrivals.is_complete:
            arrivals.take(_drain(subscriber))
        acknowledge.send(b"")
        arrivals.report(control)


def _join(records: zmq.Socket[bytes], acknowledged: zmq.Socket[bytes], task: Task, role: str) -> None:
    for socket, name in ((records, "records"), (acknowledged, "acknowledged")):
        if task.settings["binding"] == role:
            socket.bind(task.settings[name])
        else:
            socket.connect(task.settings[name])


def _drain(subscriber: zmq.Socket[bytes]) -> list[bytes]:
    """The contents that are there, at least one."""
    receive, now = subscriber.recv, int(zmq.NOBLOCK)
    receive()
    contents = [receive()]
    try:
        while len(contents) < DRAIN_RECORDS_MAX:
            receive(now)
            contents.append(receive())
    except zmq.Again:
        pass
    return contents
