"""Supervision of the nodes of one process: health and metrics over HTTP, and notifications for systemd.

monitor = Monitor("store")
async with open_operations(monitor, listen="9464"):
    monitor.add(await nursery.start(dafka.serve_store, config))
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import trio

from dafka.config import MetricsConfig
from dafka.exceptions import unwrap_group
from dafka.extras import require_extra
from dafka.operations.monitor import Monitor
from dafka.operations.systemd import STOPPING, Notifier, report_state


@asynccontextmanager
async def open_operations(
    monitor: Monitor, listen: str = "", notifier: Notifier | None = None, topics_max: int | None = None
) -> AsyncIterator[str | None]:
    """Serve the health and the metrics of a monitor's nodes for the duration of a block.

    Args:
        monitor: The nodes.
        listen: `PORT` or `ADDRESS:PORT` of the HTTP server. Port 0 takes a free one. If empty, there is no server.
        notifier: Reports the state to systemd. If None, nothing is reported.
        topics_max: How many topics have metrics of their own; by default as `[metrics] topics_max`.

    Yields:
        The URL of the HTTP server; None without one.

    Raises:
        AddressInUseError: The server cannot listen at that address.
        ConfigError: `listen` has another form.
        MissingExtraError: The extra `dafka[metrics]` is not installed, and `listen` is set.
    """
    notifier = notifier or Notifier()
    with unwrap_group():
        async with AsyncExitStack() as stack:
            url = None
            if listen:
                with require_extra("metrics", "the HTTP server for metrics and health"):
                    from dafka.operations.http import make_handlers, open_server  # noqa: PLC0415 (slow to load)

                topics = MetricsConfig().topics_max if topics_max is None else topics_max
                url = await stack.enter_async_context(open_server(listen, make_handlers(monitor, topics)))
            nursery = await stack.enter_async_context(trio.open_nursery())
            if notifier:
                nursery.start_soon(report_state, monitor.health, notifier)
            try:
                yield url
            finally:
                nursery.cancel_scope.cancel()
                begin_stopping(monitor, notifier)


def begin_stopping(monitor: Monitor, notifier: Notifier) -> None:
    """Mark the process as shutting down, so that it is not ready, and report that to systemd once."""
    if not monitor.is_stopping:
        monitor.is_stopping = True
        notifier.send(STOPPING, "STATUS=stopping")
