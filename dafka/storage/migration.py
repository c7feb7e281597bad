"""An optional part of a storage plugin: rewriting what earlier releases stored."""

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
        left: What stays in its old form, and why. It can still be read.
    """

    files: int = 0
    records: int = 0
    left: tuple[Damage, ...] = ()


@runtime_checkable
class Migrates(Protocol):
    """An optional part of a storage plugin, for storages that do not rewrite older files when they are opened."""

    async def migrate(self) -> Migration:
        """Rewrite everything that an earlier release stored in an older form. Nothing that is stored changes.

        If the process is killed meanwhile, nothing is lost, and the next call finishes the migration.

        Returns:
            What was rewritten.

        Raises:
            StorageError: If the medium fails.
        """
