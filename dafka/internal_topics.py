"""Topics whose names begin with `$`: those that brokers need, so that nobody else writes, trims or deletes them."""

from __future__ import annotations

from dafka.errors import ConfigError

GROUP_PREFIX = "$group/"
"""The topic in which the members of a group of nodes keep their records is this and the name of the group.

Topics that begin with `$` are not listed among those of programs.
"""


def is_internal_topic(name: str) -> bool:
    """Return whether a topic is for brokers only: no client sees it, and no other node publishes to its logs."""
    return name.startswith("$")


def is_system_topic(name: str) -> bool:
    """Return whether only brokers write and trim a topic: its name begins with `$`, and no group of nodes keeps it."""
    return is_internal_topic(name) and not name.startswith(GROUP_PREFIX)


def check_no_system_topic(name: str) -> None:
    """Check that users may publish to a topic, trim it and delete it.

    Args:
        name: The name of the topic.

    Raises:
        ConfigError: It is a system topic.
    """
    if is_system_topic(name):
        raise ConfigError(
            f"{name!r} is a system topic, in which brokers keep what they need: only they write, trim and delete it"
        )
