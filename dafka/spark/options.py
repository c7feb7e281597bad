"""Options of the data source: `Options` checks names and parses values; the functions below read the shared ones.

Spark passes all options as text, in a mapping whose keys are case-insensitive. An invalid option raises `ConfigError`
with one sentence that begins with the option's name.
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
from dafka.endpoints import parse_tower
from dafka.errors import ConfigError, DiscoveryError
from dafka.spark.offsets import EARLIEST, LATEST, PartitionName

_Value = TypeVar("_Value")
_Word = TypeVar("_Word", bound=str)

SPARK_OPTIONS = {"checkpointlocation", "queryname", "outputmode"}
"""Options that Spark uses itself, and still passes on to the data source."""

CLUSTER_OPTIONS = ("towers", "config", "wire", "discoveryTimeout")
"""The options that `parse_cluster_config` reads."""

SUBSCRIPTION_OPTIONS = ("subscribe", "subscribePattern")

_NO_TOWERS: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
_OFFSET_WORDS = {"earliest": EARLIEST, "latest": LATEST}


class Options:
    """The options of one reader or writer, whose purpose error messages state, as in "reading stores".

    Raise `ConfigError` if a name is not among those allowed.
    """

    def __init__(self, given: Mapping[str, str], allowed: Iterable[str], purpose: str) -> None:
        names = {name.lower(): name for name in allowed}
        self._values = {names[key.lower()]: value for key, value in given.items() if key.lower() in names}
        for key in given:
            if key.lower() not in names and key.lower() not in SPARK_OPTIONS:
                near = difflib.get_close_matches(key.lower(), names, 1)
                hint = f"did you mean {names[near[0]]}?" if near else f"known are {', '.join(sorted(names.values()))}"
                raise ConfigError(f"option {key}: there is no such option for {purpose}; {hint}")

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def get_text(self, name: str, default: str = "") -> str:
        """Return the text of an option, or `default` if it is not given."""
        return self._values.get(name, default)

    def get_parsed(self, name: str, parser: Callable[[str], _Value], expected: str, default: _Value) -> _Value:
        """Return an option as `parser` converts it, or `default` if it is not given.

        Raise `ConfigError` if `parser` raises `ValueError`; it states what is expected, as in "true or false".
        """
        if name not in self._values:
            return default
        text = self._values[name]
        try:
            return parser(text)
        except ValueError:
            raise ConfigError(f"option {name}: expected {expected}, not {_shorten(text)}") from None

    def get_int(self, name: str, default: int | None = None, *, minimum: int = 1) -> int | None:
        """Return an option that is a whole number of at least `minimum`; raise `ConfigError` if it is not."""

        def parse(text: str) -> int | None:
            value = int(text)
            if not minimum <= value < 2**63:
                raise ValueError
            return value

        return self.get_parsed(name, parse, f"a whole number from {minimum} to 2**63 - 1", default)

    def get_bool(self, name: str, default: bool) -> bool:
        """Return an option that is true or false; raise `ConfigError` if it is not."""
        words = ("false", "true")
        return self.get_parsed(name, lambda text: bool(words.index(text.strip().lower())), "true or false", default)

    def get_choice(self, name: str, choices: tuple[_Word, ...], default: _Word) -> _Word:
        """Return an option that is one of `choices`; raise `ConfigError` if it is not."""
        return self.get_parsed(name, lambda text: choices[choices.index(text)], " or ".join(choices), default)


def parse_cluster_config(options: Options) -> Config:
    """Return the configuration of a node that Spark runs, from the options in `CLUSTER_OPTIONS`.

    The option `config` names a TOML file. `towers` names towers as the setting `[beacon] tower` does, separated by
    commas. The other options override the file. Raise `ConfigError` if the file or an option is not valid.
    """
    config = Config.load(options.get_text("config") or None)
    if "towers" in options:
        expected = "HOST, HOST:SUB_PORT or HOST:SUB_PORT:PUB_PORT, several of them separated by commas"
        subs, pubs = options.get_parsed("towers", _parse_towers, expected, _NO_TOWERS)
        config = config.with_beacon(tower_sub=subs, tower_pub=pubs)
    if "wire" in options:
        config = config.with_node(wire=options.get_choice("wire", ("auto", "rfc46", "libdafka"), "auto"))
    timeout = options.get_int("discoveryTimeout")
    return config if timeout is None else config.with_node(tower_timeout_ms=timeout)


@contextmanager
def mention_towers_option() -> Iterator[None]:
    """Mention the option `towers` in a `DiscoveryError` that the block raises."""
    try:
        yield
    except DiscoveryError as error:
        raise DiscoveryError(f"{error} (option towers)") from None


@attrs.frozen
class Subscription:
    """The topics that a query reads: the named ones, or those whose whole name matches a pattern, or all."""

    topics: tuple[str, ...] | None
    pattern: re.Pattern[str] | None = None

    def matches(self, topic: str) -> bool:
        """Return whether the query reads this topic."""
        if self.topics is not None:
            return topic in self.topics
        return self.pattern is None or self.pattern.fullmatch(topic) is not None

    def check_offsets(self, option: str, offsets: RequestedOffsets) -> None:
        """Raise `ConfigError` if an option names a partition of a topic that the query does not read."""
        for topic, _ in offsets.by_partition:
            if not self.matches(topic):
                which = "subscribePattern" if self.topics is None else "subscribe"
                raise ConfigError(f"option {option}: the topic {topic!r} is not among those of the option {which}")

    def check_topics(self, stored: Iterable[PartitionName]) -> None:
        """Raise `ConfigError` if no stored partition belongs to a topic that the query names."""
        topics = {topic for topic, _ in stored}
        for topic in self.topics or ():
            if topic not in topics:
                found = f"the stores hold {_list_some(topics)}" if topics else "the stores hold no records"
                raise ConfigError(
                    f"option subscribe: no store has a topic {topic!r}; {found} "
                    "(set failOnDataLoss to false to read without it)"
                )


def parse_subscription(options: Options) -> Subscription:
    """Return the topics that the options `subscribe` (names) and `subscribePattern` (a regular expression) select.

    Raise `ConfigError` if both are given, or one of them is not valid.
    """
    if "subscribe" in options and "subscribePattern" in options:
        raise ConfigError("option subscribePattern: expected this or subscribe, not both")
    if "subscribePattern" in options:
        pattern = options.get_parsed("subscribePattern", _compile, "a regular expression", re.compile(""))
        return Subscription(None, pattern)
    if "subscribe" not in options:
        return Subscription(None)
    return Subscription(parse_topics(options))


def parse_topics(options: Options) -> tuple[str, ...]:
    """Return the topics of the option `subscribe`; raise `ConfigError` if a name is empty."""
    names = options.get_text("subscribe")
    topics = tuple(dict.fromkeys(topic.strip() for topic in names.split(",")))
    if not all(topics):
        raise ConfigError(f"option subscribe: expected topics separated by commas, not {names!r}")
    return topics


@attrs.frozen
class RequestedOffsets:
    """The offsets at which a query should start or end: `EARLIEST`, `LATEST` or an offset for each named partition.

    The default for other partitions is `EARLIEST` or `LATEST`.
    """

    default: int
    by_partition: Mapping[PartitionName, int] = attrs.field(factory=dict)

    def for_partition(self, name: PartitionName) -> int:
        """Return the requested `EARLIEST`, `LATEST` or offset of a partition."""
        return self.by_partition.get(name, self.default)


def parse_offsets(options: Options, option: str, default: int) -> RequestedOffsets:
    """Return the offsets that an option such as `startingOffsets` requests.

    `default` is that of the option, and of partitions that its JSON does not name. Raise `ConfigError` if the text is
    neither `earliest` nor `latest` nor JSON of offsets by topic and partition.
    """
    if option not in options:
        return RequestedOffsets(default)
    text = options.get_text(option).strip()
    if text.lower() in _OFFSET_WORDS:
        return RequestedOffsets(_OFFSET_WORDS[text.lower()])
    expected = '"earliest", "latest", or JSON such as {"orders": {"PARTITION": 42}}'
    try:
        by_partition = _flatten_json(json.loads(text))
    except (ValueError, RecursionError) as error:
        reason = f" ({error})" if str(error) else ""
        raise ConfigError(f"option {option}: expected {expected}, not {text[:100]!r}{reason}") from None
    return RequestedOffsets(default, by_partition)


def _flatten_json(document: Any) -> dict[PartitionName, int]:
    if not isinstance(document, dict):
        raise ValueError("expected an object of topics")
    offsets = {}
    for topic, by_address in document.items():
        if not isinstance(by_address, dict):
            raise ValueError(f"{topic}: expected an object of partitions")
        for address, offset in by_address.items():
            if not isinstance(offset, int) or isinstance(offset, bool) or offset < EARLIEST:
                raise ValueError(
                    f"{topic}/{address}: expected a whole number, -2 for earliest or -1 for latest, not {offset!r}"
                )
            offsets[topic, address] = offset
    return offsets


def _parse_towers(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    endpoints = [parse_tower(tower) for tower in text.split(",")]
    return tuple(sub for sub, _ in endpoints), tuple(pub for _, pub in endpoints)


def _compile(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise ValueError(str(error)) from None


def _list_some(topics: Iterable[str], shown: int = 10) -> str:
    names = sorted(topics)
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(map(repr, names[:shown])) + more


def _shorten(text: str) -> str:
    return repr(text if len(text) <= 100 else f"{text[:100]}...")
