"""Keeps the target running, in a task of its own, so that a scenario can start, kill and restart it anywhere."""

from __future__ import annotations

import trio

from dafka_conformance.targets.base import Node, Request, Target


class Keeper:
    """Attributes:
    node: the running target; None while there is none.
    """

    def __init__(self, target: Target, nursery: trio.Nursery) -> None:
        self.node: Node | None = None
        self._target = target
        self._nursery = nursery
        self._stop, self._stopped = trio.Event(), trio.Event()
        self._stopped.set()

    async def start(self, request: Request) -> Node:
        """Starts the target. Raises `TargetError`."""
        node: Node = await self._nursery.start(self._hold, request)
        self.node = node
        return node

    async def end(self) -> None:
        """Stops it, where it runs."""
        self._stop.set()
        await self._stopped.wait()
        self.node = None

    async def _hold(self, request: Request, *, task_status: trio.TaskStatus[Node]) -> None:
        self._stop, self._stopped = trio.Event(), trio.Event()
        try:
            async with self._target.start(request) as node:
                task_status.started(node)
                await self._stop.wait()
        finally:
            self._stopped.set()
