"""Checks of the arguments of a program. An invalid one raises a local error that says what was expected."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from dafka.config import Config
from dafka.errors import ConfigError, EncodingError, RecordError
from dafka.records import SEQUENCE_MAX, Partition, encode_text
from dafka.wire import Dialect

_ADDRESS = re.compile("[0-9A-F]{32}")


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


def check_identity(address: str | None, next_sequence: int, config: Config) -> None:
    """Check the partition that a producer continues.

    Args:
        address: The partition's address; None for a new partition, or for the one in a spool.
        next_sequence: The sequence of the next record.
        config: The configuration of the producer.

    Raises:
        ConfigError: One of them is invalid, or they exclude each other.
    """
    if address is not None and not _ADDRESS.fullmatch(address):
        raise ConfigError(f"address: expected 32 upper-case hexadecimal digits, not {address!r}")
    if type(next_sequence) is not int or not 0 <= next_sequence < SEQUENCE_MAX:
        raise ConfigError(f"next_sequence: expected a whole number from 0 to 2^62 - 1, not {next_sequence!r}")
    if next_sequence and address is None:
        raise ConfigError("next_sequence: expected an address with it, that of the partition to continue")
    if address is not None and config.producer.spool:
        raise ConfigError("address: expected none with a spool, which has its own; give one or the other")


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
