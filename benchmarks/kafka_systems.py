"""Runs the systems that benchmarks of Kafka's protocol compare: a broker, librdkafka's mock cluster and Tansu."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import trio
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

BROKERS = {"filelog": "filelog:{folder}/log", "sqlite": "sqlite:{folder}/dafka.db"}
"""The storages of the broker."""

OTHERS = ("mock", "tansu")
"""The systems that keep everything in memory."""

BARE = "trio"
"""A server that answers whatever it receives after a time, and does nothing else: what Trio itself costs."""

BARE_WAIT_S = 0.5
BARE_TICK_S = 0.01
BARE_ANSWER = struct.pack(">i", 60) + bytes(60)

MOCK_LOGS = 4
"""How many logs each topic of the mock cluster has."""

START_S = 30.0
CLOCK_TICKS_S = os.sysconf("SC_CLK_TCK")


class Measured(NamedTuple):
    """A figure in the unit of its job, and the processor time of the system in seconds."""

    figure: float
    processor_s: float


class Served(NamedTuple):
    """A running system."""

    name: str
    servers: str
    pid: int

    def processor_s(self) -> float:
        """Return the processor time that the system has used, in seconds."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS_S

    def resident_mib(self) -> float:
        """Return the resident memory of the system, in MiB."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def _serve_mock() -> None:
    """Run a mock cluster until killed."""
    producer = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "replaced"})
    (broker,) = producer.list_topics(timeout=10).brokers.values()
    print(f"{broker.host}:{broker.port}", flush=True)
    signal.pause()


async def _serve_bare() -> None:
    """Answer each piece of data after `BARE_WAIT_S`. All connections share one timer."""
    waiting: deque[tuple[float, trio.lowlevel.Task]] = deque()

    async def serve_client(client: trio.SocketStream) -> None:
        while await client.receive_some(2**16):
            waiting.append((trio.current_time() + BARE_WAIT_S, trio.lowlevel.current_task()))
            await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.FAILED)
            await client.send_all(BARE_ANSWER)

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, serve_client, 0, host="127.0.0.1"))
        print(f"127.0.0.1:{listener.socket.getsockname()[1]}", flush=True)
        while True:
            await trio.sleep(BARE_TICK_S)
            while waiting and waiting[0][0] <= trio.current_time():
                trio.lowlevel.reschedule(waiting.popleft()[1])


@contextmanager
def serve(system: str, tansu: str | None) -> Iterator[Served]:
    """Run a system during the block, once it answers. `tansu` is the program of Tansu."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with tempfile.TemporaryDirectory(prefix=".kafka-", dir=Path.cwd(), ignore_cleanup_errors=True) as folder:
        prints_address = system in {"mock", BARE}
        if prints_address:
            program = [sys.executable, __file__, system]
        elif system == "tansu":
            url = f"tcp://{address}"
            program = [str(tansu), "broker", "--listener-url", url, "--advertised-listener-url", url]
            program += ["--storage-engine", "memory://tansu/"]
        else:
            program = [sys.executable, "-m", "dafka", "broker", "--kafka", address]
            program += ["--storage", BROKERS[system].format(folder=folder)]
        with (
            Path(folder, "errors").open("w") as errors,
            subprocess.Popen(program, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
        ):
            assert process.stdout is not None
            try:
                address = process.stdout.readline().strip() if prints_address else address
                if system != BARE:
                    AdminClient({"bootstrap.servers": address, "log_level": 0}).list_topics(timeout=START_S)
                yield Served(system, address, process.pid)
            finally:
                process.kill()


if __name__ == "__main__":
    if sys.argv[1:] == [BARE]:
        trio.run(_serve_bare)
    else:
        _serve_mock()
