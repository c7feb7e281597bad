"""HTTP requests that are sent to a broker while its process is stopped."""

from __future__ import annotations

import socket

from tests.broker.cluster.brokers import BrokerNode

ANSWER_S = 120.0


class WaitingRequests:
    """HTTP requests that are sent to a broker while it is stopped, and answered when it continues.

    Args:
        broker: The broker, which still answers.
        count: The number of requests.
    """

    def __init__(self, broker: BrokerNode, count: int) -> None:
        self._host = broker.url.removeprefix("http://")
        host, port = self._host.rsplit(":", 1)
        self._free = [socket.create_connection((host, int(port)), ANSWER_S) for _ in range(count)]
        self._waiting: list[socket.socket] = []

    def send(self, method: str, path: str, body: str = "") -> None:
        """Send a request."""
        each = self._free.pop()
        head = f"{method} {path} HTTP/1.1\r\nHost: {self._host}\r\nConnection: close\r\n"
        length = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n" if body else ""
        each.sendall(f"{head}{length}\r\n{body}".encode())
        self._waiting.append(each)

    def answers(self) -> list[tuple[int, bytes]]:
        """Return the statuses and bodies of the answers, in the order of the requests."""
        found = []
        for each in self._waiting:
            with each.makefile("rb") as stream:
                head, _, body = stream.read().partition(b"\r\n\r\n")
            found.append((int(head.split()[1]), body))
        return found

    def close(self) -> None:
        """Close all connections."""
        for each in (*self._free, *self._waiting):
            each.close()
