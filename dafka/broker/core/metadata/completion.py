"""Completes commands with what only the controller decides: numbers, placements, generations and first epochs."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from dafka.broker.core.metadata.brokers import Brokers
from dafka.broker.core.metadata.cluster_state import ClusterState
from dafka.broker.core.metadata.commands import (
    AddLogs,
    ChangeReplicas,
    Command,
    CreateTopic,
    DeleteTopic,
    RegisterBroker,
)
from dafka.broker.core.metadata.leader_and_isr import EPOCH_STEP, next_epoch
from dafka.broker.core.metadata.planner import Planner
from dafka.broker.core.metadata.store_check import complete_registration
from dafka.broker.core.metadata.topics import Topic

MISSED_EPOCHS = 8
"""How many leader changes of a log the controller can have missed when its topic is deleted."""


class CommandCompleter:
    """Completes commands by the state that the controller has applied, and the brokers that it hears.

    `latest_epoch` returns the latest leader epoch of the logs of a topic that the controller knows.
    """

    def __init__(
        self, state: ClusterState, planner: Planner, brokers: Brokers, latest_epoch: Callable[[Topic], int]
    ) -> None:
        self._state = state
        self._planner = planner
        self._brokers = brokers
        self._latest_epoch = latest_epoch

    def complete(self, command: Command, now: float, wall_ms: int) -> Command:
        """Return a command with what only the controller decides, at a time in seconds and in ms since 1970."""
        state = self._state
        if isinstance(command, RegisterBroker):
            return complete_registration(command, state, lambda each: self._brokers.is_heard(each, now))
        if isinstance(command, CreateTopic):
            return attrs.evolve(command, topic=self._complete_topic(command.topic, wall_ms))
        if isinstance(command, AddLogs) and (topic := state.find_id(command.topic_id)) is not None:
            placed = topic.placement + command.placement
            wider = attrs.evolve(topic, log_count=max(command.log_count, topic.log_count), placement=placed)
            return attrs.evolve(command, placement=self._planner.place(wider)[topic.log_count :])
        if (
            isinstance(command, ChangeReplicas)
            and (topic := state.find_topic_of(command.topic_id, command.log)) is not None
        ):
            present = state.replicas.of(topic, command.log)
            replicas = command.replicas or present.former or present.replicas
            return attrs.evolve(command, replicas=replicas, generation=present.generation + 1)
        if isinstance(command, DeleteTopic) and (topic := state.find_id(command.topic_id)) is not None:
            return attrs.evolve(command, last_epoch=max(topic.first_epoch, self._latest_epoch(topic)))
        return command

    def _complete_topic(self, topic: Topic, wall_ms: int) -> Topic:
        last = self._state.last_epochs.get(topic.name)
        is_first = last is None or (self._brokers.is_alone and not last)
        first_epoch = 0 if is_first else next_epoch((last or 0) + MISSED_EPOCHS * EPOCH_STEP, 0)
        created = attrs.evolve(topic, created_at=wall_ms, first_epoch=first_epoch)
        return attrs.evolve(created, placement=self._planner.place(created))
