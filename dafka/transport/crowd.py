"""How many connections one listening socket has, and which of them go where they are too many."""

from __future__ import annotations

from collections.abc import Mapping

from dafka.transport.descriptors import Connection, connection_of, connections_max, cut, open_descriptors

SWEEP_S = 2.0
"""How often the connections are counted."""

SILENT_S = 10.0
"""A connection by which nothing came for so long is not a node's."""

MANY_CONNECTIONS = "connection ended: too many connections"


class Crowd:
    """The connections that were taken at one TCP port. Few of them cost nothing: only many are looked at."""

    def __init__(self, port: int, wanted_max: int) -> None:
        self._port = port
        self._wanted_max = wanted_max
        self._silent: dict[int, tuple[Connection, float]] = {}

    def sweep(self, known: Mapping[int, Connection], now: float) -> int:
        """Ends what is too many: those by which nothing came, then the newest of the `known` ones. Gives how many.

        `known` are those by which something came, by descriptor, the newest last.
        """
        descriptors = open_descriptors()
        limit = connections_max(self._wanted_max)
        if len(descriptors) <= limit // 2 or not self._port:
            self._silent.clear()
            return 0
        taken = {
            source: connection
            for source in descriptors
            if (connection := connection_of(source)) is not None and connection.port == self._port
        }
        silent = {source: connection for source, connection in taken.items() if known.get(source) != connection}
        self._silent = {
            source: self._silent[source] if self._silent.get(source, (None,))[0] == connection else (connection, now)
            for source, connection in silent.items()
        }
        ended = {source for source, (_, since) in self._silent.items() if now - since >= SILENT_S}
        surplus = len(taken) - limit - len(ended)
        if surplus > 0:
            others = [*(source for source in silent if source not in ended), *reversed([*known])]
            ended.update(others[:surplus])
        return sum(cut(source, taken[source]) for source in ended if source in taken)
