"""The fixed values of RFC 46: command ids, signature, version and number ranges."""

from __future__ import annotations

import enum

SIGNATURE = b"\xaa\xa5"
"""The first two bytes of a header. The prose of RFC 46 also says `AA A0`; its grammar says this (erratum 1)."""

VERSION = 1
"""The protocol version in every header. RFC 46 also says `%x30` once; its grammar says 1 (erratum 2)."""

NUMBER_4_MAX = 2**32 - 1
"""The largest `number-4` of the grammar."""

NUMBER_8_MAX = 2**64 - 1
"""The largest `number-8` of the grammar."""


class Command(enum.Enum):
    """A command. The value is its id: the first byte of the topic frame, and a byte of the header.

    Nine commands are those of RFC 46. Extensions of this project are `DIRECT_EARLIEST` (erratum 26), `GET_TOPICS` and
    `DIRECT_TOPICS` (erratum 27), `RECORD_BATCH` and `DIRECT_RECORD_BATCH` (docs/spec/record-batches.md), `GET_POSITION`
    and `DIRECT_POSITION` (docs/spec/positions-by-time.md).
    """

    RECORD = b"M"
    DIRECT_RECORD = b"D"
    FETCH = b"F"
    ACK = b"K"
    HEAD = b"H"
    DIRECT_HEAD = b"E"
    GET_HEADS = b"G"
    CONSUMER_HELLO = b"W"
    STORE_HELLO = b"L"
    DIRECT_EARLIEST = b"T"
    GET_TOPICS = b"Q"
    DIRECT_TOPICS = b"P"
    RECORD_BATCH = b"B"
    DIRECT_RECORD_BATCH = b"C"
    GET_POSITION = b"S"
    DIRECT_POSITION = b"R"


class Dialect(enum.Enum):
    """A way to write messages. Every node reads both dialects, and writes the one of its `wire` setting.

    `RFC46` follows the grammar of RFC 46, `LIBDAFKA` the C implementation (`dafka.wire.codec` shows both).
    """

    RFC46 = "rfc46"
    LIBDAFKA = "libdafka"
