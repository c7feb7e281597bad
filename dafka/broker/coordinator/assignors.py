"""Loads the assignors of consumer groups that are configured: a broker's own ones, and plugins."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

import attrs

from dafka.broker.core.groups.consumer.assignors import (
    DEFAULT_ASSIGNORS,
    Assignor,
    Subscriber,
    UniformAssignor,
    find_assignment_problem,
)
from dafka.broker.core.groups.consumer.members import Assignment
from dafka.broker.core.metadata.log_replicas import LogKey
from dafka.errors import ConfigError
from dafka.extras import load_plugin

PLUGINS = "dafka.assignors"
"""The entry points of assignors. Each names a class or a function without arguments that makes the assignor."""

_LOGGER = logging.getLogger("dafka.broker")


def load_assignors(names: Iterable[str]) -> dict[str, Assignor]:
    """Return the assignors with these names, in order.

    Raise `ConfigError` if a plugin is not installed or cannot be loaded.
    """
    return {name: DEFAULT_ASSIGNORS.get(name) or _load_plugin(name) for name in names}


def _load_plugin(name: str) -> Assignor:
    try:
        return CheckedAssignor(name, load_plugin(PLUGINS, name, ConfigError)())
    except ConfigError as error:
        built_in = " and ".join(DEFAULT_ASSIGNORS)
        raise ConfigError(f"[kafka] consumer_assignors: {error}; every broker has {built_in}") from None


@attrs.frozen
class CheckedAssignor:
    """The assignor of a plugin. If it fails, or breaks its contract, the group gets the assignment of `uniform`."""

    _name: str
    _assignor: Assignor

    def assign(self, members: Mapping[str, Subscriber], log_counts: Mapping[str, int]) -> dict[str, Assignment]:
        """See `Assignor.assign`."""
        try:
            assigned = self._assignor.assign(members, log_counts)
            found = {member_id: frozenset(LogKey(*log) for log in logs) for member_id, logs in assigned.items()}
            problem = find_assignment_problem(found, members, log_counts)
        except Exception as error:  # a plugin's mistake must not end the broker
            found, problem = {}, f"{type(error).__name__}: {error}"
        if not problem:
            return found
        _LOGGER.warning("the assignor %s is not used for a group, which is assigned uniformly: %s", self._name, problem)
        return UniformAssignor().assign(members, log_counts)
