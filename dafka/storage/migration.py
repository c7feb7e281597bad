"""An optional part of a storage plugin: rewriting data of earlier releases."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import attrs

from dafka.storage.base import Damage


@attrs.frozen
class Migration:
    """The result of a migration.

    Attributes:
        files: The number of files that were rewritten.
        records: The number of records in them.
        left: The files that keep their old form, and why. They can still be read.
    """

    files: int = 0
    records: int = 0
    left: tuple[Damage, ...] = ()


@runtime_checkable
class Migrates(Protocol):
    """An optional part of a storage plugin, for storages that do not rewrite older files when they are opened."""

    async def migrate(self) -> Migration:
        """Rewrite everything that an earlier release stored in an older form. The records do not change.

        If the process is killed meanwhile, nothing is lost, and the next call finishes the migration.

        Returns:
            The result.

        Raises:
            StorageError: If the medium fails.
        """
