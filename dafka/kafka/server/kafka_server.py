"""The state that all clients of Kafka share."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Hashable

from dafka.broker.broker import Broker
from dafka.broker.connections.connection_quotas import ConnectionQuotas
from dafka.kafka.protocol.messages.logs import FetchPartition
from dafka.kafka.server.counters import Counters
from dafka.kafka.server.fetch_sessions import FetchSessions
from dafka.kafka.server.quota_meter import QuotaMeter
from dafka.kafka.server.share_sessions import ShareSessions

REPORT_S = 60.0
"""How long the same line is not logged again."""

REPORTED_MAX = 1000
"""The maximum number of lines that are remembered for that."""


class RecentReports:
    """Limits how often the same subject is logged, so that a client that reconnects does not fill the log."""

    def __init__(self) -> None:
        self._at: OrderedDict[Hashable, float] = OrderedDict()

    def is_due(self, subject: Hashable, now: float) -> bool:
        """Return whether a subject was not logged for `REPORT_S`. If so, record the time, in seconds."""
        if now - self._at.get(subject, float("-inf")) < REPORT_S:
            return False
        self._at[subject] = now
        self._at.move_to_end(subject)
        if len(self._at) > REPORTED_MAX:
            self._at.popitem(last=False)
        return True


class KafkaServer:
    """The state that all clients of Kafka share.

    `bootstrap_servers` is the server's address for clients, `HOST:PORT`, and empty until it listens. `receiving` is the
    memory for requests that are being received, `answers` for responses that clients have not read yet. `refusals` are
    the unsupported requests that were logged, and `quota_meter` meters clients by the quotas of the cluster.
    """

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.bootstrap_servers = ""
        kafka = broker.config.kafka
        self.fetch_sessions = FetchSessions[FetchPartition](lambda: 1 + secrets.randbelow(2**31 - 1))
        self.share_sessions = ShareSessions(kafka.share_sessions_max)
        self.counters = Counters()
        self.quotas = ConnectionQuotas(kafka.connections_max, kafka.connections_per_address_max)
        self.receiving = broker.memory.make_pool(kafka.receiving_bytes_max)
        self.answers = broker.memory.make_pool(kafka.answers_bytes_max)
        self.refusals = RecentReports()
        self.quota_meter = QuotaMeter(broker.node.tables.state.quotas)
        broker.listeners.append(self)
