"""Kafka's formats of a consumer's subscription and assignment."""

from __future__ import annotations

import struct

CONSUMER_PROTOCOL = "consumer"
"""The protocol type of groups of consumers. The metadata of other types are opaque."""

_VERSION_AND_COUNT = struct.Struct(">hi")
_LENGTH = struct.Struct(">h")
_COUNT = struct.Struct(">i")


def read_topics(metadata: bytes) -> frozenset[str] | None:
    """Return the topics in a consumer's metadata; None if it does not follow Kafka's format.

    The format begins with a version (16 bits), the number of topics (32 bits) and, for each topic, the length of its
    name (16 bits) and the name. The rest depends on the version and is not read.
    """
    try:
        count, position = _read_count(metadata)
        topics = set[str]()
        for _ in range(count):
            topic, position = _read_name(metadata, position)
            topics.add(topic)
    except (struct.error, ValueError):
        return None
    return frozenset(topics)


def read_assignment(assignment: bytes) -> dict[str, list[int]] | None:
    """Return the logs in a consumer's assignment, by topic; None if it does not follow Kafka's format.

    The format is that of `read_topics`, with the number of logs (32 bits) and their numbers (32 bits each) after each
    name.
    """
    found: dict[str, list[int]] = {}
    if not assignment:
        return found
    try:
        count, position = _read_count(assignment)
        for _ in range(count):
            topic, position = _read_name(assignment, position)
            (log_count,) = _COUNT.unpack_from(assignment, position)
            position += _COUNT.size
            if not 0 <= log_count <= (len(assignment) - position) // _COUNT.size:
                return None
            logs = struct.unpack_from(f">{log_count}i", assignment, position)
            position += log_count * _COUNT.size
            found.setdefault(topic, []).extend(logs)
    except (struct.error, ValueError):
        return None
    return found


def _read_count(data: bytes) -> tuple[int, int]:
    """Return the number of topics, and the position after it. Raises `ValueError` or `struct.error`."""
    version, count = _VERSION_AND_COUNT.unpack_from(data)
    position = _VERSION_AND_COUNT.size
    if version < 0 or not 0 <= count <= (len(data) - position) // _LENGTH.size:
        raise ValueError("another format")
    return count, position


def _read_name(data: bytes, position: int) -> tuple[str, int]:
    """Return a name, and the position after it. Raises `ValueError` or `struct.error`."""
    (length,) = _LENGTH.unpack_from(data, position)
    position += _LENGTH.size
    if not 0 <= length <= len(data) - position:
        raise ValueError("another format")
    return data[position : position + length].decode(), position + length
