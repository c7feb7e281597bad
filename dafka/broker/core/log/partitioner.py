"""Chooses the log of a record: the same log for the same key, as Kafka's default partitioner does."""

from __future__ import annotations

from collections.abc import Iterator

from dafka.records import RecordBatch

_SEED = 0x9747B28C
_FACTOR = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Return the MurmurHash2 of bytes, with Kafka's seed, as an unsigned number of 32 bits."""
    size = len(data)
    found = _SEED ^ size
    whole = size & ~3
    for position in range(0, whole, 4):
        part = int.from_bytes(data[position : position + 4], "little") * _FACTOR & _MASK
        part = (part ^ part >> 24) * _FACTOR & _MASK
        found = found * _FACTOR & _MASK ^ part
    if size > whole:
        found = (found ^ int.from_bytes(data[whole:], "little")) * _FACTOR & _MASK
    found = (found ^ found >> 13) * _FACTOR & _MASK
    return found ^ found >> 15


def log_of_key(key: bytes, log_count: int) -> int:
    """Return the log of the records with a key."""
    return (murmur2(key) & 0x7FFFFFFF) % log_count


def log_of_address(address: str, log_count: int) -> int:
    """Return the log of the records without a key of a partition, given its address."""
    return log_of_key(address.encode("utf-8", "surrogateescape"), log_count)


def place_records(batch: RecordBatch, log_count: int) -> Iterator[tuple[int, int, int]]:
    """Yield the runs of a batch's records that belong to one log.

    A run is the number of a log, the sequence of its first record, and the number of its records.
    """
    keyless = log_of_address(batch.partition.address, log_count) if log_count > 1 else 0
    if log_count == 1 or batch.keys is None:
        yield keyless, batch.first_sequence, len(batch)
        return
    found: dict[bytes, int] = {}
    before, first = -1, batch.first_sequence
    for sequence, key in enumerate(batch.keys, batch.first_sequence):
        if key is None:
            log = keyless
        elif key in found:
            log = found[key]
        else:
            log = found[key] = log_of_key(key, log_count)
        if log != before:
            if sequence > first:
                yield before, first, sequence - first
            before, first = log, sequence
    yield before, first, batch.end_sequence - first
