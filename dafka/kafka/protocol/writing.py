"""Writers of messages: compiled from the tables, one function for each version."""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, TypeAlias

from dafka.batches.varints import SMALL_UVARINTS, write_uvarint
from dafka.errors import EncodingError
from dafka.kafka.protocol.code import Code, check_version, groups_of, split_fields
from dafka.kafka.protocol.tables import NIL, NUMBERS, Field, Kind, Message, Struct, default_code, fields_of

Buffer: TypeAlias = bytes | memoryview
Writer: TypeAlias = Callable[[Message, "list[Buffer]"], None]
"""Takes a message, and a list to which it appends what the message consists of."""


@functools.cache
def writer_of(message: type[Message], version: int) -> Writer:
    """Return the writer of one version of a message. Fields that the version does not have are left out.

    It raises `EncodingError` for a value that the version cannot carry. Records are not copied.
    """
    check_version(message, version)
    return _WriterCode(message, version).writer()


class _WriterCode:
    """Writes the code of a writer.

    In the code, `add` appends to the list, `v` is a value, `b` an encoded text and `n` a length or a count.
    """

    def __init__(self, message: type[Message], version: int) -> None:
        self.message = message
        self.version = version
        self.is_flexible = message.FLEXIBLE.has(version)
        self.code = Code("def run(m, parts):")
        self.code.names.update(_HELPERS)

    def writer(self) -> Writer:
        code, name = self.code, self.message.__name__
        code.add("add = parts.append")
        with code.block("try:"):
            self.add_struct(self.message, "m", name)
        with code.block("except failures as error:"):
            code.add(f"raise failure(error, field_of(error), {self.version}) from None")
        compiled: Writer = code.compile(f"<writer of {name} {self.version}>")
        return compiled

    def add_struct(self, table: type[Struct], source: str, path: str) -> None:
        code = self.code
        plain, tagged, _ = split_fields(fields_of(table), self.version)
        for group in groups_of(plain):
            first = group[0]
            code.field = f"{path}.{first.name}"
            if first.kind in NUMBERS and not first.is_array:
                pack = code.layout("".join(each.kind.value for each in group), "pack")
                code.add(f"add({pack}({', '.join(f'{source}.{each.name}' for each in group)}))")
            else:
                self.add_field(first, f"{source}.{first.name}", code.field)
        if self.is_flexible:
            code.field = f"{path}.tagged fields"
            self.add_tagged(tagged, source, path)
        elif not plain:
            code.add("pass")

    def add_field(self, each: Field, source: str, path: str) -> None:
        is_nullable = each.nullable.has(self.version)
        if each.is_array:
            self.add_array(each, source, path, is_nullable=is_nullable)
        elif each.struct is not None:
            if is_nullable and each.tag is None:
                code = self.code
                with code.block(f"if {source} is None:"):
                    code.add("add(b'\\xff')")
                with code.block("else:"):
                    code.add("add(small[1])")
                    self.add_struct(each.struct, source, path)
                return
            self.add_struct(each.struct, source, path)
        else:
            self.add_value(each.kind, source, is_nullable=is_nullable)

    def add_value(self, kind: Kind, source: str, *, is_nullable: bool) -> None:
        code = self.code
        if kind in NUMBERS:
            code.add(f"add({code.layout(kind.value, 'pack')}({source}))")
            return
        if kind is Kind.UUID:
            code.add(f"add({source}.bytes)")
            return
        layout = "h" if kind is Kind.STRING else "i"
        code.add(f"v = {source}")
        if is_nullable:
            self.add_null("v", layout)
        with code.block("else:") if is_nullable else nullcontext():
            if kind is Kind.STRING:
                code.add("v = v.encode()")
            self.add_length("v", layout)
            code.add("add(v)")

    def add_null(self, source: str, layout: str) -> None:
        null = b"\0" if self.is_flexible else struct.pack(f">{layout}", -1)
        with self.code.block(f"if {source} is None:"):
            self.code.add(f"add({null!r})")

    def add_length(self, source: str, layout: str) -> None:
        if self.is_flexible:
            self.code.add(f"n = len({source}) + 1", "add(small[n] if n < 128 else write_uvarint(n))")
        else:
            self.code.add(f"add({self.code.layout(layout, 'pack')}(len({source})))")

    def add_array(self, each: Field, source: str, path: str, *, is_nullable: bool) -> None:
        code = self.code
        items = f"{source}s".replace(".", "_")
        code.add(f"{items} = {source}")
        if is_nullable:
            self.add_null(items, "i")
        with code.block("else:") if is_nullable else nullcontext():
            self.add_length(items, "i")
            if each.kind in NUMBERS:
                code.add(f"add(pack('>%d{each.kind.value}' % len({items}), *{items}))")
                return
            item = items[:-1]
            with code.block(f"for {item} in {items}:"):
                if each.struct is not None:
                    self.add_struct(each.struct, item, path)
                else:
                    self.add_value(each.kind, item, is_nullable=False)

    def add_tagged(self, tagged: list[Field], source: str, path: str) -> None:
        """Add lines that write the tagged fields whose values are not the default."""
        code = self.code
        if not tagged:
            code.add("add(small[0])")
            return
        name = source.replace(".", "_")
        saved, count, written, parts = (f"{name}_{suffix}" for suffix in ("add", "count", "tagged", "parts"))
        code.add(f"{saved}, {count}, {written} = add, 0, []")
        for each in tagged:
            code.field = f"{path}.{each.name}"
            with code.block(f"if {source}.{each.name} != {default_code(each)}:"):
                code.add(f"{parts} = []", f"add = {parts}.append")
                self.add_field(each, f"{source}.{each.name}", code.field)
                code.add(f"b = b''.join({parts})", f"{count} += 1")
                code.add(f"{written} += (write_uvarint({each.tag}), write_uvarint(len(b)), b)")
        code.add(f"add = {saved}", f"add(small[{count}])", f"add(b''.join({written}))")


def _failure(error: Exception, field: str, version: int) -> EncodingError:
    return EncodingError(field, f"a value that version {version} can carry ({error})")


_HELPERS: dict[str, Any] = {
    "pack": struct.pack,
    "small": SMALL_UVARINTS,
    "write_uvarint": write_uvarint,
    "failures": (struct.error, AttributeError, TypeError, ValueError),
    "failure": _failure,
    "NIL": NIL,
}
