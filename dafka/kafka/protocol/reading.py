"""Readers of messages: compiled from the tables, one function for each version.

A reader never takes more memory than a small multiple of the frame, whatever lengths and counts the frame claims: a
length must not exceed the bytes that are left, and neither must a count with the smallest items. As an item can take
one byte in a frame and a hundred in memory, a message also has a limit of items in all its arrays together.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from dafka.errors import WireError
from dafka.kafka.protocol.code import Code, check_version, groups_of, min_size, split_fields
from dafka.kafka.protocol.tables import NIL, NUMBERS, Field, Kind, Message, Struct, default_code, fields_of

ITEMS_MAX = 100_000
"""The default limit of items in a message: those of all arrays, and the tagged fields."""

M = TypeVar("M", bound=Message)
Reader: TypeAlias = Callable[[bytes, int, int], tuple[M, int]]
"""Takes a frame, the position of the message in it, and the limit of items. Returns the message and its end."""


_READERS: dict[tuple[type[Message], int], Any] = {}


def reader_of(message: type[M], version: int) -> Reader[M]:
    """Return the reader of one version of a message.

    It raises `WireError`, and nothing else, for a malformed message. Bytes after the message are left.
    """
    reader: Reader[M] | None = _READERS.get((message, version))
    if reader is None:
        check_version(message, version)
        reader = _READERS[message, version] = _ReaderCode(message, version).reader()
    return reader


class _MalformedError(ValueError):
    """A value is malformed. The function that was compiled adds the name of the field."""

    def __init__(self, expected: str, position: int) -> None:
        self.expected = expected
        self.position = position
        super().__init__(expected)


class _ReaderCode:
    """Writes the code of a reader.

    In the code, `data` is the frame, `p` the position of the next byte, `end` the size of the frame, `left` the number
    of items that may follow, and `n` a length or a count.
    """

    def __init__(self, message: type[Message], version: int) -> None:
        self.message = message
        self.version = version
        self.is_flexible = message.FLEXIBLE.has(version)
        self.code = Code("def run(data, p, left):")
        self.code.names.update(_HELPERS)

    def reader(self) -> Any:
        code, name = self.code, self.message.__name__
        code.add("end = len(data)")
        with code.block("try:"):
            self.add_struct(self.message, "m", name)
            code.add("return m, p")
        with code.block("except failures as error:"):
            code.add("raise failure(error, field_of(error), p, end) from None")
        return code.compile(f"<reader of {name} {self.version}>")

    def add_struct(self, table: type[Struct], target: str, path: str) -> None:
        """Add lines that read a struct into a new instance, the variable `target`."""
        code = self.code
        code.names[table.__name__] = table
        code.add(f"{target} = new({table.__name__})")
        plain, tagged, absent = split_fields(fields_of(table), self.version)
        for each in absent + tagged:
            code.add(f"{target}.{each.name} = {default_code(each)}")
        for group in groups_of(plain):
            first = group[0]
            code.field = f"{path}.{first.name}"
            if first.kind in NUMBERS and not first.is_array:
                self.add_numbers(group, target)
            else:
                self.add_field(first, target, code.field)
        if self.is_flexible:
            code.field = f"{path}.tagged fields"
            self.add_tagged(tagged, target, path)

    def add_numbers(self, group: list[Field], target: str) -> None:
        codes = "".join(each.kind.value for each in group)
        targets = ", ".join(f"{target}.{each.name}" for each in group)
        unpack = self.code.layout(codes, "unpack_from")
        comma = "," if len(group) == 1 else ""
        self.code.add(f"{targets}{comma} = {unpack}(data, p)", f"p += {struct.calcsize('>' + codes)}")

    def add_field(self, each: Field, target: str, path: str) -> None:
        assign = f"{target}.{each.name} = {{}}".format
        is_nullable = each.nullable.has(self.version)
        if each.is_array:
            self.add_array(each, target, path, is_nullable=is_nullable)
        elif each.struct is not None:
            if is_nullable and each.tag is None:
                self.add_nullable_struct(each.struct, f"{target}_{each.name}", assign, path)
                return
            self.add_struct(each.struct, f"{target}_{each.name}", path)
            self.code.add(assign(f"{target}_{each.name}"))
        else:
            self.add_value(each.kind, assign, is_nullable=is_nullable)

    def add_nullable_struct(self, table: type[Struct], target: str, assign: Callable[[str], str], path: str) -> None:
        """Add lines that read a struct behind a byte, which is negative if there is none."""
        code = self.code
        code.add("n = data[p]", "p += 1")
        with code.block("if n > 127:"):
            code.add(assign("None"))
        with code.block("else:"):
            self.add_struct(table, target, path)
            code.add(assign(target))

    def add_value(self, kind: Kind, assign: Callable[[str], str], *, is_nullable: bool) -> None:
        """Add lines that read a value which is neither an array nor a struct, and assign it."""
        code = self.code
        if kind in NUMBERS:
            unpack = code.layout(kind.value, "unpack_from")
            code.add(assign(f"{unpack}(data, p)[0]"), f"p += {NUMBERS[kind]}")
            return
        if kind is Kind.UUID:
            code.add(assign("read_uuid(data, p)"), "p += 16")
            return
        self.add_length("h" if kind is Kind.STRING else "i")
        code.add("q = p + n")
        with code.block("if n < 0:"):
            code.add(assign("None") if is_nullable else "raise bad_length(n, p, end)")
        with code.block("elif q > end:"):
            code.add("raise bad_length(n, p, end)")
        with code.block("else:"):
            code.add(assign(_CONTENTS[kind]), "p = q")

    def add_length(self, layout: str) -> None:
        """Add lines that read a length or a count into `n`; it is negative for null."""
        code = self.code
        if self.is_flexible:
            code.add("n = data[p] - 1", "p += 1")
            with code.block("if n > 126:"):
                code.add("n, p = read_uvarint(data, p - 1)", "n -= 1")
        else:
            unpack = code.layout(layout, "unpack_from")
            code.add(f"n, = {unpack}(data, p)", f"p += {struct.calcsize(layout)}")

    def add_array(self, each: Field, target: str, path: str, *, is_nullable: bool) -> None:
        code, place = self.code, f"{target}.{each.name}"
        self.add_length("i")
        size = min_size(each, self.version, is_flexible=self.is_flexible)
        code.add("left -= n")
        if is_nullable:
            with code.block("if n < 0:"):
                code.add("left += n", f"{place} = None")
        with code.block(f"{'elif' if is_nullable else 'if'} n < 0 or left < 0 or n * {size} > end - p:"):
            code.add(f"raise bad_count(n, {size}, left + n, p, end)")
        with code.block("else:"):
            if each.kind in NUMBERS:
                code.add(f"{place} = [*unpack_from('>%d{each.kind.value}' % n, data, p)]", f"p += n * {size}")
                return
            item = f"{target}_{each.name}"
            code.add(f"{item}s = {place} = []")
            with code.block("for _ in range(n):"):
                if each.struct is not None:
                    self.add_struct(each.struct, item, path)
                    code.field = path
                    code.add(f"{item}s.append({item})")
                else:
                    self.add_value(each.kind, f"{item}s.append({{}})".format, is_nullable=False)

    def add_tagged(self, tagged: list[Field], target: str, path: str) -> None:
        """Add lines that read the tagged fields of a struct; unknown ones are skipped."""
        code = self.code
        code.add("n = data[p]", "p += 1")
        with code.block("if n:"):
            code.add("n, p = read_uvarint(data, p - 1)", "left -= n")
            with code.block("if left < 0 or n * 2 > end - p:"):
                code.add("raise bad_count(n, 2, left + n, p, end)")
            with code.block("for _ in range(n):"):
                code.add("tag, p = read_uvarint(data, p)", "n, p = read_uvarint(data, p)")
                stop = f"{target}_stop"
                code.add(f"{stop} = p + n")
                with code.block(f"if {stop} > end:"):
                    code.add("raise bad_length(n, p, end)")
                for number, each in enumerate(tagged):
                    with code.block(f"{'elif' if number else 'if'} tag == {each.tag}:"):
                        code.field = f"{path}.{each.name}"
                        self.add_field(each, target, code.field)
                        with code.block(f"if p != {stop}:"):
                            code.add(f"raise bad_end({stop}, p)")
                        code.field = f"{path}.tagged fields"
                code.add(f"p = {stop}")


_CONTENTS = {Kind.STRING: "data[p:q].decode()", Kind.BYTES: "data[p:q]", Kind.RECORDS: "memoryview(data)[p:q]"}


def read_uvarint(data: bytes, position: int) -> tuple[int, int]:
    """Return the number at a position, which has at most 32 bits, and the position after it."""
    found = shift = 0
    for end in range(position, position + 5):
        byte = data[end]
        found |= (byte & 0x7F) << shift
        if byte < 128:
            if found >> 32:
                break
            return found, end + 1
        shift += 7
    raise _MalformedError("a number of 32 bits", position)


def _read_uuid(data: bytes, position: int) -> uuid.UUID:
    found = data[position : position + 16]
    if len(found) < 16:
        raise IndexError
    return uuid.UUID(bytes=found) if any(found) else NIL


def _bad_length(length: int, position: int, end: int) -> _MalformedError:
    return _MalformedError(f"a length from 0 to {end - position}, not {length}", position)


def _bad_count(count: int, size: int, left: int, position: int, end: int) -> _MalformedError:
    return _MalformedError(f"a count from 0 to {min((end - position) // size, left)}, not {count}", position)


def _bad_end(stop: int, position: int) -> _MalformedError:
    return _MalformedError(f"its end at byte {stop}", position)


def _failure(error: Exception, field: str, position: int, end: int) -> WireError:
    if isinstance(error, _MalformedError):
        return WireError(field, error.expected, error.position)
    if isinstance(error, UnicodeDecodeError):
        return WireError(field, "text in UTF-8", position)
    return WireError(field, f"more bytes, {max(end - position, 0)} are left", position)


_HELPERS: dict[str, Any] = {
    "NIL": NIL,
    "new": object.__new__,
    "unpack_from": struct.unpack_from,
    "read_uvarint": read_uvarint,
    "read_uuid": _read_uuid,
    "bad_length": _bad_length,
    "bad_count": _bad_count,
    "bad_end": _bad_end,
    "failures": (struct.error, IndexError, ValueError),
    "failure": _failure,
}
