"""Observers for plain threads."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from dafka import roles
from dafka.blocking.node import Node
from dafka.config import Config
from dafka.protocol import ClusterSurvey


class Observer(Node[roles.Observer]):
    """Looks at a cluster without taking part in it. `open_observer` creates one."""

    def survey(self, timeout_s: float) -> ClusterSurvey:
        """Ask every store how much it holds, and wait until all have answered; see `dafka.Observer.survey`."""
        return self._wait(None, partial(self._role.survey, timeout_s))

    def list_topics(self, timeout_s: float) -> tuple[str, ...]:
        """Return the topics that stores hold, or that running producers and consumers use, in alphabetical order."""
        return self._wait(None, partial(self._role.list_topics, timeout_s))


def open_observer(topics: Iterable[str] = (), config: Config | None = None) -> Observer:
    """Open an observer; see `dafka.open_observer`, whose arguments and exceptions it has.

    The observer is open. Leaving its `with` block, or `close`, closes it.
    """
    return Observer(partial(roles.open_observer, topics, config))
