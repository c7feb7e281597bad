"""Runs the systems that benchmarks of Kafka's protocol compare: a broker, librdkafka's mock cluster and Tansu."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

BROKERS = {"filelog": "filelog:{folder}/log", "sqlite": "sqlite:{folder}/dafka.db"}
"""The storages of the broker."""

OTHERS = ("mock", "tansu")
"""The systems that keep everything in memory."""

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


@contextmanager
def serve(system: str, tansu: str | None) -> Iterator[Served]:
    """Run a system during the block, once it answers. `tansu` is the program of Tansu."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with tempfile.TemporaryDirectory(prefix=".kafka-", dir=Path.cwd(), ignore_cleanup_errors=True) as folder:
        if system == "mock":
            program = [sys.executable, __file__]
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
                address = process.stdout.readline().strip() if system == "mock" else address
                AdminClient({"bootstrap.servers": address, "log_level": 0}).list_topics(timeout=START_S)
                yield Served(system, address, process.pid)
            finally:
                process.kill()


if __name__ == "__main__":
    _serve_mock()
