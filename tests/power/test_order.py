"""Real processes sync before they promise: seen from outside, in their system calls."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.harness import Dafka, Ended, Running
from tests.power import order, system_calls

pytestmark = [
    pytest.mark.skipif(bool(system_calls.obstacle()), reason=system_calls.obstacle()),
    pytest.mark.timeout(400),
]

LINES = [order.CONTENT % number + b"x" * (number * 37 % 200) + b"\n" for number in range(60)]


class Traced(Dafka):
    """Runs the command and traces it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.data = folder / "data"
        self.data.mkdir()

    def start_traced(self, *arguments: str, stdin: int = subprocess.DEVNULL, **settings: str) -> Running:
        """Start `dafka` with these arguments and settings, and trace it."""
        command = (*system_calls.command(self.folder / "calls"), sys.executable, "-m", "dafka")
        environment = {"PYTHONPATH": str(Path(__file__).parents[2]), **settings}
        return self.start(*arguments, *self.options, stdin=stdin, command=command, environment=environment)

    def calls(self) -> list[system_calls.Call]:
        with (self.folder / "calls").open() as lines:
            return list(system_calls.read(lines))


@pytest.fixture
def traced(tmp_path: Path) -> Iterator[Traced]:
    command = Traced(tmp_path)
    try:
        command.start_tower()
        yield command
    finally:
        command.close()


def produce(traced: Traced, running: Running) -> Ended:
    """Write the records to the standard input of a producer, a few at a time, and wait for its end."""
    pipe = running.process.stdin
    assert pipe is not None
    for start in range(0, len(LINES), 10):
        pipe.write(b"".join(LINES[start : start + 10]))
        pipe.flush()
        time.sleep(0.05)  # so that there are several batches; any number of them is right
    pipe.close()
    return running.wait()


def end(traced: Traced, running: Running) -> None:
    """End a traced process, not the tracer."""
    (number,) = [each for each, line in traced.processes().items() if " dafka store " in line and "strace" not in line]
    os.kill(number, signal.SIGTERM)
    assert running.wait().status == 0, running.errors


def trace_store(traced: Traced, storage: str) -> list[str]:
    store = traced.start_traced("store", "-v", "--storage", storage.format(folder=traced.data))
    store.wait_errors("Opened")
    assert produce(traced, traced.start_node("produce", "orders", stdin=subprocess.PIPE)).status == 0
    end(traced, store)
    assert order.count_calls(traced.calls(), str(traced.data))["acks"] > 0
    return order.acknowledged_too_early(traced.calls(), str(traced.data))


def trace_producer(traced: Traced, storage: str) -> list[str]:
    traced.start_node("store", "-v", "--storage", "memory:").wait_errors("Opened")
    producer = traced.start_traced(
        *("produce", "orders", "-v"), stdin=subprocess.PIPE, DAFKA_PRODUCER_SPOOL=storage.format(folder=traced.data)
    )
    producer.wait_errors("Found the cluster")  # from then on records are sent when they are published
    assert produce(traced, producer).status == 0, producer.errors
    assert order.count_calls(traced.calls(), str(traced.data))["records"] >= len(LINES)
    return order.published_too_early(traced.calls(), str(traced.data))


def trace_consumer(traced: Traced) -> list[str]:
    traced.start_node("store", "-v", "--storage", "memory:").wait_errors("Opened")
    consumer = traced.start_traced(
        *("consume", "orders", "--from-beginning", "--count", str(len(LINES))),
        DAFKA_CONSUMER_NAME="reader",
        DAFKA_CONSUMER_POSITIONS=f"filelog:{traced.data}/positions",
    )
    assert produce(traced, traced.start_node("produce", "orders", stdin=subprocess.PIPE)).status == 0
    assert consumer.wait() == Ended(0, b"".join(LINES), consumer.errors)
    assert order.count_calls(traced.calls(), str(traced.data))["positions"] > 0
    return order.saved_too_early(traced.calls(), str(traced.data))


def test_no_ack_leaves_before_the_sync_of_what_it_acknowledges(traced: Traced) -> None:
    assert trace_store(traced, "sqlite:{folder}/s.db") == []


def test_no_record_leaves_before_the_sync_of_the_spool(traced: Traced) -> None:
    assert trace_producer(traced, "filelog:{folder}/log?segment_bytes=2000") == []


def test_no_position_is_saved_before_the_output_is_written(traced: Traced) -> None:
    assert trace_consumer(traced) == []
