"""An object store that fails or answers wrongly, as a test tells it to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from dafka.storage.cold.object_store import ListedObject, ObjectStore, ObjectStoreError, Version

_T = TypeVar("_T")

Fault = Callable[[str, str], "Callable[[bytes], bytes] | None"]
"""Gets the operation and the name of the object. It raises, or returns how to change what is read or written."""


class FaultyStore:
    """An object store in front of another one.

    Args:
        store: The other one.
        fault: Asked before each operation.
    """

    def __init__(self, store: ObjectStore, fault: Fault) -> None:
        self._store = store
        self.fault = fault

    def read(self, name: str) -> tuple[bytes, Version]:
        change = self.fault("read", name)
        data, version = self._store.read(name)
        return (change(data) if change else data), version

    def read_range(self, name: str, start: int, end: int) -> bytes:
        change = self.fault("read_range", name)
        data = self._store.read_range(name, start, end)
        return change(data) if change else data

    def write(self, name: str, data: bytes) -> None:
        change = self.fault("write", name)
        self._store.write(name, change(data) if change else data)
        self.fault("after write", name)

    def replace(self, name: str, data: bytes, version: Version | None) -> Version:
        self.fault("replace", name)
        done = self._store.replace(name, data, version)
        self.fault("after replace", name)
        return done

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            self.fault("delete", name)
            self._store.delete([name])
            self.fault("after delete", name)

    def list(self, prefix: str) -> Iterator[ListedObject]:
        self.fault("list", prefix)
        return self._store.list(prefix)


def fail(operation: str, name: str) -> None:
    """Fail as a server does that answers with status 500."""
    raise ObjectStoreError(f"{operation} of {name} failed")
