"""Declares the fields of messages, for validation and documentation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import attrs

from dafka.http.logs.records import TIMESTAMP_MAX, is_integer

ID_MAX = TIMESTAMP_MAX
"""The largest id of a request: the largest number that every JSON parser reads exactly."""

TEXT_BYTES_MAX = 4096
"""The longest text in a message, except in records."""

WATCH_INTERVAL_MS_MIN = 500
"""The minimum interval at which a watched resource is checked."""


@attrs.frozen
class Kind:
    """The kind of value that a field contains.

    Attributes:
        expected: A description, for errors and documentation.
        accepts: Whether a JSON value is of the kind.
    """

    expected: str
    accepts: Callable[[Any], bool]


def _integer(name: str, minimum: int, maximum: int) -> Kind:
    return Kind(
        f"{name} from {minimum} to {maximum}", lambda value: is_integer(value, maximum) and bool(value >= minimum)
    )


def _is_text(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= TEXT_BYTES_MAX


IDENTIFIER = Kind("a whole number from 0 to 2^53 - 1", lambda value: is_integer(value, ID_MAX))
TEXT = Kind(f"text of 1 to {TEXT_BYTES_MAX} characters", _is_text)
LOG = Kind("the number of a log", lambda value: is_integer(value, 2**31 - 1))
LOGS = Kind(
    "a list of at least one number of a log",
    lambda value: isinstance(value, list) and bool(value) and all(map(LOG.accepts, value)),
)
COUNT = Kind("a whole number of at least 0", is_integer)
POSITIVE = _integer("a whole number", 1, 2**31 - 1)
INTERVAL = _integer("milliseconds", WATCH_INTERVAL_MS_MIN, 3_600_000)
EPOCH = _integer("a whole number", 0, 2**15 - 1)
SEQUENCE = _integer("a whole number", 0, 2**31 - 1)
OFFSETS = Kind('offsets by log, such as {"0": 5}', lambda value: isinstance(value, dict) and bool(value))
RECORDS = Kind("a list of records", lambda value: isinstance(value, list))
POSITION = Kind('a position, such as "earliest" or {"offset": 5}', lambda value: isinstance(value, (str, dict)))
FLAG = Kind("true or false", lambda value: isinstance(value, bool))
ANY = Kind("anything", lambda _value: True)


def required(kind: Kind, description: str, name: str = "") -> Any:
    """Declare a required field; `name` is its name in messages, if that is not a Python identifier."""
    return attrs.field(kw_only=True, metadata={"kind": kind, "description": description, "name": name})


def optional(kind: Kind, description: str) -> Any:
    """Declare an optional field."""
    return attrs.field(kw_only=True, default=None, metadata={"kind": kind, "description": description, "name": ""})


CLIENT_MESSAGES: dict[str, type[ClientMessage]] = {}
"""The messages of clients, by type."""

SERVER_MESSAGES: dict[str, type[attrs.AttrsInstance]] = {}
"""The messages of brokers, by type."""

SERVER_NAMES: dict[type, str] = {}
"""The types of the messages of brokers."""

_Message = TypeVar("_Message", bound=type)


@attrs.frozen
class ClientMessage:
    """A message of a client.

    Attributes:
        id: Chosen by the client. The answer repeats it.
    """

    id: int = required(IDENTIFIER, "chosen by the client; the answer repeats it")


def client(name: str) -> Callable[[_Message], _Message]:
    """Register a message of clients."""

    def register(message: _Message) -> _Message:
        CLIENT_MESSAGES[name] = message
        return message

    return register


def server(name: str) -> Callable[[_Message], _Message]:
    """Register a message of brokers."""

    def register(message: _Message) -> _Message:
        SERVER_MESSAGES[name] = message
        SERVER_NAMES[message] = name
        return message

    return register
