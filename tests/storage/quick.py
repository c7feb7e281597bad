"""Storages without worker threads and without waiting for the disk, for tests of thousands of small cases."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import trio

from dafka.storage.filelog import syncing


@contextmanager
def quickly() -> Iterator[None]:
    """Let storages work in the thread of the event loop, and not wait for the disk: several times as fast."""

    async def run_sync(function: Callable[..., Any], *arguments: Any, **_options: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return function(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trio.to_thread, "run_sync", run_sync)
        patch.setattr(trio.from_thread, "check_cancelled", lambda: None)
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, lambda fd: None)
        patch.setattr(syncing, "sync_filesystem", lambda fd: None)
        yield
