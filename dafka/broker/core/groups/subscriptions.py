"""Kafka's formats of a consumer's subscription and assignment."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

CONSUMER_PROTOCOL = "consumer"
"""The protocol type of groups of consumers. The metadata of other types are opaque."""

_VERSION_AND_COUNT = struct.Struct(">hi")
_LENGTH = struct.Struct(">h")
_COUNT = struct.Struct(">i")
_NO_USER_DATA = _COUNT.pack(-1)


def read_topics(metadata: bytes) -> frozenset[str] | None:
    """Return the topics in a consumer's metadata; None if it does not follow Kafka's format.

    The format begins with a version (16 bits), the number of topics (32 bits) and, for each topic, the length of its
    name (16 bits) and the name. The rest depends on the version and is not read.
    """
    try:
        topics, _ = _read_topics(metadata)
    except (struct.error, ValueError):
        return None
    return topics


class ConsumerSubscription(NamedTuple):
    """What a consumer wants to read, and the logs that it has, by topic."""

    topics: frozenset[str]
    owned: Mapping[str, Sequence[int]]


def read_subscription(metadata: bytes) -> ConsumerSubscription | None:
    """Return the subscription in a consumer's metadata; None if it does not follow Kafka's format.

    What `read_topics` reads is followed by the user's data (their length in 32 bits, or -1) and, from version 1 on, by
    the logs that the consumer has, in the format of `read_assignment` without version.
    """
    try:
        (version,) = _LENGTH.unpack_from(metadata)
        topics, position = _read_topics(metadata)
        (size,) = _COUNT.unpack_from(metadata, position)
        position += _COUNT.size + max(size, 0)
        owned: dict[str, list[int]] = {}
        if version >= 1:
            (count,) = _COUNT.unpack_from(metadata, position)
            owned = _read_logs(metadata, count, position + _COUNT.size)
    except (struct.error, ValueError):
        return None
    return ConsumerSubscription(topics, owned)


def read_assignment(assignment: bytes) -> dict[str, list[int]] | None:
    """Return the logs in a consumer's assignment, by topic; None if it does not follow Kafka's format.

    The format is that of `read_topics`, with the number of logs (32 bits) and their numbers (32 bits each) after each
    name.
    """
    if not assignment:
        return {}
    try:
        count, position = _read_count(assignment)
        return _read_logs(assignment, count, position)
    except (struct.error, ValueError):
        return None


def encode_assignment(logs: Mapping[str, Iterable[int]]) -> bytes:
    """Return a consumer's assignment with these logs, by topic, in version 0 of Kafka's format."""
    parts = [_VERSION_AND_COUNT.pack(0, len(logs))]
    for topic, numbers in logs.items():
        name, ordered = topic.encode(), sorted(numbers)
        parts += [_LENGTH.pack(len(name)), name, struct.pack(f">i{len(ordered)}i", len(ordered), *ordered)]
    return b"".join([*parts, _NO_USER_DATA])


def _read_count(data: bytes) -> tuple[int, int]:
    """Return the number of topics, and the position after it. Raises `ValueError` or `struct.error`."""
    version, count = _VERSION_AND_COUNT.unpack_from(data)
    position = _VERSION_AND_COUNT.size
    if version < 0 or not 0 <= count <= (len(data) - position) // _LENGTH.size:
        raise ValueError("another format")
    return count, position


def _read_topics(metadata: bytes) -> tuple[frozenset[str], int]:
    """Return the topics in a consumer's metadata, and the position after them."""
    count, position = _read_count(metadata)
    topics = set[str]()
    for _ in range(count):
        topic, position = _read_name(metadata, position)
        topics.add(topic)
    return frozenset(topics), position


def _read_logs(data: bytes, count: int, position: int) -> dict[str, list[int]]:
    """Return the logs of a number of topics, by topic. Raises `ValueError` or `struct.error`."""
    if not 0 <= count <= (len(data) - position) // _LENGTH.size:
        raise ValueError("another format")
    found: dict[str, list[int]] = {}
    for _ in range(count):
        topic, position = _read_name(data, position)
        (log_count,) = _COUNT.unpack_from(data, position)
        position += _COUNT.size
        if not 0 <= log_count <= (len(data) - position) // _COUNT.size:
            raise ValueError("another format")
        found.setdefault(topic, []).extend(struct.unpack_from(f">{log_count}i", data, position))
        position += log_count * _COUNT.size
    return found


def _read_name(data: bytes, position: int) -> tuple[str, int]:
    """Return a name, and the position after it. Raises `ValueError` or `struct.error`."""
    (length,) = _LENGTH.unpack_from(data, position)
    position += _LENGTH.size
    if not 0 <= length <= len(data) - position:
        raise ValueError("another format")
    return data[position : position + length].decode(), position + length
