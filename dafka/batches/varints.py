"""Kafka's numbers of variable length: seven bits a byte, lowest first.

Signed numbers have their sign in the lowest bit ("zigzag"); unsigned ones have none.
"""

from __future__ import annotations

from dafka.errors import BatchError

SMALL_UVARINTS = [bytes((number,)) for number in range(128)]
"""The unsigned numbers of one byte."""

_NATURALS_KEPT = 8192
_naturals: list[bytes] = []


def write_natural(number: int) -> bytes:
    """Encode a number that is not negative. Small ones are cached."""
    if number >= _NATURALS_KEPT:
        return write_varint(number)
    if not _naturals:
        _naturals.extend(map(write_varint, range(_NATURALS_KEPT)))
    return _naturals[number]


def write_varint(number: int) -> bytes:
    """Encode a number of at most 64 bits, including the sign, in as few bytes as possible."""
    left = number << 1 if number >= 0 else ~(number << 1)
    return SMALL_UVARINTS[left] if left < 128 else write_uvarint(left)


def write_uvarint(number: int) -> bytes:
    """Encode a number that is not negative, without a sign, in as few bytes as possible."""
    if number < 128:
        return SMALL_UVARINTS[number]
    encoded = bytearray()
    while number >= 128:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def read_varint(data: bytes, position: int, end: int, field: str, bits: int = 32) -> tuple[int, int]:
    """Read a number that may use more bytes than necessary; return it, and the position after it.

    Raise `BatchError`, which names the field, if it is incomplete or does not fit in 32 or 64 bits.
    """
    if position < end and (byte := data[position]) < 128:
        return byte >> 1 ^ -(byte & 1), position + 1
    found = shift = 0
    start = position
    while position < end:
        byte = data[position]
        position += 1
        found |= (byte & 0x7F) << shift
        shift += 7
        if byte < 128:
            if found >> bits:
                break
            return found >> 1 ^ -(found & 1), position
        if shift >= bits:
            break
    else:
        raise BatchError(field, "a complete number", start)
    raise BatchError(field, f"a number of {bits} bits", start)
