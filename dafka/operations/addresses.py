"""Where metrics and health are served."""

from __future__ import annotations

LOOPBACK = "127.0.0.1"


def split_address(listen: str) -> tuple[str, int]:
    """The host and the port of `PORT` or `ADDRESS:PORT`, which must be well-formed; without an address, loopback's."""
    host, _, port = listen.rpartition(":")
    return host.strip("[]") or LOOPBACK, int(port)
