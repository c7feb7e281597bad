"""Encodes attrs classes as JSON, and decodes JSON with checks of all types, because any node can publish a record.

A field with its default value is not written. So a later version of dafka can add fields with defaults: it reads what
former versions have written, and what it writes without using them is the same, byte for byte. A default never changes.
A field that is not known is refused, because its meaning must not be skipped.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Any, ClassVar, get_args, get_origin, get_type_hints

import attrs

from dafka.protocol.format_errors import UnknownFieldError


def encode_json(found: Any) -> bytes:
    """Return a JSON value in which instances of attrs classes are objects, without fields that have their defaults."""
    return json.dumps(found, default=_fields, separators=(",", ":")).encode()


def convert(kind: Any, value: Any) -> Any:
    """Convert a decoded JSON value to a type. Raise `TypeError`, `ValueError` or `KeyError` if it does not match.

    The type is an integer, a string, a boolean, an enumeration of integers or strings, a named tuple or another attrs
    class, or a tuple or a mapping of one of these. If an object has an unknown field, the error is `UnknownFieldError`.
    """
    if attrs.has(kind):
        return _convert_object(kind, value)
    is_named, origin = hasattr(kind, "_fields"), get_origin(kind)
    if is_named or origin is tuple:
        if type(value) is not list:
            raise TypeError(value)
        if is_named:
            return kind(*(convert(*each) for each in zip(_hints(kind).values(), value, strict=True)))
        item = get_args(kind)[0]
        if item is str and all(type(each) is str for each in value):  # the replicas of thousands of logs
            return tuple(value)
        return tuple(convert(item, each) for each in value)
    if origin is Mapping:
        key_kind, value_kind = get_args(kind)
        return {key_kind(key): convert(value_kind, each) for key, each in value.items()}
    if type(value) is not _plain(kind):
        raise TypeError(value)
    if kind is int and not -(2**63) <= value < 2**63:
        raise ValueError(value)
    return kind(value)


def _convert_object(kind: Any, value: Any) -> Any:
    if type(value) is not dict:
        raise TypeError(value)
    hints = _hints(kind)
    if not hints.keys() >= value.keys():
        raise UnknownFieldError(min(value.keys() - hints.keys()))
    missing = hints.keys() - value.keys() - _defaults(kind).keys()
    if missing:
        raise KeyError(min(missing))
    return kind(**{name: convert(hints[name], each) for name, each in value.items()})


def _plain(kind: Any) -> Any:
    """Return the type of the JSON values of an integer, a string, a boolean or an enumeration."""
    return kind if not issubclass(kind, Enum) else int if issubclass(kind, int) else str


def _fields(found: Any) -> dict[str, Any]:
    """Return the fields of an instance of an attrs class that have other values than their defaults."""
    kind: Any = type(found)
    defaults = _defaults(kind)
    fields = ((name, getattr(found, name)) for name in _hints(kind))
    return {name: value for name, value in fields if name not in defaults or value != defaults[name]}


@cache
def _defaults(kind: type) -> dict[str, Any]:
    """Return the default values of the fields of an attrs class that have one."""
    found = {each.name: each.default for each in attrs.fields(kind) if each.default is not attrs.NOTHING}
    return {name: each.factory() if hasattr(each, "factory") else each for name, each in found.items()}


@cache
def _hints(kind: type) -> dict[str, Any]:
    """Return the types of the fields of an attrs class or a named tuple."""
    return {name: each for name, each in get_type_hints(kind).items() if get_origin(each) is not ClassVar}
