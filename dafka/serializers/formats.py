"""The interface of serializers, which programs can implement, and those of dafka. Most of these need an extra."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from io import BytesIO
from typing import Any, Generic, Literal, TypeVar, cast

from dafka.errors import ConfigError, RecordError
from dafka.extras import require_extra

_T = TypeVar("_T")

SINGLE_OBJECT = b"\xc3\x01"
"""The first bytes of Avro's single-object encoding; the schema's fingerprint follows."""

FINGERPRINT_BYTES = 8


class Serializer(ABC, Generic[_T]):
    """Turns objects of one type into the bytes of a record's value, and back."""

    @property
    @abstractmethod
    def content_type(self) -> str:
        """The media type of the bytes, such as `application/json`. Records of a `TypedTopic` carry it as a header."""

    @abstractmethod
    def dump(self, value: _T) -> bytes:
        """Return the bytes of an object.

        Args:
            value: The object.

        Returns:
            Its bytes.

        Raises:
            RecordError: The object is not of the serializer's type, or cannot be written.
        """

    @abstractmethod
    def load(self, data: bytes) -> _T:
        """Return the object that bytes encode.

        Args:
            data: The bytes.

        Returns:
            The object.

        Raises:
            RecordError: The bytes are not an object of the serializer's type.
        """


class JsonSerializer(Serializer[_T]):
    """JSON by the standard library.

    Args:
        kind: The type of each value: `dict`, `list`, `str`, `int`, `float` or `bool`. None: any JSON value.
    """

    def __init__(self, kind: type[_T] | None = None) -> None:
        self._kind = kind

    @property
    def content_type(self) -> str:
        """The media type of JSON."""
        return "application/json"

    def dump(self, value: _T) -> bytes:
        """Return the JSON of a value; see `Serializer.dump`."""
        _check_kind(value, self._kind)
        try:
            return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise RecordError(f"value: expected something that JSON has: {error}") from None

    def load(self, data: bytes) -> _T:
        """Return the value that JSON encodes; see `Serializer.load`."""
        try:
            value = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise RecordError(f"value: expected JSON: {error}") from None
        _check_kind(value, self._kind)
        return cast(_T, value)


class MsgspecSerializer(Serializer[_T]):
    """JSON or MessagePack by msgspec, which checks every field that it reads. It needs the extra `msgspec`.

    Args:
        kind: The type of the values: a `msgspec.Struct`, a dataclass, an attrs class, or any type that msgspec knows.
        encoding: The encoding of values.
    """

    def __init__(self, kind: type[_T], encoding: Literal["json", "msgpack"] = "json") -> None:
        with require_extra("msgspec", "MsgspecSerializer"):
            import msgspec  # noqa: PLC0415
        if encoding not in {"json", "msgpack"}:
            raise ConfigError(f"encoding: expected 'json' or 'msgpack', not {encoding!r}")
        module = msgspec.json if encoding == "json" else msgspec.msgpack
        self._encoding = encoding
        self._kind = kind
        self._encode: Callable[[object], bytes] = module.Encoder().encode
        self._decode = module.Decoder(kind).decode
        self._write_errors = (TypeError, ValueError, OverflowError, RecursionError)
        self._read_errors = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)

    @property
    def content_type(self) -> str:
        """The media type of the encoding."""
        return f"application/{self._encoding}"

    def dump(self, value: _T) -> bytes:
        """Return the bytes of an object; see `Serializer.dump`."""
        _check_kind(value, self._kind)
        try:
            return self._encode(value)
        except self._write_errors as error:
            raise RecordError(f"value: msgspec cannot write it: {error}") from None

    def load(self, data: bytes) -> _T:
        """Return the object that bytes encode; see `Serializer.load`."""
        try:
            return cast(_T, self._decode(data))
        except self._read_errors as error:
            raise RecordError(f"value: expected {_name(self._kind)}: {error}") from None


