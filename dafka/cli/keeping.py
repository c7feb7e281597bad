"""Keeps a store running when its storage is removed beneath it.

The store that lost it ends, and another begins at the same place: with a new storage, or with what somebody has put
there. A new storage has a new address, so that no producer counts what the old one acknowledged as held by it; and it
fetches from producers and other stores what they hold. No operator is needed, only told.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager

import trio

from dafka.config import Config
from dafka.errors import StorageError, StorageLostError, TransportError
from dafka.groups import single_exception
from dafka.roles import Store, serve_store
from dafka.roles.events import NodeLog
from dafka.roles.log_events import StorageReopening

_LOG = NodeLog(logging.getLogger("dafka.store"))


async def keep_store(
    config: Config,
    running: Callable[[Store], AbstractContextManager[None]],
    *,
    task_status: trio.TaskStatus[Store],
) -> None:
    """Serves a store until cancelled; `started` gives the first. While one runs, the block of `running(store)` is open.

    Raises what `serve_store` does while the first one starts. When a storage has been lost, one that cannot be opened
    is tried again, each `retry_ms`.
    """
    is_started = False
    told = None
    while True:
        try:
            with single_exception():
                async with trio.open_nursery() as nursery:
                    store: Store = await nursery.start(serve_store, config)
                    with running(store):
                        told = None
                        if not is_started:
                            is_started = True
                            task_status.started(store)
                        await trio.sleep_forever()
        except StorageLostError:
            _LOG.write(StorageReopening(config.store.storage, ""), logging.WARNING)
        except (StorageError, TransportError) as error:
            if not is_started:
                raise
            notice = StorageReopening(config.store.storage, str(error))
            if notice != told:
                _LOG.write(notice, logging.WARNING)
                told = notice
            await trio.sleep(config.store.retry_ms / 1000)
