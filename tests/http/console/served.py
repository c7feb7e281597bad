"""A broker that listens to HTTP in a process of its own, which can be stopped and started again."""

from __future__ import annotations

import base64
import http.client
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.ports import free_port

START_S = 60
REQUEST_S = 60


class ServedBroker:
    """A broker with a tower, run by `dafka up`.

    Args:
        folder: The folder of its storage.
        arguments: Further arguments of the command.
        joined: A running broker whose cluster it joins; None for a cluster of its own.

    Attributes:
        url: Where its console is.
        tower_options: The options of commands whose nodes belong to its cluster.
    """

    def __init__(self, folder: Path, arguments: Iterable[str] = (), joined: ServedBroker | None = None) -> None:
        self._port = free_port()
        self._kafka_port = free_port()
        self.url = f"http://127.0.0.1:{self._port}/"
        sub, pub = f"tcp://127.0.0.1:{free_port()}", f"tcp://127.0.0.1:{free_port()}"
        self.tower_options: list[str] = (
            ["--tower-sub", sub, "--tower-pub", pub] if joined is None else joined.tower_options
        )
        self._command = [
            *(sys.executable, "-m", "dafka", "up" if joined is None else "broker"),
            *("--http", f"127.0.0.1:{self._port}", "--kafka", f"127.0.0.1:{self._kafka_port}"),
            *(("--sub", sub, "--pub", pub) if joined is None else self.tower_options),
            *("--storage", f"filelog:{folder}"),
            *arguments,
        ]
        self._process: subprocess.Popen[str] | None = None

    @property
    def bootstrap_servers(self) -> str:
        """Where clients of Kafka connect."""
        return f"127.0.0.1:{self._kafka_port}"

    def start(self) -> None:
        """Start the broker, and wait until it listens."""
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("HTTP"):
                return
        raise AssertionError("the broker has not started")

    def stop(self) -> None:
        """Stop the broker."""
        if self._process is not None:
            self._process.terminate()
            assert self._process.stdout is not None
            self._process.stdout.read()
            self._process.stdout.close()
            self._process.wait(START_S)
            self._process = None

    def request(
        self, method: str, path: str, body: object = None, *, lines: bool = False, headers: Mapping[str, str] = {}
    ) -> Any:
        """Send a request, and return the document in the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=REQUEST_S)
        kind = "application/x-ndjson" if lines else "application/json"
        content = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        try:
            connection.request(method, path, content, {"Content-Type": kind, **headers})
            answer = connection.getresponse()
            received = answer.read()
        finally:
            connection.close()
        assert answer.status < 300, (answer.status, received)
        return json.loads(received) if received else None

    def create_topic(self, name: str, log_count: int = 1) -> None:
        """Create a topic."""
        self.request("POST", "/topics", {"name": name, "log_count": log_count})

    def publish(self, topic: str, records: Iterable[Mapping[str, object]]) -> None:
        """Publish records, as the API has them."""
        body = "\n".join(json.dumps(each) for each in records).encode()
        self.request("POST", f"/topics/{quote(topic, safe='')}/records", body, lines=True)


def basic(user: str, password: str) -> dict[str, str]:
    """Return the header of Basic authentication."""
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


@contextmanager
def serve_broker(folder: Path, arguments: Iterable[str] = ()) -> Iterator[ServedBroker]:
    """Run a broker during the block."""
    broker = ServedBroker(folder, arguments)
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()
