"""Hands over the leadership of logs before a broker stops, as Kafka's controlled shutdown does."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import attrs
import trio

from dafka.broker.core.replication.replicated_logs import LogAction, ReplicatedLog
from dafka.broker.core.tables import BrokerTables
from dafka.broker.interbroker.messenger import BrokerMessenger, Message
from dafka.broker.replication.leader import IN_SYNC_S
from dafka.broker.replication.replicator import Replicator

HAND_OVER_S = 2.0
"""The longest time that a stopping broker waits until others lead its logs, in seconds. Without it, the others replace
the leader after about as long."""

NOTICE_S = 0.1
"""Seconds after which a stopping broker asks others to lead. Until then, it hears which of them are stopped with it."""

CHECK_S = 0.02
"""Seconds between two checks whether the others lead."""

LOGS_MAX = 1000
"""How many logs one message names."""


@attrs.frozen
class TakeLeadership(Message):
    """Asks a replica of some logs to lead them. The sender leads them, and stops."""

    KIND = "take-leadership"
    logs: tuple[str, ...]


class LeadershipHandover:
    """Hands over the logs that a broker leads when it stops, and takes over logs from brokers that stop.

    The successor requests votes as for any transfer of leadership, so that no committed record can be lost.
    """

    def __init__(self, tables: BrokerTables, replicator: Replicator, messenger: BrokerMessenger) -> None:
        self._brokers = tables.brokers
        self._logs = tables.logs
        self._replicator = replicator
        self._messenger = messenger
        messenger.on(TakeLeadership, lambda sender, message: self._take_leadership(sender, message.logs))

    async def run(self) -> None:
        """Announce that this broker stops, and wait until others lead its logs, for at most `HAND_OVER_S`.

        It waits for no log of which no other replica is in sync, and for no broker that stops, too. So brokers that are
        stopped at once do not wait for each other.
        """
        if self._brokers.is_alone:
            await trio.lowlevel.checkpoint()
            return
        self._replicator.membership.update_registration(is_stopping=True)
        ask_at = trio.current_time() + NOTICE_S
        asked: dict[ReplicatedLog, str] = {}
        with trio.move_on_after(HAND_OVER_S):
            while successors := self._choose_successors(asked):
                if trio.current_time() >= ask_at:
                    self._ask({log: each for log, each in successors.items() if asked.get(log) != each})
                    asked = successors
                await trio.sleep(CHECK_S)

    def _choose_successors(self, asked: Mapping[ReplicatedLog, str]) -> dict[ReplicatedLog, str]:
        """Return the broker that should lead each log that this broker leads, or that the broker asked does not yet."""
        candidates = frozenset(each.address for each in self._brokers.living() if not each.is_stopping)
        successors: dict[ReplicatedLog, str] = {}
        for log in self._logs:
            replica, successor = log.replica, asked.get(log, "")
            if replica.led_epoch is not None and successor not in candidates:
                successor = replica.choose_successor(candidates, IN_SYNC_S)
            if successor in candidates and not replica.has_successor:
                successors[log] = successor
        return successors

    def _ask(self, successors: Mapping[ReplicatedLog, str]) -> None:
        names = defaultdict[str, list[str]](list)
        for log, successor in successors.items():
            names[successor].append(log.name)
        for successor, found in names.items():
            for first in range(0, len(found), LOGS_MAX):
                self._messenger.send(successor, TakeLeadership(tuple(found[first : first + LOGS_MAX])))

    def _take_leadership(self, leader: str, names: tuple[str, ...]) -> None:
        if self._brokers.own.is_stopping:
            return
        actions: list[LogAction] = []
        for name in names:
            log = self._logs.find(name)
            if log is not None:
                actions += self._logs.transfer_leadership(log, leader)
        self._replicator.act(actions)
