"""The stores that a query follows, held open between its looks at them: opening them costs more than a look.

Reading takes no lock that outlives a look, so a store that is held open here is as free as any.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack

from anyio.from_thread import BlockingPortal, start_blocking_portal

from dafka.spark.offsets import Name
from dafka.spark.stores import Held, hold
from dafka.storage import Storage, open_storage
from dafka.storage.filelog.layout import MARKER_FILE


class StoreKeeper:
    """Opens what it is asked about, and opens it again where another file has taken its place."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._portal: BlockingPortal | None = None
        self._storages: dict[str, Storage] = {}
        self._identities: list[tuple[str, object]] = []

    def held(self, urls: Sequence[str]) -> dict[Name, Held]:
        """What these stores hold at this moment, by partition. Raises `StorageError`."""
        identities = [(url, _identity(url)) for url in urls]
        if self._portal is None or identities != self._identities:
            self.close()
            self._portal = self._stack.enter_context(start_blocking_portal("trio"))
            for url in urls:
                opening = self._portal.wrap_async_context_manager(open_storage(url, read_only=True))
                self._storages[url] = self._stack.enter_context(opening)
            self._identities = identities
        return self._portal.call(hold, self._storages)

    def find_sequence_by_time(self, held: Held, stored_at: int) -> int:
        """The first offset stored at this time or later, by the store that reaches furthest; else the end."""
        assert self._portal is not None, "nothing is held before it is asked for"
        storage = self._storages[held.replicas[0].url]
        return self._portal.call(storage.find_sequence_by_time, held.partition, stored_at)

    def close(self) -> None:
        """Closes what is open. May be called again."""
        self._portal = None
        self._storages = {}
        self._stack.close()


def _identity(url: str) -> object:
    """What tells one store from another that has taken its place: its file, or its folder's marker."""
    path = url.partition(":")[2].partition("?")[0]
    try:
        status = os.stat(f"{path}/{MARKER_FILE}" if url.startswith("filelog:") else path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
