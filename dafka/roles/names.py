"""Checks of the names that a program gives, before anything is opened."""

from __future__ import annotations

from dafka.config import Config
from dafka.errors import ConfigError, WireError
from dafka.records import encode_text
from dafka.wire import Dialect


def check_topic(topic: str, config: Config) -> str:
    """Raises `ConfigError` where a topic cannot be sent in the configured dialect."""
    octets = check_name(topic, "topic")
    if config.node.wire == Dialect.LIBDAFKA.value and b"\0" in octets:
        raise ConfigError(f"topic {topic!r}: the libdafka dialect has no topics with a NUL character")
    return topic


def check_name(name: str, what: str) -> bytes:
    """Raises `ConfigError` unless this is text of 1 to 255 octets."""
    try:
        octets = encode_text(name, what)
    except WireError as error:
        raise ConfigError(str(error)) from None
    if not octets:
        raise ConfigError(f"{what}: expected at least one character")
    return octets
