"""Which topics are read: the options `subscribe` and `subscribePattern`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import attrs

from dafka.errors import ConfigError
from dafka.spark.offsets import Name, Positions
from dafka.spark.options import Options
from dafka.spark.stores import Held

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

    def check_named(self, option: str, positions: Positions) -> None:
        """Raises `ConfigError` where an option names a partition of a topic that is not read."""
        for topic, _ in positions.named:
            if not self.matches(topic):
                which = "subscribePattern" if self.topics is None else "subscribe"
                raise ConfigError(f"option {option}: the topic {topic!r} is not one that option {which} asks for")

    def check_held(self, held: Mapping[Name, Held]) -> None:
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
        pattern = options.parse("subscribePattern", _compile, "a regular expression", re.compile(""))
        return Subscription(None, pattern)
    if "subscribe" not in options:
        return Subscription(None)
    return Subscription(read_topics(options))


def read_topics(options: Options) -> tuple[str, ...]:
    """The option `subscribe`: names, with commas. Raises `ConfigError` where one is empty."""
    names = options.text("subscribe")
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
