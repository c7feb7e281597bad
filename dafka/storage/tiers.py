"""Facts about a cold tier that can be read without opening it, and the interface of an open one."""

from __future__ import annotations

import os
from typing import Protocol, runtime_checkable

import attrs

from dafka.records import Partition

TIER_FILE = "tier.json"
"""The file with the location of the cold tier."""


TIER_FOLDER = "cold"
"""The folder of that file in a file log."""


def tier_folder(url: str) -> str | None:
    """Return the folder, which may not exist, where a hot storage keeps the description of its cold tier.

    Return None if the storage is not a file or folder of a known kind.
    """
    scheme, _, location = url.partition(":")
    path = location.partition("?")[0].rstrip("/")
    if not path or "\0" in path:
        return None
    if scheme == "filelog":
        return f"{path}/{TIER_FOLDER}"
    return f"{path}-{TIER_FOLDER}" if scheme == "sqlite" else None


def has_tier(url: str) -> bool:
    """Return whether a storage has a cold tier."""
    folder = tier_folder(url)
    return folder is not None and os.path.isfile(f"{folder}/{TIER_FILE}")


@attrs.frozen(kw_only=True)
class TierStatistics:
    """The contents of a cold tier, and counters since its storage was opened.

    Attributes:
        place: The URL of the object store, without options.
        segments: The number of its objects.
        records: Their records.
        content_bytes: The size of their records, in bytes.
        object_bytes: The size of the objects, in bytes.
        moved_records: Records that were moved.
        moved_bytes: The size of the objects that they were moved to, in bytes.
        move_failures: Attempts to move a segment that failed.
        move_error: Why the latest attempt failed; empty if it succeeded.
        due_bytes: The size of the records that should have been moved by now, in bytes.
        requests: Requests to the object store.
        request_failures: Requests that failed.
        request_error: The latest failure; empty if the latest request succeeded.
        wrong_answers: Pieces of objects that differed from the written ones, and were requested again.
        damaged: Pieces that differed again, so that their records cannot be read.
        cache_hits: Reads that the cache answered.
        cache_misses: Reads for which an object was fetched.
        cached_bytes: The size of the cache, in bytes.
        is_stale: Whether the object store has not answered yet, so that the copy of its manifest is used.
    """

    place: str
    segments: int
    records: int
    content_bytes: int
    object_bytes: int
    moved_records: int
    moved_bytes: int
    move_failures: int
    move_error: str
    due_bytes: int
    requests: int
    request_failures: int
    request_error: str
    wrong_answers: int
    damaged: int
    cache_hits: int
    cache_misses: int
    cached_bytes: int
    is_stale: bool


@runtime_checkable
class HasColdTier(Protocol):
    """A storage with a cold tier."""

    def tier_statistics(self) -> TierStatistics:
        """Return the contents of the cold tier, and the counters since the storage was opened."""

    def cold_end(self, partition: Partition) -> int:
        """Return the sequence up to which the records of a partition are in the cold tier; 0 if none are."""

    def object_urls(self, topic: str | None = None) -> list[str]:
        """Return the URLs of the objects, all of them or those of a topic, in the order of their records."""

    async def move_due(self) -> int:
        """Move all segments that are due to the cold tier. Return the number of segments. Raises `StorageError`."""
