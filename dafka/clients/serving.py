"""Stores and towers as blocks, for programs without a nursery of Trio."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from dafka.config import Config
from dafka.exceptions import unwrap_group
from dafka.roles import Store, Tower, serve_store, serve_tower


@asynccontextmanager
async def run_store(config: Config | None) -> AsyncIterator[Store]:
    """Run a store while the block runs."""
    with unwrap_group():
        async with trio.open_nursery() as nursery:
            store: Store = await nursery.start(serve_store, config)
            yield store
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def run_tower(config: Config | None) -> AsyncIterator[Tower]:
    """Run a tower while the block runs."""
    with unwrap_group():
        async with trio.open_nursery() as nursery:
            tower: Tower = await nursery.start(serve_tower, config)
            yield tower
            nursery.cancel_scope.cancel()
