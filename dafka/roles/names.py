"""Checks of the names that a program gives, before anything is opened."""

from __future__ import annotations

from dafka.config import Config
from dafka.errors import ConfigError, WireError
from dafka.records import encode_text
from dafka.wire import Dialect


def check_topic(topic: str, config: Config) -> str:
    """Gives the topic back. Raises `ConfigError` unless it has 1 to 255 octets that the configured dialect can send."""
    try:
        octets = encode_text(topic, "topic")
    except WireError as error:
        raise ConfigError(str(error)) from None
    if not octets:
        raise ConfigError("topic: expected at least one character")
    if config.node.wire == Dialect.LIBDAFKA.value and b"\0" in octets:
        raise ConfigError(f"topic {topic!r}: the libdafka dialect has no topics with a NUL character")
    return topic
