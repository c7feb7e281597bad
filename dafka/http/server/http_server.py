"""The state that all clients of HTTP and WebSocket share."""

from __future__ import annotations

from collections import Counter

import attrs
import trio

from dafka.broker.broker import Broker
from dafka.broker.connections.connection_quotas import ConnectionQuotas
from dafka.http.forwarding.broker_client import BrokerClient, OtherBrokers
from dafka.http.forwarding.credentials import create_key
from dafka.http.forwarding.remote_logs import RemoteLogs
from dafka.http.logs.cluster_logs import ClusterLogs
from dafka.http.logs.group_access import GroupAccess
from dafka.http.logs.local_logs import LocalLogs
from dafka.http.logs.publishing import Publisher
from dafka.http.queues.cluster_queues import ClusterQueues
from dafka.http.queues.local_queues import LocalQueues
from dafka.http.server.authentication import Authenticator, Sessions
from dafka.http.server.origins import Origins
from dafka.http.server.storage_state import StorageMeter, StorageVerification
from dafka.http.server.survey_cache import SurveyCache
from dafka.http.server.throughput import Throughput
from dafka.http.websocket.shared_reads import SharedReads
from dafka.storage.plugin_helpers import now_ms


@attrs.define(eq=False)
class HttpCounters:
    """The counters of a server since it started."""

    received_bytes: int = 0
    sent_bytes: int = 0
    responses: Counter[int] = attrs.field(factory=Counter)
    """Responses, by status."""
    requests: Counter[tuple[str, str]] = attrs.field(factory=Counter)
    """Requests, by method and route."""
    disconnected: Counter[str] = attrs.field(factory=Counter)
    """Clients that were disconnected, by reason."""
    produced: Counter[str] = attrs.field(factory=Counter)
    """Records that clients have published, by topic."""
    consumed: Counter[str] = attrs.field(factory=Counter)
    """Records that were sent to clients, by topic."""
    websocket_connections: int = 0
    """The number of open WebSocket connections."""


class HttpServer:
    """The state that all clients of HTTP and WebSocket share.

    `logs`, `queues`, `groups` and `publisher` are for clients. Requests that other brokers forward use `own_logs`,
    `own_queues`, `own_groups` and `own_publisher`.
    """

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.url = ""
        """Empty until the server listens."""
        http, security = broker.config.http, broker.security
        self.quotas = ConnectionQuotas(http.connections_max, http.connections_per_address_max)
        self.receiving = broker.memory.make_pool(http.receiving_bytes_max)
        """The memory for bodies that are being received."""
        self.answers = broker.memory.make_pool(http.answers_bytes_max)
        """The memory for unpacked records, and for responses that clients have not read yet."""
        self.counters = HttpCounters()
        is_open = security.users is None and not security.settings.tls_client_ca
        self.origins = Origins(http.origins, is_open=is_open, is_encrypted=security.tls is not None)
        config, address, secret = broker.config, broker.node.address, broker.node.secret
        self.forwarding_key = create_key() if not secret and security.users is None else ""
        """Other brokers sign forwarded requests with it; empty if there is a secret file or clients authenticate."""
        self.signing_secret = secret or self.forwarding_key
        self.client = client = BrokerClient(config, address, secret)
        self.other_brokers = OtherBrokers(broker.node, client)
        self.own_logs = LocalLogs(broker)
        self.remote_logs = RemoteLogs(broker, client, self.own_logs.append)
        self.logs = ClusterLogs(self.own_logs, self.remote_logs)
        self.own_queues = LocalQueues(broker, self.answers)
        self.queues = ClusterQueues(self.own_queues, self.remote_logs.queues)
        self.groups, self.own_groups = GroupAccess(broker, client), GroupAccess(broker)
        self.publisher = Publisher(broker, self.logs)
        self.own_publisher = Publisher(broker, self.own_logs, creates_topics=False)
        self.sessions = Sessions(trio.current_time)
        self.reads = SharedReads(self.answers)
        self.authenticator = Authenticator(security.users, self.sessions, broker.logins, security.tokens)
        self.started_at = now_ms()
        self.throughput = Throughput()
        self.storage_meter = StorageMeter(broker.node.inventory.storage, broker.config.store.storage)
        self.survey_cache = SurveyCache(broker.config)
        self.verification = StorageVerification(broker.node.inventory.storage)
        broker.listeners.append(self)
