"""Checks of the arguments of a program. An invalid one raises a local error that says what was expected."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dafka.config import Config
from dafka.errors import ConfigError, EncodingError, RecordError
from dafka.records import Partition, encode_text
from dafka.wire import Dialect


def check_topic(topic: str, config: Config) -> str:
    """Check a topic.

    Args:
        topic: The topic.
        config: The configuration, whose dialect may not support every topic.

    Returns:
        The topic.

    Raises:
        ConfigError: It is not a text of 1 to 255 bytes in UTF-8, or the configured dialect cannot send it.
    """
    if not isinstance(topic, str):
        raise ConfigError(f"topic: expected a text, not {topic!r}")
    try:
        encoded = encode_text(topic, "topic")
    except EncodingError as error:
        raise ConfigError(str(error)) from None
    if not encoded:
        raise ConfigError("topic: expected at least one character")
    if config.node.wire == Dialect.LIBDAFKA.value and b"\0" in encoded:
        raise ConfigError(f"topic {topic!r}: the libdafka dialect has no topics with a NUL character")
    return topic


def check_topics(topics: Iterable[str], config: Config) -> list[str]:
    """Check several topics.

    Args:
        topics: The topics.
        config: The configuration, whose dialect may not support every topic.

    Returns:
        The topics.

    Raises:
        ConfigError: They are one text instead of several, or one of them is invalid; see `check_topic`.
    """
    if isinstance(topics, str):
        raise ConfigError(f"topics: expected several, as in [{topics!r}], not one text")
    return [check_topic(topic, config) for topic in topics]


def check_positions(positions: Mapping[Partition, int]) -> None:
    """Check the positions at which a consumer begins.

    Args:
        positions: By partition, the first sequence to receive.

    Raises:
        ConfigError: A key is not a `Partition`, or a value is not a sequence.
    """
    for partition, sequence in positions.items():
        if not isinstance(partition, Partition):
            raise ConfigError(f"positions: expected a Partition as key, not {partition!r}")
        if type(sequence) is not int or sequence < 0:
            raise ConfigError(f"positions: expected a sequence from 0 on for {partition}, not {sequence!r}")


def check_contents(contents: Sequence[bytes], bytes_max: int) -> None:
    """Check the contents of records to publish.

    Args:
        contents: The contents.
        bytes_max: The largest content that peers accept.

    Raises:
        RecordError: One of them is not bytes, or has more than `bytes_max` bytes.
    """
    for kind in {*map(type, contents)} - {bytes}:
        hint = "; encode it first" if kind is str else ""
        raise RecordError(f"content: expected bytes, not {kind.__name__}{hint}")
    if (longest := max(map(len, contents), default=0)) > bytes_max:
        raise RecordError(f"content: expected at most {bytes_max} bytes (message_bytes_max), not {longest}")
