"""Where reading begins and ends: `earliest`, `latest`, or an offset for each partition, as Spark's Kafka source has it.

An offset is a record's sequence. In Spark's checkpoints, as in options, positions are `{topic: {partition: offset}}`,
where the offset is that of the next record to be read. A name whose octets are not UTF-8 is written as `printable`
shows it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import attrs

from dafka.errors import ConfigError
from dafka.spark.options import Options

EARLIEST = -2
LATEST = -1

WORDS = {"earliest": EARLIEST, "latest": LATEST}

Name = tuple[str, str]
"""A partition: its topic and its address, as Spark's columns show them."""

Offsets = dict[str, dict[str, int]]
"""Positions as they stand in Spark's checkpoints."""


@attrs.frozen
class Positions:
    """`EARLIEST`, `LATEST` or an offset for the partitions that are named, and `default` for the others."""

    default: int
    named: Mapping[Name, int] = attrs.field(factory=dict)

    def of(self, name: Name) -> int:
        """What is wanted of this partition."""
        return self.named.get(name, self.default)


def read_positions(options: Options, option: str, default: int) -> Positions:
    """An option such as `startingOffsets`; partitions that its JSON does not name have the default.

    Raises `ConfigError` for anything but `earliest`, `latest`, or JSON of whole numbers by topic and partition.
    """
    if option not in options:
        return Positions(default)
    text = options.text(option).strip()
    if text.lower() in WORDS:
        return Positions(WORDS[text.lower()])
    expected = '"earliest", "latest", or JSON such as {"orders": {"PARTITION": 42}}'
    try:
        named = _flatten(json.loads(text))
    except (ValueError, RecursionError) as error:
        reason = f" ({error})" if str(error) else ""
        raise ConfigError(f"option {option}: expected {expected}, not {text[:100]!r}{reason}") from None
    return Positions(default, named)


def flatten(offsets: Offsets) -> dict[Name, int]:
    """Positions of a checkpoint, by partition."""
    return {(topic, address): offset for topic, by_address in offsets.items() for address, offset in by_address.items()}


def nest(positions: Mapping[Name, int]) -> Offsets:
    """Positions as a checkpoint has them, in order, so that the same are written alike."""
    offsets: Offsets = {}
    for (topic, address), offset in sorted(positions.items()):
        offsets.setdefault(topic, {})[address] = offset
    return offsets


def show(name: Name) -> str:
    """A partition for a sentence."""
    return f"{name[0]}/{name[1]}"


def _flatten(document: Any) -> dict[Name, int]:
    if not isinstance(document, dict):
        raise ValueError("it is no object")
    named = {}
    for topic, by_address in document.items():
        if not isinstance(by_address, dict):
            raise ValueError(f"{topic!r} has no object of partitions")
        for address, offset in by_address.items():
            if not isinstance(offset, int) or isinstance(offset, bool) or offset < EARLIEST:
                raise ValueError(f"{topic}/{address} has {offset!r}: a whole number, or -2 for earliest, -1 for latest")
            named[topic, address] = offset
    return named
