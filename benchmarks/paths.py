"""The three paths of a record, each role a process of its own, beside the same number of bare ZeroMQ messages.

    python benchmarks/paths.py [--records 300000] [--rounds 5] [--wire rfc46]

Jobs are interleaved round by round, so that a machine that changes speed changes it for all. Printed are each job's
median rate with its range, and the median of its ratios to the bare messages of the same round.
"""

from __future__ import annotations

import multiprocessing
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import zmq
from rich.console import Console
from rich.table import Table

CONTENT = b"%0100d"
BARE = "bare ZeroMQ, two frames a message"


@click.command()
@click.option("--records", default=300_000, show_default=True)
@click.option("--rounds", default=5, show_default=True)
@click.option("--wire", type=click.Choice(["rfc46", "libdafka"]), default="rfc46", show_default=True)
def main(records: int, rounds: int, wire: str) -> None:
    """Measure, and print a table."""
    rates: dict[str, list[float]] = {}
    for _ in range(rounds):
        rates.setdefault(BARE, []).append(records / bare_messages(records))
        for job, seconds in dafka_jobs(records, wire).items():
            rates.setdefault(job, []).append(records / seconds)
    table = Table("job", "records/s", "range", "of bare ZeroMQ", title=f"{records:,} records of 100 bytes, {wire}")
    for job, found in rates.items():
        ratio = statistics.median(rate / bare for rate, bare in zip(found, rates[BARE], strict=True))
        spread = f"{min(found):,.0f} - {max(found):,.0f}"
        table.add_row(job, f"{statistics.median(found):,.0f}", spread, f"{ratio:.2f}")
    Console().print(table)


def bare_messages(records: int) -> float:
    """Seconds from the first message's sending to the last one's receipt, drained as fast as pyzmq can."""
    context = multiprocessing.get_context("spawn")
    ports, done = context.Queue(), context.Queue()
    receiver = context.Process(target=_receive, args=(records, ports, done))
    receiver.start()
    with zmq.Context() as zmq_context, zmq_context.socket(zmq.XPUB) as publisher:
        publisher.set_hwm(0)
        publisher.bind("tcp://127.0.0.1:*")
        ports.put(publisher.getsockopt_string(zmq.LAST_ENDPOINT))
        publisher.recv()
        started = time.perf_counter()
        more = int(zmq.SNDMORE)
        for sequence in range(records):
            publisher.send(b"Mtopic", more)
            publisher.send(CONTENT % sequence)
        done.get()
        seconds = time.perf_counter() - started
    receiver.join()
    return seconds


def _receive(records: int, ports: multiprocessing.Queue[str], done: multiprocessing.Queue[int]) -> None:
    with zmq.Context() as context, context.socket(zmq.SUB) as subscriber:
        subscriber.set_hwm(0)
        subscriber.subscribe(b"")
        subscriber.connect(ports.get())
        for _ in range(records):
            frame = subscriber.recv(copy=False)
            while frame.more:
                frame = subscriber.recv(copy=False)
        done.put(records)


def dafka_jobs(records: int, wire: str) -> dict[str, float]:
    """Seconds of each path, through the command."""
    with tempfile.TemporaryDirectory(prefix="dafka-benchmark-") as folder:
        lines = Path(folder, "lines")
        lines.write_bytes(b"".join(CONTENT % sequence + b"\n" for sequence in range(records)))
        with _cluster(folder, wire) as options:
            late = ["consume", "t", "--from-beginning", "--count", str(records), *options]
            produce = ["produce", "t", "--file", str(lines), *options]
            stored = _timed(produce)
            caught_up = _timed(late)
        with _cluster(folder, wire, "live.db") as options:
            follow = _command("consume", "t", "--count", str(records), "--verbose", *options)
            live = subprocess.Popen(follow, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            assert live.stderr is not None
            while b"following" not in live.stderr.readline():
                pass
            started = time.perf_counter()
            with subprocess.Popen(_command("produce", "t", "--file", str(lines), *options)):
                live.communicate()
            delivered = time.perf_counter() - started
    return {"produce until acknowledged": stored, "live, store attached": delivered, "catch-up": caught_up}


@contextmanager
def _cluster(folder: str, wire: str, name: str = "store.db") -> Iterator[list[str]]:
    free = "tcp://127.0.0.1:*"
    storage = f"sqlite:{Path(folder, name)}"
    command = _command("up", "--sub", free, "--pub", free, "--wire", wire, "--storage", storage)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as up:
        assert up.stdout is not None
        words = up.stdout.readline().split()
        up.stdout.readline()
        try:
            yield ["--tower-sub", words[4], "--tower-pub", words[-1], "--wire", wire]
        finally:
            up.terminate()


def _timed(arguments: list[str]) -> float:
    """With the interpreter's start, which a user waits for, too."""
    started = time.perf_counter()
    subprocess.run(_command(*arguments), check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "dafka", *arguments]


if __name__ == "__main__":
    main()
