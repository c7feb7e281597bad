"""The thread that runs Trio while a program without Trio has open nodes.

All nodes of a process share one thread. It starts with the first node, and ends with the last one. It is not anyio's
portal, because that makes the calling thread, such as one with asyncio's event loop, wait until Trio has taken a call.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Protocol

import trio

from dafka.errors import WrongContextError
from dafka.roles.trio_context import forked_error

EXIT_S = 5.0
"""How long the end of the process waits for the thread if no producer has records to store, in seconds."""


class ThreadNode(Protocol):
    """A node that is open in the thread. `closed` is done when it is closed."""

    closed: Future[None]

    async def run(self) -> None:
        """Run the node. At its end it calls `TrioThread.end_node`."""

    def end(self, error: BaseException) -> None:
        """End the node, because Trio itself has failed."""

    def finish(self) -> float | None:
        """Close the node if it is open and has records to wait for. Return for how many seconds it may wait."""

    def warn_unclosed(self) -> None:
        """Warn that the program has not closed the node, if it has not."""


class TrioThread:
    """A running thread. `join_thread` returns the one of this process, or starts it."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._count = 0
        self._nodes: dict[ThreadNode, None] = {}
        self._lock = threading.RLock()  # the garbage collector may close a node in any thread, at any time
        self._token: trio.lowlevel.TrioToken | None = None
        self._nursery: trio.Nursery | None = None
        self._backlog: list[Callable[[], object]] = []
        self._on_end: list[Callable[[], object]] = []
        self._has_ended = False
        self._idle = trio.Event()
        self._scope = trio.CancelScope()
        self._thread = threading.Thread(target=self._run, name="dafka", daemon=True)
        self._thread.start()

    def check_here(self) -> None:
        """Raise `WrongContextError` if the process was forked, or if this thread would wait for itself."""
        if self.is_foreign():
            raise forked_error(self._pid)
        if threading.get_ident() == self._thread.ident:
            raise WrongContextError("the thread that runs Trio would wait for itself: call this in another thread")

    def is_foreign(self) -> bool:
        """Return whether this process is a fork of the one with the thread."""
        return self._pid != os.getpid()

    def submit(self, function: Callable[[], object]) -> None:
        """Call a function in the thread soon. Nothing happens if the thread has ended."""
        with self._lock:
            if self._token is None:
                self._backlog.append(function)
                return
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(function)

    def start_node(self, node: ThreadNode) -> None:
        """Start the task of a node in the thread."""

        def start() -> None:
            assert self._nursery is not None
            self._nursery.start_soon(node.run)

        with self._lock:
            self._nodes[node] = None
        self.submit(start)

    def end_node(self, node: ThreadNode) -> None:
        """Note, in the thread, that the task of a node has ended. The thread ends after the last one."""
        global _current  # noqa: PLW0603
        with self._lock:
            del self._nodes[node]
        with _current_lock:
            self._count -= 1
            if not self._count:
                if _current is self:
                    _current = None
                self._idle.set()

    def is_ending(self) -> bool:
        """Return whether all nodes have been closed."""
        return self._idle.is_set()

    def on_end(self, function: Callable[[], object]) -> None:
        """Call a function when the thread has no work left, so that `join` does not wait."""
        with self._lock:
            if not self._has_ended:
                self._on_end.append(function)
                return
        function()

    def join(self, timeout_s: float | None = None) -> None:
        """Wait until the thread has ended."""
        self._thread.join(timeout_s)

    def stop(self) -> None:
        """Close all nodes because the process ends, after producers have waited for their records.

        Stores and towers are closed after the producers, whose records they may still have to store. Ctrl-C ends the
        waiting.
        """
        if self.is_foreign():
            return
        with self._lock:
            nodes = [*self._nodes]
        try:
            with suppress(KeyboardInterrupt):
                self._finish(nodes)
            self.submit(self._scope.cancel)
            self.join(EXIT_S)
        finally:
            for node in nodes:
                node.warn_unclosed()

    def _finish(self, nodes: list[ThreadNode]) -> None:
        now = time.monotonic()
        ends = [(now + seconds, node.closed) for node in nodes if (seconds := node.finish()) is not None]
        for end, closed in ends:
            wait([closed], max(end - time.monotonic(), 0))

    def _run(self) -> None:
        global _current  # noqa: PLW0603
        error: BaseException = trio.RunFinishedError()
        try:
            trio.run(self._main)
        except BaseException as caught:
            error = caught
        with _current_lock:
            if _current is self:
                _current = None
        with self._lock:
            self._has_ended = True
            left = [*self._nodes]
        for node in left:
            node.end(error)
        for function in self._on_end:
            function()

    async def _main(self) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            with self._lock:
                self._token = trio.lowlevel.current_trio_token()
            for function in self._backlog:
                function()
            with self._scope:
                await self._idle.wait()
            if self._scope.cancelled_caught:
                nursery.cancel_scope.cancel()


_current: TrioThread | None = None
_current_lock = threading.RLock()


def join_thread() -> TrioThread:
    """Return the thread of this process for one more node, whose task calls `TrioThread.end_node`."""
    global _current  # noqa: PLW0603
    with _current_lock:
        if _current is None:
            _current = TrioThread()
            _register_exit()
        _current._count += 1
        return _current


def _register_exit() -> None:
    """Stop the thread at the end of the process, before functions that the program has registered until now."""
    global _finalizer  # noqa: PLW0603
    atexit.unregister(_stop_at_exit)
    atexit.register(_stop_at_exit)
    multiprocessing = sys.modules.get("multiprocessing")
    if _finalizer is None and multiprocessing is not None and multiprocessing.parent_process() is not None:
        # Before Python 3.13, a forked process of multiprocessing does not call functions registered with `atexit`.
        _finalizer = multiprocessing.util.Finalize(None, _stop_at_exit, exitpriority=0)


_finalizer: object = None


def _stop_at_exit() -> None:
    if _current is not None:
        _current.stop()


def _forget_after_fork() -> None:
    """Forget the thread in a forked process, which has only the thread that forked."""
    global _current, _current_lock, _finalizer
    _current, _current_lock, _finalizer = None, threading.RLock(), None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)
