"""A broker in a process of its own, until it is killed: arguments are the storage, its port, and that for clients."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from dafka import Config
from tests.kafka.server.fixtures import run_broker


class BrokerProcess:
    """A broker that can be killed and started again.

    Args:
        storage: The URL of its storage.
        port: Its port.
        advertised_port: The port that clients are told; 0 for the same.
    """

    def __init__(self, storage: str, port: int, advertised_port: int = 0) -> None:
        self._program = [
            sys.executable,
            "-m",
            "tests.kafka.server.broker_process",
            storage,
            str(port),
            str(advertised_port or port),
        ]
        self.start()

    def start(self) -> None:
        """Start the broker, and wait until it listens."""
        self._process = subprocess.Popen(self._program, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        with self._process.stdout as output:
            assert output.readline().strip() == "ready"

    def kill(self) -> None:
        """Kill the broker."""
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()


@contextmanager
def open_broker_process(storage: str, port: int, advertised_port: int = 0) -> Iterator[BrokerProcess]:
    """Run a broker during the block."""
    process = BrokerProcess(storage, port, advertised_port)
    try:
        yield process
    finally:
        process.kill()


def main() -> None:
    config = Config().with_kafka(advertised_listener=f"127.0.0.1:{sys.argv[3]}")
    with run_broker(sys.argv[1], config, port=int(sys.argv[2])):
        print("ready", flush=True)
        time.sleep(600)


if __name__ == "__main__":
    main()
