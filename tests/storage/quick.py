"""Storages without worker threads and without waiting for the disk, for tests of thousands of small cases."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest
import trio
import trio.testing

from dafka.storage import Storage
from dafka.storage.filelog import syncing

_Storage = TypeVar("_Storage", bound=Storage)


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


def with_checkpoints(storage: _Storage) -> _Storage:
    """Require that each method of a storage is a checkpoint, so that it can be cancelled, and others can run."""

    def checked(method: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*arguments: Any, **options: Any) -> Any:
            with trio.testing.assert_checkpoints():
                return await method(*arguments, **options)

        return call

    for name in dir(storage):
        method = getattr(storage, name)
        if not name.startswith("_") and inspect.iscoroutinefunction(method):
            setattr(storage, name, checked(method))
    return storage
