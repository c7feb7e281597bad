"""The fixed octets of RFC 46: command ids, signature, version, and the number ranges."""

from __future__ import annotations

import enum

SIGNATURE = b"\xaa\xa5"
"""RFC 46 also says `AA A0` in its prose; the grammar and its other sentences say this (erratum 1)."""

VERSION = 1
"""RFC 46 also says `%x30` once; the grammar says 1 (erratum 2)."""

NUMBER_4_MAX = 2**32 - 1
NUMBER_8_MAX = 2**64 - 1


class Command(enum.Enum):
    """The nine commands of RFC 46, and one that is this project's (erratum 26); each value is the command's id."""

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


class Dialect(enum.Enum):
    """The two ways nodes write the same messages; every node reads both."""

    RFC46 = "rfc46"
    LIBDAFKA = "libdafka"
