"""The language in which `dafka.kafka.protocol.messages` describes Kafka's messages: a class is a table, a field a row.

    class FetchTopic(Struct):
        topic: String = field("0-12", default="")
        topic_id: Uuid = field("13+", default=NIL)
        partitions: list[FetchPartition]

Fields are in the order of the wire. The annotation says how a field is encoded; `| None` allows null. `field` says in
which versions it exists, and its value in other versions. Names are Kafka's, in snake_case. The readers and writers of
each version are made from the tables when they are first used, by `reading` and `writing`.
"""

from __future__ import annotations

import functools
import re
import types
import typing
import uuid
from enum import Enum
from typing import Annotated, Any, ClassVar, NamedTuple, TypeAlias, dataclass_transform, get_args, get_origin

import attrs

from dafka.kafka.protocol.constants import ApiKey

VERSION_MAX = 2**15 - 1
"""The largest version that a header can contain; in a table, that of the message."""


class Kind(Enum):
    """The encoding of a value. The value of a number's kind is its code in the module `struct`."""

    BOOLEAN = "?"
    INT8 = "b"
    INT16 = "h"
    UINT16 = "H"
    INT32 = "i"
    INT64 = "q"
    FLOAT64 = "d"
    UUID = "uuid"
    STRING = "string"
    BYTES = "bytes"
    RECORDS = "records"
    STRUCT = "struct"


NUMBERS = {
    Kind.BOOLEAN: 1,
    Kind.INT8: 1,
    Kind.INT16: 2,
    Kind.UINT16: 2,
    Kind.INT32: 4,
    Kind.INT64: 8,
    Kind.FLOAT64: 8,
}
"""The kinds of fixed size that `struct` encodes, and their sizes in bytes."""

Boolean: TypeAlias = Annotated[bool, Kind.BOOLEAN]
Int8: TypeAlias = Annotated[int, Kind.INT8]
Int16: TypeAlias = Annotated[int, Kind.INT16]
Uint16: TypeAlias = Annotated[int, Kind.UINT16]
Int32: TypeAlias = Annotated[int, Kind.INT32]
Int64: TypeAlias = Annotated[int, Kind.INT64]
Float64: TypeAlias = Annotated[float, Kind.FLOAT64]
Uuid: TypeAlias = Annotated[uuid.UUID, Kind.UUID]
String: TypeAlias = Annotated[str, Kind.STRING]
Bytes: TypeAlias = Annotated[bytes, Kind.BYTES]
Records: TypeAlias = Annotated[bytes | memoryview, Kind.RECORDS]
"""Record batches or message sets. A decoded message has a view of its frame, which it keeps in memory."""

NIL = uuid.UUID(int=0)
"""The UUID that stands for none."""


class Versions(NamedTuple):
    """A range of versions, empty if the last is before the first."""

    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> Versions:
        """Return the versions that Kafka writes as `3`, `3-5`, `3+` or `none`."""
        if text == "none":
            return NO_VERSIONS
        matched = re.fullmatch(r"(\d+)(?:(\+)|-(\d+))?", text)
        if matched is None:
            raise ValueError(f"expected versions such as 3, 3-5, 3+ or none, not {text!r}")
        first, is_open, last = matched.groups()
        return cls(int(first), VERSION_MAX if is_open else int(last or first))

    def has(self, version: int) -> bool:
        """Return whether a version is in the range."""
        return self.first <= version <= self.last

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


NO_VERSIONS = Versions(0, -1)
ALL_VERSIONS = Versions(0, VERSION_MAX)


class _Missing(Enum):
    """The default of a field that has none."""

    MISSING = 0


_MISSING = _Missing.MISSING


class _Options(NamedTuple):
    """The arguments of `field`."""

    versions: Versions = ALL_VERSIONS
    nullable: Versions = ALL_VERSIONS
    tag: int | None = None
    default: Any = _MISSING


def field(versions: str = "0+", *, nullable: str = "0+", tag: int | None = None, default: Any = _MISSING) -> Any:
    """Describe a field beyond its annotation.

    The field exists in `versions` of the message, and may be null in the versions `nullable` if its annotation allows
    None. A field with a `tag` is a tagged one, which is not written if it has the default; a struct with a tag must
    allow None, which stands for its absence. The default is the value if the constructor is not given one, and in
    versions without the field.
    """
    return _Options(Versions.parse(versions), Versions.parse(nullable), tag, default)


