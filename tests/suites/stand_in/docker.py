"""Stands in for Docker's client where aiokafka's tests start Kafka: its containers are Dafka's brokers.

`DAFKA_COMMAND` is the command `dafka`, as a JSON array.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import tempfile
from types import SimpleNamespace
from typing import Any


class Container:
    """A broker in a process of its own, or nothing at all if no port was asked for."""

    def __init__(self, environment: dict[str, Any]) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._process = None
        if "ADVERTISED_PORT" in environment:
            self._address = (environment["ADVERTISED_HOST"], int(environment["ADVERTISED_PORT"]))
            listen = ":".join(map(str, self._address))
            options = ["--kafka", listen, "--log-count", str(environment["NUM_PARTITIONS"])]
            free = "tcp://127.0.0.1:*"
            options += ["--sub", free, "--pub", free, "--storage", f"filelog:{self._folder.name}/log"]
            self._process = subprocess.Popen([*json.loads(os.environ["DAFKA_COMMAND"]), "up", *options])

    def is_ready(self) -> bool:
        """Return whether clients can connect."""
        if self._process is None:
            return False
        with socket.socket() as connection:
            return connection.connect_ex(self._address) == 0

    def exec_run(self, *_: Any, **__: Any) -> tuple[int, bytes]:
        return 0, b""

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
        self._folder.cleanup()


class DockerClient:
    """A connection to Docker, and what starts containers."""

    def __init__(self) -> None:
        self.containers = self

    def run(self, image: str, environment: dict[str, Any] | None = None, **_: Any) -> Container:
        return Container(environment or {})

    def close(self) -> None:
        pass


models = SimpleNamespace(containers=SimpleNamespace(Container=Container))


def from_env() -> DockerClient:
    return DockerClient()
