"""What a user says with `.option(name, value)`: names are looked up, values parsed, mistakes named.

Spark hands all options over as text, in a mapping that does not mind upper and lower case. Everything that is wrong
with one raises `ConfigError`, in one sentence that begins with the option's name.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import attrs

from dafka.config import Config
from dafka.errors import ConfigError, DiscoveryError
from dafka.spark.offsets import EARLIEST, LATEST, PartitionName

_Value = TypeVar("_Value")
_Word = TypeVar("_Word", bound=str)

SPARK_OPTIONS = {"checkpointlocation", "queryname", "outputmode"}
"""Options that Spark takes for itself, and hands on all the same."""

CLUSTER_OPTIONS = ("towers", "config", "wire", "discoveryTimeout")
"""Where a running cluster is, and how to speak there: what `cluster_config` reads."""

SUB_PORT, PUB_PORT = 5556, 5557

_NO_TOWERS: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())


class Options:
    """The options of one reader or writer."""

    def __init__(self, given: Mapping[str, str], allowed: Iterable[str], purpose: str) -> None:
        """Raises `ConfigError` where one is given that is not among those allowed. `purpose`: "reading stores"."""
        names = {name.lower(): name for name in allowed}
        self._values = {names[key.lower()]: value for key, value in given.items() if key.lower() in names}
        for key in given:
            if key.lower() not in names and key.lower() not in SPARK_OPTIONS:
                near = difflib.get_close_matches(key.lower(), names, 1)
                hint = f"did you mean {names[near[0]]}?" if near else f"known are {', '.join(sorted(names.values()))}"
                raise ConfigError(f"option {key}: there is none of this name for {purpose}; {hint}")

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def get_text(self, name: str, default: str = "") -> str:
        """An option's text; `default` where it is not given."""
        return self._values.get(name, default)

    def get_parsed(self, name: str, parser: Callable[[str], _Value], expected: str, default: _Value) -> _Value:
        """An option's value; `ConfigError` where `parser` raises `ValueError`, for it is not as `expected`."""
        if name not in self._values:
            return default
        text = self._values[name]
        try:
            return parser(text)
        except ValueError:
            raise ConfigError(f"option {name}: expected {expected}, not {_shown(text)}") from None

    def get_int(self, name: str, default: int | None = None, *, minimum: int = 1) -> int | None:
        """A whole number of at least `minimum`."""

        def parser(text: str) -> int | None:
            value = int(text)
            if not minimum <= value < 2**63:
                raise ValueError
            return value

        return self.get_parsed(name, parser, f"a whole number from {minimum} up, below 2**63", default)

    def get_bool(self, name: str, default: bool) -> bool:
        """True or false."""
        words = ("false", "true")
        return self.get_parsed(name, lambda text: bool(words.index(text.strip().lower())), "true or false", default)

    def get_choice(self, name: str, choices: tuple[_Word, ...], default: _Word) -> _Word:
        """One of these words."""

        return self.get_parsed(name, lambda text: choices[choices.index(text)], " or ".join(choices), default)


def cluster_config(options: Options) -> Config:
    """The settings of a node that Spark runs: `config` names a TOML file, `towers` where the towers are.

    `towers` has, with commas between them, `HOST` or `HOST:SUB_PORT:PUB_PORT`. Raises `ConfigError`.
    """
    config = Config.load(options.get_text("config") or None)
    if "towers" in options:
        expected = "HOST or HOST:SUB_PORT:PUB_PORT, with commas between several"
        subs, pubs = options.get_parsed("towers", _parse_towers, expected, _NO_TOWERS)
        config = config.with_beacon(tower_sub=subs, tower_pub=pubs)
    if "wire" in options:
        config = config.with_node(wire=options.get_choice("wire", ("rfc46", "libdafka"), "rfc46"))
    timeout = options.get_int("discoveryTimeout")
    return config if timeout is None else config.with_node(tower_timeout_ms=timeout)


@contextmanager
def mention_towers_option() -> Iterator[None]:
    """Where the cluster is not found, says with which option it is."""
    try:
        yield
    except DiscoveryError as error:
        raise DiscoveryError(f"{error} (option towers)") from None