@attrs.frozen
class Field:
    """A row of a table: an attribute, or if `is_array` a list, of values of one kind.

    `struct` is the class of values whose kind is `STRUCT`. `default` is the value in versions without the field. The
    constructor must be given a value that `is_required`.
    """

    name: str
    kind: Kind
    is_array: bool
    struct: type[Struct] | None
    versions: Versions
    nullable: Versions
    tag: int | None
    default: Any
    is_required: bool


def _construct_first(self: Struct, **values: Any) -> None:
    """Compile the constructor of a class when its first instance is made."""
    constructor = _compile_constructor(type(self))
    type(self).__init__ = constructor  # type: ignore[method-assign]
    constructor(self, **values)


@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
class _TableType(type):
    """Gives each table slots for its fields, and keeps what `field` said about them."""

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **keywords: Any) -> _TableType:
        annotated = [key for key, hint in namespace.get("__annotations__", {}).items() if "ClassVar" not in hint]
        options = {key: namespace.pop(key, _Options()) for key in annotated}
        names = {"__slots__": tuple(annotated), "OPTIONS": options, "__init__": _construct_first}
        return super().__new__(mcs, name, bases, {**namespace, **names}, **keywords)


class Struct(metaclass=_TableType):
    """The base class of tables. Instances have the fields as attributes; the constructor takes them by name."""

    OPTIONS: ClassVar[dict[str, _Options]]

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.OPTIONS)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.OPTIONS)
        return f"{type(self).__name__}({values})"


class Message(Struct):
    """The base class of requests and responses. `FLEXIBLE` versions have compact lengths and tagged fields."""

    API_KEY: ClassVar[ApiKey]
    VERSIONS: ClassVar[Versions]
    FLEXIBLE: ClassVar[Versions]

    def __init_subclass__(cls, *, key: ApiKey | None = None, versions: str = "none", flexible: str = "none") -> None:
        super().__init_subclass__()
        if key is not None:
            cls.API_KEY = key
        cls.VERSIONS = Versions.parse(versions)
        cls.FLEXIBLE = Versions.parse(flexible)


class Request(Message):
    """The base class of requests."""


class Response(Message):
    """The base class of responses."""


@functools.cache
def fields_of(struct: type[Struct]) -> tuple[Field, ...]:
    """Return the rows of a table, in the order of the wire."""
    hints = typing.get_type_hints(struct, include_extras=True)
    return tuple(_resolve(name, hints[name], options) for name, options in struct.OPTIONS.items())


def _resolve(name: str, hint: Any, options: _Options) -> Field:
    is_nullable = False
    if get_origin(hint) in {typing.Union, types.UnionType}:
        (hint,) = (part for part in get_args(hint) if part is not types.NoneType)
        is_nullable = True
    is_array = get_origin(hint) is list
    if is_array:
        (hint,) = get_args(hint)
    kind = Kind.STRUCT if isinstance(hint, type) and issubclass(hint, Struct) else hint.__metadata__[0]
    struct = hint if kind is Kind.STRUCT else None
    is_required = options.default is _MISSING
    zero = None if is_nullable else [] if is_array else _ZEROS.get(kind)
    default = zero if is_required else options.default
    nullable = options.nullable if is_nullable else NO_VERSIONS
    return Field(name, kind, is_array, struct, options.versions, nullable, options.tag, default, is_required)


_ZEROS: dict[Kind, Any] = {
    **dict.fromkeys(NUMBERS, 0),
    Kind.BOOLEAN: False,
    Kind.UUID: NIL,
    Kind.STRING: "",
    Kind.BYTES: b"",
    Kind.RECORDS: b"",
}


def default_code(each: Field) -> str:
    """Return an expression for a field's default: a new list for each evaluation if it is one. It may use `NIL`."""
    return "NIL" if each.default is NIL else repr(each.default)


def _compile_constructor(struct: type[Struct]) -> Any:
    names: dict[str, Any] = {"NIL": NIL}
    parameters, lines = [], []
    for each in fields_of(struct):
        if each.is_required:
            parameters.append(each.name)
            lines.append(f"self.{each.name} = {each.name}")
        elif isinstance(each.default, list):
            parameters.append(f"{each.name}=None")
            lines.append(f"self.{each.name} = [] if {each.name} is None else {each.name}")
        else:
            parameters.append(f"{each.name}={default_code(each)}")
            lines.append(f"self.{each.name} = {each.name}")
    head = f"def __init__(self, *, {', '.join(parameters)}):" if parameters else "def __init__(self):"
    exec("\n    ".join([head, *(lines or ["pass"])]), names)
    return names["__init__"]
