"""The running nodes of one process, and the health of the process.

monitor = Monitor("store")
async with open_operations(monitor, listen="9464"):
    monitor.add(await nursery.start(dafka.serve_store, config))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from dafka.roles import Consumer, Health, Producer, Store, Tower

MetricSource: TypeAlias = Callable[[Any], Iterable[Any]]
"""Returns metrics of Prometheus. It gets the `TopicLabels` of the process."""

MonitoredNode: TypeAlias = Store | Producer | Consumer | Tower

_HAVE = ("has", "have")

_ROLES: dict[type, str] = {Store: "store", Producer: "producer", Consumer: "consumer", Tower: "tower"}


def role_of(node: MonitoredNode) -> str:
    """Return the role of a running node: `store`, `producer`, `consumer` or `tower`."""
    return next(role for kind, role in _ROLES.items() if isinstance(node, kind))


class Monitor:
    """The running nodes of one process, and their health together.

    Attributes:
        nodes: The running nodes.
        is_stopping: Whether the process is shutting down. It is not ready then.
        metric_sources: Functions that return more metrics of the process.
        starting: What a role that has not started yet waits for, as text; empty if that is not known.
    """

    def __init__(self, *expected: str) -> None:
        """Create a monitor without nodes.

        Args:
            *expected: The roles that must run before the process is ready. Without any, one node of any role suffices.
        """
        self.nodes: list[MonitoredNode] = []
        self.is_stopping = False
        self.metric_sources: list[MetricSource] = []
        self.starting: object = ""
        self._expected = expected

    def add(self, node: MonitoredNode) -> None:
        """Add a running node."""
        self.nodes.append(node)

    @contextmanager
    def watching(self, node: MonitoredNode) -> Iterator[None]:
        """Add a running node for the duration of a block."""
        self.add(node)
        try:
            yield
        finally:
            self.nodes.remove(node)

    def health(self) -> Health:
        """Return the health of the process: the first trouble of any node, and the first reason not to be ready.

        Each begins with the role of its node.
        """
        trouble = unready = ""
        for node in self.nodes:
            health, role = node.health(), role_of(node)
            trouble = trouble or (health.trouble and f"{role}: {health.trouble}")
            unready = unready or (health.unready and f"{role}: {health.unready}")
        return Health(trouble, self._reason_not_started() or trouble or unready)

    def _reason_not_started(self) -> str:
        if self.is_stopping:
            return "stopping"
        running = {role_of(node) for node in self.nodes}
        missing = [role for role in self._expected if role not in running]
        if missing:
            waits_for, roles = str(self.starting), " and ".join(missing)
            return f"{roles}: {waits_for}" if waits_for else f"{roles} {_HAVE[len(missing) > 1]} not started yet"
        return "" if running else "no node has started yet"
