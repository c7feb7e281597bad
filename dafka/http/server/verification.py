"""Verifies a broker's storage when an operator requests it."""

from __future__ import annotations

import logging
from typing import Literal, TypeAlias

import trio

from dafka.errors import StorageError
from dafka.storage import Storage
from dafka.storage.base import Damage
from dafka.storage.plugin_helpers import now_ms
from dafka.storage.tools.verify import verify_storage

_LOGGER = logging.getLogger("dafka.http")

State: TypeAlias = Literal["none", "running", "done", "failed"]


class StorageVerification:
    """The latest verification. One runs at a time, and the broker continues to work.

    Args:
        storage: The storage.

    Attributes:
        state: Whether it has run, is running or has failed.
        records_read: The number of records read so far.
        records_total: The number of records to read.
        partitions: The partitions that were read, when it has finished.
        damages: The damage that was found, when it has finished.
        error: Why it failed; empty if it did not.
        started_at: When it started, in milliseconds since 1970; None if it has not.
        finished_at: When it ended, in milliseconds since 1970; None if it has not.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._wanted = trio.Event()
        self.state: State = "none"
        self._reset()

    def _reset(self) -> None:
        self.records_read = 0
        self.records_total = 0
        self.partitions = 0
        self.damages: tuple[Damage, ...] = ()
        self.error = ""
        self.started_at: int | None = None
        self.finished_at: int | None = None

    def start(self) -> bool:
        """Start a verification. Return False if one is running."""
        if self.state == "running":
            return False
        self._reset()
        self.state = "running"
        self.started_at = now_ms()
        self._wanted.set()
        return True

    async def run(self) -> None:
        """Verify the storage on request, until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            try:
                found = await verify_storage(self._storage, progress=self._note_progress)
            except StorageError as error:
                self.state, self.error = "failed", str(error)
            except Exception:
                # A bug in this program, or in a plugin, must not stop the broker.
                self.state, self.error = "failed", "the broker's log has the reason"
                _LOGGER.exception("The verification of the storage failed")
            else:
                self.records_read = found.records
                self.partitions, self.damages = found.partitions, found.damages
                self.state = "done"
            self.finished_at = now_ms()

    def _note_progress(self, records_read: int, records_total: int | None) -> None:
        self.records_read, self.records_total = records_read, records_total or 0
