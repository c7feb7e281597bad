"""A node's log: named stdlib loggers, which a program configures as it likes, or leaves alone.

A line's message is a sentence. Beside it stands, as `record.dafka`, what a program would take it apart for: the name of
what happened, the role and address of the node, and the fields.
"""

from __future__ import annotations

import logging

from dafka.protocol import Event, Notice, notice_fields, notice_name


class NodeLog:
    """Writes to one logger (`dafka.store`, for a store) what happened to one node.

    `node` is the node's address; empty where it has none, as a tower.
    """

    def __init__(self, logger: logging.Logger, node: str = "") -> None:
        self._logger = logger
        self._common = {"role": logger.name.rpartition(".")[2]} | ({"node": node} if node else {})

    def write(self, notice: Event | Notice, level: int = logging.INFO) -> None:
        """Logs it. Fields are put together only where somebody listens."""
        if self._logger.isEnabledFor(level):
            event = {"event": notice_name(type(notice)), **self._common, **notice_fields(notice)}
            self._logger.log(level, "%s", notice, extra={"dafka": event})
