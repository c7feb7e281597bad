"""How much of the log of metadata each broker has. Only the controller knows, so other brokers ask it."""

from __future__ import annotations

import attrs
import trio

from dafka.broker.core.cluster_status import MetadataReplica, describe_metadata_replicas
from dafka.broker.core.metadata.cluster_state import METADATA_TOPIC
from dafka.broker.core.tables import BrokerTables
from dafka.broker.interbroker.messenger import BrokerMessenger, Message

WAIT_S = 1.0
"""How long to wait for the controller, in seconds."""


@attrs.frozen
class ReplicasRequest(Message):
    """Asks the controller how much of the log of metadata each broker has."""

    KIND = "metadata-replicas?"


@attrs.frozen
class Replicas(Message):
    """Answers `ReplicasRequest`."""

    KIND = "metadata-replicas"
    replicas: tuple[MetadataReplica, ...]


class ReplicaReports:
    """What this broker, and the controller, know of the brokers that have the log of metadata."""

    def __init__(self, tables: BrokerTables, messenger: BrokerMessenger) -> None:
        self._tables = tables
        self._messenger = messenger
        self._answered = trio.Event()
        self._found: tuple[MetadataReplica, ...] = ()
        messenger.on(ReplicasRequest, self._answer)
        messenger.on(Replicas, self._learn)

    async def find(self) -> list[MetadataReplica]:
        """Return the brokers by number, as the controller knows them; as this one does if the controller is silent."""
        log = self._tables.log_table.find_log(METADATA_TOPIC, 0)
        leader = "" if log is None or log.leadership.is_led else log.leadership.leader
        if leader:
            answered = self._answered
            self._messenger.send(leader, ReplicasRequest())
            with trio.move_on_after(WAIT_S):
                await answered.wait()
                return list(self._found)
        await trio.lowlevel.checkpoint()
        return describe_metadata_replicas(self._tables, trio.current_time())

    def _answer(self, sender: str, _message: ReplicasRequest) -> None:
        replicas = describe_metadata_replicas(self._tables, trio.current_time())
        self._messenger.send(sender, Replicas(tuple(replicas)))

    def _learn(self, sender: str, message: Replicas) -> None:
        log = self._tables.log_table.find_log(METADATA_TOPIC, 0)
        if log is not None and sender == log.leadership.leader:
            self._found = message.replicas
            self._answered.set()
            self._answered = trio.Event()