class AvroSerializer(Serializer[Any]):
    """Avro by fastavro, in Avro's single-object encoding, which names the schema. It needs the extra `avro`.

    Args:
        schema: The schema for writing values. Values of older schemas are converted to it.
        *older_schemas: Other schemas in which records may have been written.
    """

    def __init__(self, schema: Mapping[str, Any], *older_schemas: Mapping[str, Any]) -> None:
        with require_extra("avro", "AvroSerializer"):
            import fastavro  # noqa: PLC0415
            from fastavro.schema import fingerprint, to_parsing_canonical_form  # noqa: PLC0415
        self._fastavro = fastavro
        self._prefixes: dict[bytes, Any] = {}
        for each in (schema, *older_schemas):
            try:
                parsed = fastavro.parse_schema(dict(each))
                name = fingerprint(to_parsing_canonical_form(dict(each)), "CRC-64-AVRO")
            except Exception as error:
                raise ConfigError(f"schema: expected one of Avro: {error}") from None
            # The hexadecimal digits are in the order of the written bytes.
            self._prefixes.setdefault(SINGLE_OBJECT + bytes.fromhex(name), parsed)
        self._prefix, self._schema = next(iter(self._prefixes.items()))

    @property
    def content_type(self) -> str:
        """The media type of Avro."""
        return "application/avro"

    def dump(self, value: Any) -> bytes:
        """Return the bytes of a value; see `Serializer.dump`."""
        stream = BytesIO()
        try:
            self._fastavro.schemaless_writer(stream, self._schema, value, strict=True)
        except Exception as error:  # fastavro raises whatever the value causes
            raise RecordError(f"value: expected one of the schema: {error!r}") from None
        return self._prefix + stream.getvalue()

    def load(self, data: bytes) -> Any:
        """Return the value that bytes encode; see `Serializer.load`."""
        prefix_bytes = len(SINGLE_OBJECT) + FINGERPRINT_BYTES
        schema = self._prefixes.get(data[:prefix_bytes])
        if schema is None:
            if not data.startswith(SINGLE_OBJECT):
                raise RecordError("value: expected Avro's single-object encoding, which begins with C3 01")
            name = data[len(SINGLE_OBJECT) : prefix_bytes].hex()
            raise RecordError(
                f"value: it was written with another schema, of fingerprint {name}; give it as an older one"
            )
        stream = BytesIO(data[prefix_bytes:])
        try:
            value = self._fastavro.schemaless_reader(stream, schema, self._schema)
        except Exception as error:  # fastavro raises whatever the bytes cause
            raise RecordError(f"value: expected one of the schema: {error!r}") from None
        if left := len(stream.read()):
            raise RecordError(f"value: expected one of the schema, and not {left} bytes after it")
        return value


class ProtobufSerializer(Serializer[_T]):
    """Protocol Buffers, by Google's library. It needs the extra `protobuf`.

    Args:
        kind: The class of the messages, which `protoc` generated.
    """

    def __init__(self, kind: type[_T]) -> None:
        with require_extra("protobuf", "ProtobufSerializer"):
            from google.protobuf.message import DecodeError, EncodeError, Message  # noqa: PLC0415
        if not issubclass(kind, Message):
            raise ConfigError(f"kind: expected the class of a message of protobuf, not {kind!r}")
        self._kind: Any = kind
        self._decode_error = DecodeError
        self._encode_error = EncodeError

    @property
    def content_type(self) -> str:
        """The media type of Protocol Buffers, with the full name of the message."""
        return f"application/protobuf; message={self._kind.DESCRIPTOR.full_name}"

    def dump(self, value: _T) -> bytes:
        """Return the bytes of a message; see `Serializer.dump`."""
        _check_kind(value, self._kind)
        try:
            return cast(bytes, cast(Any, value).SerializeToString())
        except self._encode_error as error:
            raise RecordError(f"value: protobuf cannot write it: {error}") from None

    def load(self, data: bytes) -> _T:
        """Return the message that bytes encode; see `Serializer.load`."""
        try:
            return cast(_T, self._kind.FromString(data))
        except self._decode_error as error:
            raise RecordError(f"value: expected {self._kind.DESCRIPTOR.full_name}: {error}") from None


def _check_kind(value: object, kind: object) -> None:
    if isinstance(kind, type) and not isinstance(value, kind):
        raise RecordError(f"value: expected {_name(kind)}, not {type(value).__name__}")


def _name(kind: object) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind)
