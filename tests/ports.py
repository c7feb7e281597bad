"""Ports for what is told where to listen, listens there again, or is not there."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack, suppress
from pathlib import Path

FIRST = 10_000


def free_ports(count: int, *hosts: str) -> list[int]:
    """Return different ports that nobody uses, and that the system does not give to outgoing connections.

    Args:
        count: How many.
        hosts: The addresses at which they must be free; this machine's own by default.

    Returns:
        The ports.
    """
    end = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    draw = random.SystemRandom()  # tests that run side by side may have seeded the other source alike
    found: set[int] = set()
    while len(found) < count:
        candidate = draw.randrange(FIRST, end)
        with ExitStack() as stack, suppress(OSError):
            for host in hosts or ("127.0.0.1",):
                stack.enter_context(socket.socket()).bind((host, candidate))
            found.add(candidate)
    return list(found)


def free_port() -> int:
    """Return a port that nobody uses."""
    return free_ports(1)[0]


def free_endpoints(count: int) -> list[str]:
    """Return endpoints at different ports that nobody uses, and that no other socket gets by chance."""
    return [f"tcp://127.0.0.1:{port}" for port in free_ports(count)]
