"""Compaction: keeps the last record of each key.

A pass reads the records that were appended since the last pass, and remembers the last sequence of each key. Then the
storage goes through the partition from its beginning, and removes each record that is not the last one of its key. The
memory for keys is limited. When it is full, the pass ends, and the next pass continues there.

A record without a key always stays. A tombstone, whose value is null, is removed some time after it was stored; a
reader that reads a partition from its beginning within that time learns of every deletion.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from hashlib import blake2b
from itertools import repeat
from operator import gt
from typing import cast

import attrs

from dafka.errors import StorageCorruptError
from dafka.packed_bytes import PackedContents
from dafka.records import Partition, RecordBatch
from dafka.storage.base import Storage
from dafka.storage.capabilities import Compacted, CompactsPartitions, Throttle

KEYS_MAX = 500_000
"""The default number of keys that one pass can remember: about 100 MB."""

KEY_BYTES_MAX = 31
"""The maximum length of keys that are kept unhashed, in bytes. Longer keys are replaced by a hash of 32 bytes."""

NOTE_RECORDS_MAX = 2000
"""The number of records whose keys are added at a time: half a millisecond in which nothing else runs."""


class LatestKeys:
    """The last position, such as the sequence, of each key. The last call of `add` may exceed the maximum of keys."""

    def __init__(self, keys_max: int = KEYS_MAX) -> None:
        self._keys_max = keys_max
        self._positions: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._positions)

    @property
    def has_capacity(self) -> bool:
        """Whether more keys can be added."""
        return len(self._positions) < self._keys_max

    def add(self, keys: Sequence[bytes | None], positions: Iterable[int]) -> None:
        """Remember the positions of records. Positions increase."""
        self._positions.update(zip(_short_keys(keys), positions, strict=False))  # type: ignore[arg-type]
        self._positions.pop(None, None)  # type: ignore[call-overload]

    def find_superseded(self, keys: Sequence[bytes | None], positions: Iterable[int]) -> bytes:
        """Return for each record 1 if its key has a later one, else 0."""
        latest = map(self._positions.get, cast(Iterable[bytes], _short_keys(keys)), repeat(-1))
        return bytes(map(gt, cast(Iterable[int], latest), positions))


def _short_keys(keys: Sequence[bytes | None]) -> Iterable[bytes | None]:
    """Return keys, with long ones replaced by hashes. A hash has 32 bytes, so that it equals no short key."""
    longest = keys.longest() if isinstance(keys, PackedContents) else max(map(len, filter(None, keys)), default=0)
    if longest <= KEY_BYTES_MAX:
        return keys
    return [
        key if key is None or len(key) <= KEY_BYTES_MAX else blake2b(key, digest_size=KEY_BYTES_MAX + 1).digest()
        for key in keys
    ]


def find_tombstones(batch: RecordBatch, stored_before: int) -> bytes:
    """Return for each record 1 if it is a tombstone that was stored before a time, else 0."""
    keys, times = batch.keys, batch.stored_at
    if keys is None or times is None or isinstance(batch.values, PackedContents):
        return bytes(len(batch))
    return bytes(
        value is None and key is not None and time < stored_before
        for value, key, time in zip(batch.values, keys, times, strict=True)
    )


@attrs.frozen(kw_only=True)
class CompactionPolicy:
    """How a topic is compacted."""

    dirty_ratio: float = 0.5
    """A pass begins when at least this fraction of a partition's bytes was appended after the last pass."""
    tombstone_ms: int = 24 * 3600 * 1000
    """How long a tombstone stays after it was stored, in milliseconds."""
    keys_max: int = KEYS_MAX
    """The number of different keys that one pass can remember."""


@attrs.frozen
class Pass:
    """The result of a pass: what was removed, and the sequence up to which the partition is now compacted."""

    clean_end: int
    done: Compacted


async def map_keys(
    storage: Storage,
    partition: Partition,
    first_sequence: int,
    end_sequence: int,
    latest: LatestKeys,
    throttle: Throttle,
) -> int:
    """Add the keys of a range of a partition, as far as they fit. Return the sequence after the last added one.

    Raise `StorageError` if the storage fails. Damaged records are skipped.
    """
    sequence = first_sequence
    while sequence < end_sequence and latest.has_capacity:
        try:
            batch = await storage.read(partition, sequence, min(end_sequence - sequence, NOTE_RECORDS_MAX))
        except StorageCorruptError as error:  # records before it then count as the last of their keys
            sequence = min(max(error.end_sequence, sequence + 1), end_sequence)
            continue
        if batch is None:
            info = (await storage.partitions(partition.topic)).get(partition)
            if info is None or info.earliest_sequence <= sequence:
                return sequence
            sequence = info.earliest_sequence  # retention has dropped the records before it
            continue
        if batch.keys is not None:
            latest.add(batch.keys, range(sequence, batch.end_sequence))
        sequence = batch.end_sequence
        await throttle(batch.content_bytes)
    return sequence


async def compact_partition(
    storage: Storage,
    partition: Partition,
    clean_end: int,
    policy: CompactionPolicy,
    time_ms: int,
    throttle: Throttle,
    *,
    end_max: int | None = None,
) -> Pass | None:
    """Compact a partition if enough was appended since the last pass, which ended at `clean_end`.

    Records from `end_max` on are not compacted. Damaged records are kept. Return None if no pass was due. Raise
    `StorageError` if the storage fails.
    """
    assert isinstance(storage, CompactsPartitions)
    found = await storage.find_compactable(partition, clean_end)
    if found is None:
        return None
    end = found.end_sequence if end_max is None else min(found.end_sequence, end_max)
    total = found.clean_bytes + found.dirty_bytes
    if end <= clean_end or not total or found.dirty_bytes < policy.dirty_ratio * total:
        return None
    latest = LatestKeys(policy.keys_max)
    noted_to = await map_keys(storage, partition, clean_end, end, latest, throttle)
    stored_before = time_ms - policy.tombstone_ms
    find_removed = partial(choose, latest=latest, stored_before=stored_before, end_sequence=noted_to)
    return Pass(noted_to, await storage.compact(partition, noted_to, find_removed, throttle))


def choose(batch: RecordBatch, latest: LatestKeys, stored_before: int, end_sequence: int) -> bytes:
    """Return for each record of a batch 1 if a pass removes it, else 0.

    The pass has remembered the keys up to `end_sequence`, and removes tombstones that were stored before a time.
    """
    if batch.keys is None or batch.first_sequence >= end_sequence:
        return bytes(len(batch))
    superseded = latest.find_superseded(batch.keys, range(batch.first_sequence, batch.end_sequence))
    expired = find_tombstones(batch, stored_before)
    if 1 in expired:
        superseded = bytes(map(max, superseded, expired))
    kept = max(batch.end_sequence - end_sequence, 0)
    return superseded[: len(superseded) - kept] + bytes(kept)
