"""Which topics a consumer reads: the one thing that a broker reads in a consumer's metadata."""

from __future__ import annotations

import struct

CONSUMER_PROTOCOL = "consumer"
"""The protocol type of groups of consumers. The metadata of other types are opaque."""

_VERSION_AND_COUNT = struct.Struct(">hi")
_LENGTH = struct.Struct(">h")


def read_topics(metadata: bytes) -> frozenset[str] | None:
    """Return the topics that a consumer's metadata names; None if they do not follow Kafka's format.

    The format begins with a version (16 bits), the number of topics (32 bits) and, for each topic, the length of its
    name (16 bits) and the name. What follows depends on the version and is not read.
    """
    try:
        version, count = _VERSION_AND_COUNT.unpack_from(metadata)
        position = _VERSION_AND_COUNT.size
        if version < 0 or not 0 <= count <= (len(metadata) - position) // _LENGTH.size:
            return None
        topics = set[str]()
        for _ in range(count):
            (length,) = _LENGTH.unpack_from(metadata, position)
            position += _LENGTH.size
            if not 0 <= length <= len(metadata) - position:
                return None
            topics.add(metadata[position : position + length].decode())
            position += length
    except (struct.error, UnicodeDecodeError):
        return None
    return frozenset(topics)
