"""A broker in a process of its own, which is killed and started again. Arguments: the storage, and the port of HTTP."""

from __future__ import annotations

import subprocess
import sys

import trio

from dafka import Config
from tests.http.running import open_web


class BrokerProcess:
    """A broker that can be killed and started again.

    Args:
        storage: The URL of its storage.
        port: The port of HTTP.
    """

    def __init__(self, storage: str, port: int) -> None:
        self._program = [sys.executable, "-m", "tests.http.websocket.broker_process", storage, str(port)]
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start the broker, and wait until it listens."""
        self._process = subprocess.Popen(self._program, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        with self._process.stdout as output:
            assert output.readline().strip() == "ready"

    def kill(self) -> None:
        """Kill the broker."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


async def main(storage: str, port: int) -> None:
    async with open_web(storage, Config().with_http(listen=f"127.0.0.1:{port}")):
        print("ready", flush=True)
        await trio.sleep_forever()


if __name__ == "__main__":
    trio.run(main, sys.argv[1], int(sys.argv[2]))
