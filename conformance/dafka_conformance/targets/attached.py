"""A node that is running already, somewhere else: the suite joins its cluster, and can do nothing to it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from dafka_conformance.targets.base import Node, TargetError


@asynccontextmanager
async def attach(what: str) -> AsyncIterator[Node]:
    """A block for a node that is left as it is. `what` is its name in messages, as in `the store of NAME`."""
    yield AttachedNode(what)


class AttachedNode(Node):
    """A node of which the suite has nothing but what it says on the wire."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self._what = what

    async def feed(self, contents: Sequence[bytes]) -> None:
        """Raises `TargetError`."""
        raise TargetError(f"{self._what} is attached to: it cannot be given records")

    async def end_input(self) -> None:
        """Raises `TargetError`."""
        raise TargetError(f"{self._what} is attached to: it has no input to end")

    async def kill(self) -> None:
        """Raises `TargetError`."""
        raise TargetError(f"{self._what} is attached to: it cannot be killed")
