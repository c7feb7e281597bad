"""Stores and towers as blocks, for programs without a nursery of Trio."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from dafka import roles
from dafka.config import Config
from dafka.exceptions import unwrap_group
from dafka.roles import Store, Tower


@asynccontextmanager
async def serve_store(config: Config | None = None) -> AsyncIterator[Store]:
    """Run a store in the background; see `dafka.serve_store`, whose exceptions it has.

    Args:
        config: The configuration; the defaults if None.

    Yields:
        The store. Leaving the block, or closing it, ends it when it has written what it has received.
    """
    with unwrap_group():
        async with trio.open_nursery() as nursery:
            store: Store = await nursery.start(roles.serve_store, config)
            yield store
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def serve_tower(config: Config | None = None) -> AsyncIterator[Tower]:
    """Run a tower in the background; see `dafka.serve_tower`, whose exceptions it has.

    Args:
        config: The configuration; the defaults if None.

    Yields:
        The tower. Leaving the block, or closing it, ends it.
    """
    with unwrap_group():
        async with trio.open_nursery() as nursery:
            tower: Tower = await nursery.start(roles.serve_tower, config)
            yield tower
            nursery.cancel_scope.cancel()
