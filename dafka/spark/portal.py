"""A portal from Spark's threads to Trio: an event loop in a thread that does not outlive the program."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress

import anyio
from anyio.from_thread import BlockingPortal

EXIT_S = 5.0
"""The maximum time that the end of the process waits for the thread, in seconds."""


@contextmanager
def open_portal() -> Iterator[BlockingPortal]:
    """Run Trio in a thread for the length of a block; yield the portal, which calls functions in the thread.

    If the program ends within the block, the tasks in the thread are cancelled. (The thread of anyio's portals would
    keep the interpreter alive.)
    """
    opened: Future[BlockingPortal] = Future()

    async def serve() -> None:
        async with BlockingPortal() as portal:
            opened.set_result(portal)
            await portal.sleep_until_stopped()

    thread = threading.Thread(target=anyio.run, args=(serve,), kwargs={"backend": "trio"}, name="dafka", daemon=True)
    thread.start()
    portal = opened.result()

    def cancel() -> None:
        with suppress(RuntimeError):
            portal.start_task_soon(portal.stop, True)
        thread.join(EXIT_S)

    atexit.register(cancel)
    try:
        yield portal
    finally:  # also if the owner of the block was garbage-collected with tasks left
        atexit.unregister(cancel)
        cancel()
