"""The grammar's primitive rules: `number-1/4/8`, `string`, `longstr`, `strings`. Big-endian, bounded, total.

The reader never looks past its frame and never trusts a length or a count before checking it against what is left.
"""

from __future__ import annotations

import struct

from dafka.errors import WireError
from dafka.records import TEXT_BYTES_MAX, decode_text, encode_text

STRINGS_MAX = 65_536
"""Topics in one CONSUMER-HELLO: reading more would keep a node from its other work for too long."""

_NUMBER_4 = struct.Struct(">I")
NUMBER_8 = struct.Struct(">Q")


class FrameReader:
    """Reads one frame's fields from the start; every failure is a `WireError` with the field and the offset."""

    __slots__ = ("_data", "offset")

    def __init__(self, data: bytes, offset: int = 0) -> None:
        self._data = data
        self.offset = offset

    def octets(self, count: int, field: str) -> bytes:
        end = self.offset + count
        if end > len(self._data):
            left = len(self._data) - self.offset
            raise WireError(field, f"{count} octets, the frame has {left} left", self.offset)
        octets = self._data[self.offset : end]
        self.offset = end
        return octets

    def literal(self, expected: bytes, field: str) -> None:
        start = self.offset
        if self.octets(len(expected), field) != expected:
            raise WireError(field, expected.hex(" ").upper(), start)

    def number_1(self, field: str) -> int:
        return self.octets(1, field)[0]

    def number_4(self, field: str) -> int:
        return int(_NUMBER_4.unpack(self.octets(4, field))[0])

    def number_8(self, field: str) -> int:
        return int(NUMBER_8.unpack(self.octets(8, field))[0])

    def string(self, field: str) -> str:
        return decode_text(self.octets(self.number_1(field), field))

    def longstr(self, field: str) -> str:
        start = self.offset
        length = self.number_4(field)
        if length > TEXT_BYTES_MAX:
            raise WireError(field, f"at most {TEXT_BYTES_MAX} octets, not {length}", start)
        return decode_text(self.octets(length, field))

    def strings(self, field: str) -> tuple[str, ...]:
        start = self.offset
        count = self.number_4(field)
        if count > STRINGS_MAX:
            raise WireError(field, f"at most {STRINGS_MAX} strings, not {count}", start)
        if count * 4 > len(self._data) - self.offset:
            raise WireError(field, f"a count that the frame has room for, not {count}", start)
        data, end, place = self._data, len(self._data), self.offset
        texts: list[str] = []
        for _ in range(count):
            if place + 4 > end:
                break
            (length,) = _NUMBER_4.unpack_from(data, place)
            if length > TEXT_BYTES_MAX or place + 4 + length > end:
                break
            place += 4 + length
            texts.append(decode_text(data[place - length : place]))
        self.offset = place
        if len(texts) < count:
            self.longstr(field)  # which says what is wrong with it
        return tuple(texts)

    def end(self) -> None:
        if self.offset != len(self._data):
            raise WireError("frame", f"its end, {len(self._data) - self.offset} octets follow", self.offset)


def write_number_4(value: int) -> bytes:
    return _NUMBER_4.pack(value)


def write_number_8(value: int) -> bytes:
    return NUMBER_8.pack(value)


def write_string(value: str, field: str) -> bytes:
    octets = encode_text(value, field)
    return bytes((len(octets),)) + octets


def write_longstr(value: str, field: str) -> bytes:
    octets = encode_text(value, field)
    return _NUMBER_4.pack(len(octets)) + octets


def write_strings(values: tuple[str, ...], field: str) -> bytes:
    return _NUMBER_4.pack(len(values)) + b"".join(write_longstr(value, field) for value in values)
