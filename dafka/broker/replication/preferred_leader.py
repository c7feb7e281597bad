"""Transfers the leadership of logs to their preferred replicas on request."""

from __future__ import annotations

import attrs
import trio

from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.log.log import Log
from dafka.broker.core.log.log_table import LogTable
from dafka.broker.core.partition_address import name_log
from dafka.broker.interbroker.messenger import BrokerMessenger, Message
from dafka.broker.replication.replicator import Replicator

ASK_AGAIN_S = 0.5
"""Seconds after which the preferred replica is asked again if it does not lead yet."""


@attrs.frozen
class TransferLeadership(Message):
    """Asks the preferred replica of a log to lead it."""

    KIND = "transfer-leadership"
    log: str


class PreferredLeaderElections:
    """Makes preferred replicas the leaders of logs."""

    def __init__(self, log_table: LogTable, replicator: Replicator, messenger: BrokerMessenger) -> None:
        self._log_table = log_table
        self._replicator = replicator
        self._messenger = messenger
        messenger.on(TransferLeadership, lambda _sender, message: self._transfer_leadership(message.log))

    async def elect_preferred(self, log: Log, timeout_s: float) -> ErrorCode:
        """Transfer the leadership of a log to its preferred replica, and wait until it leads.

        The replica requests votes as after a failover, so that no committed record can be lost. Return NONE, or
        ELECTION_NOT_NEEDED if it leads already, PREFERRED_LEADER_NOT_AVAILABLE if it is dead, full or drained,
        UNKNOWN_TOPIC_OR_PARTITION if the topic is deleted meanwhile, or REQUEST_TIMED_OUT.
        """
        found = self._replicator.logs.find(name_log(self._log_table.topics[log.topic].topic_id, log.number))
        if found is None:
            return ErrorCode.ELECTION_NOT_NEEDED  # this broker is its only replica
        preferred = found.replica.rank_replicas()[0]
        if self._leads(log, preferred):
            return ErrorCode.ELECTION_NOT_NEEDED
        if not found.replica.may_lead(preferred):
            return ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
        with trio.move_on_after(timeout_s):
            while not self._leads(log, preferred) and not log.is_gone:
                self._request_transfer(preferred, found.name)
                with trio.move_on_after(ASK_AGAIN_S):
                    await self._replicator.led_logs.wait_leadership(log)
        if log.is_gone:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ErrorCode.NONE if self._leads(log, preferred) else ErrorCode.REQUEST_TIMED_OUT

    def _leads(self, log: Log, address: str) -> bool:
        leadership = log.leadership
        return leadership.is_led if address == self._messenger.address else leadership.leader == address

    def _request_transfer(self, preferred: str, name: str) -> None:
        if preferred == self._messenger.address:
            self._transfer_leadership(name)
        else:
            self._messenger.send(preferred, TransferLeadership(name))

    def _transfer_leadership(self, name: str) -> None:
        log = self._replicator.logs.find(name)
        if log is not None:
            self._replicator.act(self._replicator.logs.transfer_leadership(log))
