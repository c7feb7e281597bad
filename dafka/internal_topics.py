"""Topics whose names begin with `$`. Brokers need them, so programs cannot write, trim or delete them."""

from __future__ import annotations

from dafka.errors import ConfigError

GROUP_PREFIX = "$group/"
"""The prefix of a topic with the records of a group's members; the name of the group follows. Topics that begin with
`$` are not listed among the topics of programs.
"""


def is_internal_topic(name: str) -> bool:
    """Return whether a topic is only for brokers: no client sees it, and no other node publishes to its logs."""
    return name.startswith("$")


def is_system_topic(name: str) -> bool:
    """Return whether only brokers write and trim a topic: its name begins with `$`, and it is not a group's topic."""
    return is_internal_topic(name) and not name.startswith(GROUP_PREFIX)


def check_no_system_topic(name: str) -> None:
    """Raise `ConfigError` if a topic is a system topic, which users cannot publish to, trim or delete."""
    if is_system_topic(name):
        raise ConfigError(
            f"{name!r} is a system topic, in which brokers keep what they need: only they write, trim and delete it"
        )
