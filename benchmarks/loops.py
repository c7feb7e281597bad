"""Measures the loops of the transport alone, in nanoseconds per record, compared with pyzmq's own calls.

    python benchmarks/loops.py [--records N] [--rounds N] [--only LOOPS] [--wire DIALECT]

Records of 100 bytes pass through two sockets in this process, without a network. `--only` runs one kind of loops, to
count instructions: `valgrind --tool=callgrind python benchmarks/loops.py --only compiled --rounds 1`, minus the
instructions of `--records 0`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import click
import zmq

from dafka.packed_bytes import pack
from dafka.records import Partition, RecordBatch
from dafka.transport.loops import Loops, PureLoops, load_compiled
from dafka.wire import BatchDecoder, BatchEncoder, Dialect, RecordRun
from dafka.wire.batch import iter_frames

RUN_RECORDS = 1000
BYTES_MAX = 1 << 40


def measure(loops: Loops, records: int, dialect: Dialect) -> tuple[float, float]:
    """Return the seconds for sending runs of records, and for receiving and decoding them."""
    contents = pack([b"%0100d" % number for number in range(RUN_RECORDS)])
    runs = [
        RecordRun(RecordBatch(Partition("orders", "A" * 32), first, contents))
        for first in range(0, records, RUN_RECORDS)
    ]
    encoder, decoder = BatchEncoder(dialect), BatchDecoder()

    def send(near: zmq.Socket[bytes]) -> None:
        for run in runs:
            loops.send(near, encoder.encode([run]))

    def receive(far: zmq.Socket[bytes]) -> None:
        while items := loops.receive_runs(far, loops.receive_count_max, loops.receive_count_max, BYTES_MAX):
            decoder.decode(items)

    return through_sockets(send, receive)


def measure_pyzmq(records: int, dialect: Dialect) -> tuple[float, float]:
    """Return the seconds for the same messages, made in advance, with `send_multipart` and `recv_multipart`."""
    run = RecordRun(RecordBatch(Partition("orders", "A" * 32), 0, [b"%0100d" % number for number in range(records)]))
    messages = [list(frames) for frames in iter_frames(BatchEncoder(dialect).encode([run]))]

    def send(near: zmq.Socket[bytes]) -> None:
        for frames in messages:
            near.send_multipart(frames, zmq.NOBLOCK)

    def receive(far: zmq.Socket[bytes]) -> None:
        received = []
        try:
            while True:
                received.append(far.recv_multipart(zmq.NOBLOCK))
        except zmq.Again:
            pass

    return through_sockets(send, receive)


def through_sockets(
    send: Callable[[zmq.Socket[bytes]], None], receive: Callable[[zmq.Socket[bytes]], None]
) -> tuple[float, float]:
    """Return the seconds of each call."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    near, far = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    near.set_hwm(0)
    far.set_hwm(0)
    near.bind("inproc://here")
    far.connect("inproc://here")
    started = time.perf_counter()
    send(near)
    sent = time.perf_counter()
    receive(far)
    received = time.perf_counter()
    context.destroy(0)
    return sent - started, received - sent


@click.command()
@click.option("--records", type=click.IntRange(min=0), default=200_000, show_default=True)
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--only", type=click.Choice(["pyzmq", "pure", "compiled"]))
@click.option("--wire", type=click.Choice([each.value for each in Dialect]), default=Dialect.LIBDAFKA.value)
def main(records: int, rounds: int, only: str | None, wire: str) -> None:
    """Print medians."""
    dialect = Dialect(wire)
    ways: dict[str, Callable[[], tuple[float, float]]] = {
        "pyzmq": lambda: measure_pyzmq(records, dialect),
        "pure": lambda: measure(PureLoops(), records, dialect),
    }
    compiled = load_compiled()
    if not isinstance(compiled, str):
        ways["compiled"] = lambda: measure(compiled, records, dialect)
    chosen = [only] if only else list(ways)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in chosen}
    for _ in range(rounds):
        for name in chosen:
            times[name].append(ways[name]())
    for name in chosen:
        out, into = (statistics.median(part) / max(records, 1) * 1e9 for part in zip(*times[name], strict=True))
        click.echo(f"{name:8}  send {out:6.0f} ns  receive {into:6.0f} ns")


if __name__ == "__main__":
    main()
