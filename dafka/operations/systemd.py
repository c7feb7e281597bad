"""Notifications for systemd about the state of the process, by the protocol of sd_notify(3).

Each notification is one datagram. Without systemd, nothing is sent. A notification that cannot be sent is dropped.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping

import trio

from dafka.roles import Health

READY = "READY=1"
STOPPING = "STOPPING=1"
ALIVE = "WATCHDOG=1"

READY_POLL_S = 0.1
"""Seconds between two checks until the nodes are ready."""

STATUS_S = 5.0
"""Seconds between two reports once the nodes are ready; less if the watchdog interval is short."""

WATCHDOG_FACTOR = 4
"""`WATCHDOG=1` messages sent in each watchdog interval, so that a late one does not matter."""


class Notifier:
    """A sender of messages to systemd."""

    def __init__(self, path: str = "", watchdog_s: float | None = None) -> None:
        """Create a notifier.

        Args:
            path: The path of systemd's socket, or `@` and the name of an abstract socket. If empty, nothing is sent.
            watchdog_s: Seconds within which systemd expects the next `WATCHDOG=1`; None without a watchdog.
        """
        self.watchdog_s = watchdog_s
        self._path = f"\0{path[1:]}" if path.startswith("@") else path

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Notifier:
        """Create a notifier from NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID, which systemd sets.

        It sends nothing if NOTIFY_SOCKET is not set. The variables are by default those of the process.
        """
        environ = os.environ if environ is None else environ
        path = environ.get("NOTIFY_SOCKET", "")
        if not path.startswith(("/", "@")):
            return cls()
        microseconds = environ.get("WATCHDOG_USEC", "")
        is_for_this_process = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        is_number = microseconds.isascii() and microseconds.isdigit() and int(microseconds) > 0
        return cls(path, int(microseconds) / 1e6 if is_for_this_process and is_number else None)

    def __bool__(self) -> bool:
        """Return whether there is a socket to send to."""
        return bool(self._path)

    def send(self, *assignments: str) -> bool:
        """Send one message of assignments such as `READY=1`, without waiting. Return whether it was sent."""
        if not self:
            return False
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.setblocking(False)
                sender.sendto("\n".join(assignments).encode(), self._path)
        except OSError:
            return False
        return True


async def report_state(health: Callable[[], Health], notifier: Notifier) -> None:
    """Report the state until cancelled: `READY=1` once the nodes are ready, `WATCHDOG=1` while none is in trouble."""
    watchdog_s = float("inf") if notifier.watchdog_s is None else notifier.watchdog_s / WATCHDOG_FACTOR
    pause = min(READY_POLL_S, watchdog_s)
    is_ready_sent = False
    while True:
        now = health()
        message = [f"STATUS={now.trouble or now.unready or 'ready'}"]
        if not now.unready and not is_ready_sent:
            is_ready_sent = True
            pause = min(STATUS_S, watchdog_s)
            message.append(READY)
        if notifier.watchdog_s is not None and not now.trouble:
            message.append(ALIVE)
        notifier.send(*message)
        await trio.sleep(pause)
