"""Makes the leaders of logs drop states of share partitions that were replaced at the coordinator of the group.

Otherwise a leader serves what it has in memory until it compares that with the coordinator; see
`SharePartitions.verify`. It still does so, because a message can be lost and a leader can change meanwhile.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import attrs
import trio

from dafka.broker.coordinator.share_partitions import SharePartitions
from dafka.broker.coordinator.share_store import ANSWER_S
from dafka.broker.core.coordination.effects import ReplacedState
from dafka.broker.core.tables import BrokerTables
from dafka.broker.interbroker.messenger import BrokerMessenger, Message
from dafka.broker.interbroker.pending_answers import Answer, PendingAnswers

STATES_MAX = 500
"""The maximum number of states in a message: messages between brokers are limited."""


@attrs.frozen
class DropShareStates(Message):
    """Asks the leader of logs to drop what it has in memory of the former states of share partitions."""

    KIND = "drop-share-states"
    request: int
    states: tuple[ReplacedState, ...]


@attrs.frozen
class ShareStatesDropped(Answer):
    """Answers `DropShareStates`."""

    KIND = "share-states-dropped"


@attrs.define(eq=False, slots=False)
class ReplacedStates:
    """Drops replaced states here and at other brokers. `_shares` are the share partitions here."""

    _tables: BrokerTables
    _shares: SharePartitions
    _messenger: BrokerMessenger
    _answers: PendingAnswers[ShareStatesDropped] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._answers = PendingAnswers(self._messenger, ShareStatesDropped, ANSWER_S)
        self._messenger.on(DropShareStates, self._on_request)

    async def drop(self, states: Sequence[ReplacedState]) -> None:
        """Drop replaced states. Return when the leaders of their logs have dropped them, or do not answer in time."""
        self._shares.drop_replaced(states)
        led_elsewhere = defaultdict[str, list[ReplacedState]](list)
        for each in states:
            led_elsewhere[self._find_leader(each)].append(each)
        async with trio.open_nursery() as nursery:
            for leader in led_elsewhere.keys() - {"", self._messenger.address}:
                led = led_elsewhere[leader]
                for first in range(0, len(led), STATES_MAX):
                    message = DropShareStates(self._answers.next_number(), tuple(led[first : first + STATES_MAX]))
                    nursery.start_soon(self._answers.ask, leader, message.request, [message])

    def _find_leader(self, state: ReplacedState) -> str:
        """Return the address of the leader of a state's log; empty if there is none, or the topic was deleted."""
        topic = self._tables.log_table.find_client_topic_by_id(state.topic_id)
        log = None if topic is None else self._tables.log_table.find_log(topic.name, state.number)
        return "" if log is None else self._tables.brokers.leader_of(log.leadership)

    def _on_request(self, sender: str, message: DropShareStates) -> None:
        self._shares.drop_replaced(message.states)
        self._messenger.send(sender, ShareStatesDropped(message.request))
