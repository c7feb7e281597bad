"""The nodes of one process, as supervisors see them: together, by role, and never one by one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

from dafka.roles import Consumer, Health, Producer, Store, Tower

Watched: TypeAlias = Store | Producer | Consumer | Tower

_ROLES: dict[type, str] = {Store: "store", Producer: "producer", Consumer: "consumer", Tower: "tower"}


def role_of(node: Watched) -> str:
    """`store`, `producer`, `consumer` or `tower`."""
    return next(role for kind, role in _ROLES.items() if isinstance(node, kind))


class Monitor:
    """Attributes:
    nodes: those that run.
    is_stopping: whether the process has been told to end.
    """

    def __init__(self, *expected: str) -> None:
        """`expected` are the roles that must be there before the process is ready; none: any one."""
        self.nodes: list[Watched] = []
        self.is_stopping = False
        self._expected = expected

    def add(self, node: Watched) -> None:
        """A node runs."""
        self.nodes.append(node)

    @contextmanager
    def watching(self, node: Watched) -> Iterator[None]:
        """A node runs during the block."""
        self.add(node)
        try:
            yield
        finally:
            self.nodes.remove(node)

    def health(self) -> Health:
        """The first trouble that any node has, and the first reason that any is not ready."""
        trouble = unready = ""
        for node in self.nodes:
            health, role = node.health(), role_of(node)
            trouble = trouble or (health.trouble and f"{role}: {health.trouble}")
            unready = unready or (health.unready and f"{role}: {health.unready}")
        return Health(trouble, self._starting() or trouble or unready)

    def _starting(self) -> str:
        if self.is_stopping:
            return "stopping"
        here = {role_of(node) for node in self.nodes}
        missing = [role for role in self._expected if role not in here]
        if missing:
            return f"{' and '.join(missing)} {'has' if len(missing) == 1 else 'have'} not started yet"
        return "" if here else "no node has started yet"
