"""The interface of an object store, and the two that there are: a bucket, and a folder.

Its functions block, and are called in worker threads. They have three outcomes beside success: `ObjectMissingError`,
`ObjectConflictError` and `ObjectStoreError`. An answer can still be wrong: readers check lengths and
checksums.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

from dafka.errors import StorageError


class ObjectStoreError(StorageError):
    """The object store failed or did not answer in time. Trying again may help."""


class ObjectMissingError(ObjectStoreError):
    """There is no object of this name."""


class ObjectConflictError(ObjectStoreError):
    """The object is not the expected version."""


class Version(NamedTuple):
    """A version of an object, by which a later replacement is conditional.

    Attributes:
        e_tag: The entity tag; None if the store has none.
        version: The number of the version; None if the store has none.
    """

    e_tag: str | None = None
    version: str | None = None


class ListedObject(NamedTuple):
    """An object in a list.

    Attributes:
        name: The name.
        size: The size in bytes.
    """

    name: str
    size: int


class ObjectStore(Protocol):
    """Objects by name. Names are relative to the place at which the store was opened."""

    def read(self, name: str) -> tuple[bytes, Version]:
        """Return an object and its version. Raises `ObjectMissingError`, `ObjectStoreError`."""

    def read_range(self, name: str, start: int, end: int) -> bytes:
        """Return a part of an object; it may be shorter than asked for, which the caller checks.

        Raises `ObjectMissingError`, `ObjectStoreError`.
        """

    def write(self, name: str, data: bytes) -> None:
        """Write an object durably, replacing one that is there.

        Raises `ObjectStoreError`; the object may have been written nevertheless.
        """

    def replace(self, name: str, data: bytes, version: Version | None) -> Version:
        """Replace a version of an object durably, or create it if `version` is None, and return the new version.

        Raises `ObjectConflictError` if the object is another version, or there is one already. Raises
        `ObjectStoreError`; the object may have been replaced nevertheless.
        """

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects; those that are not there are ignored. Raises `ObjectStoreError`."""

    def list(self, prefix: str) -> Iterator[ListedObject]:
        """Yield the objects whose names begin with a prefix that ends in a slash. Raises `ObjectStoreError`."""
