"""What watches over the nodes of one process: an HTTP server for whoever asks, and word to the service manager.

monitor = Monitor("store")
async with open_operations(monitor, listen="9464"):
    monitor.add(await nursery.start(dafka.serve_store, config))
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import trio

from dafka.extras import require_extra
from dafka.groups import single_exception
from dafka.operations.monitor import Monitor
from dafka.operations.notify import ALIVE, READY, STOPPING, Notifier

LOOK_S = 0.1
"""How often it is looked whether the nodes are ready, until they are."""

STATUS_S = 5.0
"""How often, from then on, the service manager is told how they do; more often where it wants signs of life."""


@asynccontextmanager
async def open_operations(
    monitor: Monitor, listen: str = "", notifier: Notifier | None = None
) -> AsyncIterator[str | None]:
    """Watches over a monitor's nodes during the block, which gets the URL of the HTTP server, or None.

    `listen` is `PORT` or `ADDRESS:PORT`; where empty, there is no server. Raises `ConfigError` where it is neither,
    `AddressInUseError` where it is taken.
    """
    notifier = notifier or Notifier()
    with single_exception():
        async with AsyncExitStack() as stack:
            url = None
            if listen:
                with require_extra("metrics", "the HTTP server for metrics and health"):
                    from dafka.operations.answers import handlers  # noqa: PLC0415 (optional, and slow to load)
                    from dafka.operations.http import open_server  # noqa: PLC0415

                url = await stack.enter_async_context(open_server(listen, handlers(monitor)))
            nursery = await stack.enter_async_context(trio.open_nursery())
            if notifier:
                nursery.start_soon(_keep_telling, monitor, notifier)
            try:
                yield url
            finally:
                nursery.cancel_scope.cancel()
                stop(monitor, notifier)


def stop(monitor: Monitor, notifier: Notifier) -> None:
    """The process ends: it is not ready any more, and the service manager is told so, once."""
    if not monitor.is_stopping:
        monitor.is_stopping = True
        notifier.send(STOPPING, "STATUS=stopping")


async def _keep_telling(monitor: Monitor, notifier: Notifier) -> None:
    """Ready when the nodes are; alive as long as this loop turns and no node is in trouble."""
    pause = LOOK_S if notifier.watchdog_s is None else min(LOOK_S, notifier.watchdog_s / 4)
    is_told = False
    while True:
        health = monitor.health()
        news = [f"STATUS={health.trouble or health.unready or 'ready'}"]
        if not health.unready and not is_told:
            is_told = True
            pause = STATUS_S if notifier.watchdog_s is None else min(STATUS_S, notifier.watchdog_s / 4)
            news.append(READY)
        if notifier.watchdog_s is not None and not health.trouble:
            news.append(ALIVE)
        notifier.send(*news)
        await trio.sleep(pause)
