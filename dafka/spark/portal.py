"""The way from Spark's threads to Trio: an event loop in a thread, which does not outlive the program."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress

import anyio
from anyio.from_thread import BlockingPortal

EXIT_S = 5.0
"""How long the end of the process may wait for the thread, in seconds."""


@contextmanager
def open_portal() -> Iterator[BlockingPortal]:
    """Run Trio in a thread for the length of a block.

    If the program ends within the block, what runs in the thread is cancelled. (The thread of anyio's own portals would
    keep the interpreter alive.)

    Yields:
        The portal, which calls functions in the thread.
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
    finally:  # also when what has opened the block is forgotten: then tasks of it may be left
        atexit.unregister(cancel)
        cancel()