def _parse_towers(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    subs, pubs = [], []
    for tower in text.split(","):
        host, sub, pub = _split_tower(tower.strip())
        subs.append(f"tcp://{host}:{sub}")
        pubs.append(f"tcp://{host}:{pub}")
    return tuple(subs), tuple(pubs)


def _split_tower(tower: str) -> tuple[str, int, int]:
    head, bracket, tail = tower.rpartition("]")
    host, *ports = tail.split(":")
    numbers = [int(port) for port in ports] or [SUB_PORT, PUB_PORT]
    host = head + bracket + host
    if not host or "/" in host or len(numbers) != 2 or not all(0 < number < 2**16 for number in numbers):
        raise ValueError
    return host, numbers[0], numbers[1]


def _shown(text: str) -> str:
    return repr(text if len(text) <= 100 else f"{text[:100]}...")


SUBSCRIPTION_OPTIONS = ("subscribe", "subscribePattern")


@attrs.frozen
class Subscription:
    """The topics that are read: those named, those that a pattern matches, or all.

    Attributes:
        topics: by name; None where there is a pattern.
    """

    topics: tuple[str, ...] | None
    pattern: re.Pattern[str] | None = None

    def matches(self, topic: str) -> bool:
        """Is this topic read?"""
        if self.topics is not None:
            return topic in self.topics
        return self.pattern is None or self.pattern.fullmatch(topic) is not None

    def check_named(self, option: str, positions: RequestedOffsets) -> None:
        """Raises `ConfigError` where an option names a partition of a topic that is not read."""
        for topic, _ in positions.named:
            if not self.matches(topic):
                which = "subscribePattern" if self.topics is None else "subscribe"
                raise ConfigError(f"option {option}: the topic {topic!r} is not one that option {which} asks for")

    def check_held(self, held: Iterable[PartitionName]) -> None:
        """Raises `ConfigError` for a topic that is named, and of which no store has a record."""
        topics = {topic for topic, _ in held}
        for topic in self.topics or ():
            if topic not in topics:
                there = f"they hold {_several(topics)}" if topics else "they hold no records"
                raise ConfigError(
                    f"option subscribe: no store has a topic {topic!r}; {there} "
                    "(failOnDataLoss=false reads on without it)"
                )


def read_subscription(options: Options) -> Subscription:
    """The options `subscribe` (names, with commas) and `subscribePattern` (a regular expression for whole names).

    Raises `ConfigError` where both are given, or one of them cannot be.
    """
    if "subscribe" in options and "subscribePattern" in options:
        raise ConfigError("option subscribePattern: give it or subscribe, not both")
    if "subscribePattern" in options:
        pattern = options.get_parsed("subscribePattern", _compile, "a regular expression", re.compile(""))
        return Subscription(None, pattern)
    if "subscribe" not in options:
        return Subscription(None)
    return Subscription(read_topics(options))


def read_topics(options: Options) -> tuple[str, ...]:
    """The option `subscribe`: names, with commas. Raises `ConfigError` where one is empty."""
    names = options.get_text("subscribe")
    topics = tuple(dict.fromkeys(topic.strip() for topic in names.split(",")))
    if not all(topics):
        raise ConfigError(f"option subscribe: expected topics with commas between, not {names!r}")
    return topics


def _compile(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise ValueError(str(error)) from None


def _several(topics: Iterable[str], shown: int = 10) -> str:
    names = sorted(topics)
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(map(repr, names[:shown])) + more


WORDS = {"earliest": EARLIEST, "latest": LATEST}


@attrs.frozen
class RequestedOffsets:
    """`EARLIEST`, `LATEST` or an offset for the partitions that are named, and `default` for the others."""

    default: int
    named: Mapping[PartitionName, int] = attrs.field(factory=dict)

    def of(self, name: PartitionName) -> int:
        """What is wanted of this partition."""
        return self.named.get(name, self.default)


def parse_offsets(options: Options, option: str, default: int) -> RequestedOffsets:
    """An option such as `startingOffsets`; partitions that its JSON does not name have the default.

    Raises `ConfigError` for anything but `earliest`, `latest`, or JSON of whole numbers by topic and partition.
    """
    if option not in options:
        return RequestedOffsets(default)
    text = options.get_text(option).strip()
    if text.lower() in WORDS:
        return RequestedOffsets(WORDS[text.lower()])
    expected = '"earliest", "latest", or JSON such as {"orders": {"PARTITION": 42}}'
    try:
        named = _flatten(json.loads(text))
    except (ValueError, RecursionError) as error:
        reason = f" ({error})" if str(error) else ""
        raise ConfigError(f"option {option}: expected {expected}, not {text[:100]!r}{reason}") from None
    return RequestedOffsets(default, named)


def _flatten(document: Any) -> dict[PartitionName, int]:
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
