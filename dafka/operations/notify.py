"""Word to the service manager, as systemd's sd_notify(3): one datagram, to the socket that it names.

Where no service manager listens, nothing is sent; where it cannot be reached, the process goes on without it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

READY = "READY=1"
STOPPING = "STOPPING=1"
ALIVE = "WATCHDOG=1"


class Notifier:
    """Attributes:
    watchdog_s: within how many seconds the service manager wants a sign of life, again and again; None: none.
    """

    def __init__(self, path: str = "", watchdog_s: float | None = None) -> None:
        """`path` is a socket's in the file system, or behind an @ an abstract one's."""
        self.watchdog_s = watchdog_s
        self._path = f"\0{path[1:]}" if path.startswith("@") else path

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Notifier:
        """By NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID, as the service manager sets them."""
        environ = os.environ if environ is None else environ
        path = environ.get("NOTIFY_SOCKET", "")
        if not path.startswith(("/", "@")):
            return cls()
        microseconds = environ.get("WATCHDOG_USEC", "")
        is_meant = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        is_number = microseconds.isascii() and microseconds.isdigit() and int(microseconds) > 0
        return cls(path, int(microseconds) / 1e6 if is_meant and is_number else None)

    def __bool__(self) -> bool:
        """Does anybody listen?"""
        return bool(self._path)

    def send(self, *assignments: str) -> bool:
        """Tells `READY`, `STATUS=...` and the like; without waiting. False where it was not heard."""
        if not self:
            return False
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.setblocking(False)
                sender.sendto("\n".join(assignments).encode(), self._path)
        except OSError:
            return False
        return True
