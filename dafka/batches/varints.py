"""Kafka's numbers of variable length: seven bits a byte, lowest first, with the sign in the lowest bit ("zigzag")."""

from __future__ import annotations

from dafka.errors import BatchError

_SMALL = [bytes((number,)) for number in range(128)]

_NATURALS_KEPT = 8192
_naturals: list[bytes] = []


def write_natural(number: int) -> bytes:
    """Return a number that is not negative. Small ones are kept."""
    if number >= _NATURALS_KEPT:
        return write_varint(number)
    if not _naturals:
        _naturals.extend(map(write_varint, range(_NATURALS_KEPT)))
    return _naturals[number]


def write_varint(number: int) -> bytes:
    """Return a number of at most 64 bits, sign included, in as few bytes as possible."""
    left = number << 1 if number >= 0 else ~(number << 1)
    if left < 128:
        return _SMALL[left]
    encoded = bytearray()
    while left >= 128:
        encoded.append(left & 0x7F | 0x80)
        left >>= 7
    encoded.append(left)
    return bytes(encoded)


def read_varint(data: bytes, position: int, end: int, field: str, bits: int = 32) -> tuple[int, int]:
    """Read a number that may use more bytes than necessary.

    Args:
        data: Bytes that contain the number.
        position: Where it starts.
        end: Where the data that it belongs to ends.
        field: What the number is, for the error.
        bits: The number of bits that it must fit in, 32 or 64.

    Returns:
        The number, and the position after it.

    Raises:
        BatchError: The number is incomplete or too large.
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
