"""The state that all clients of HTTP and WebSocket share."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import trio

from dafka.broker.broker import Broker
from dafka.broker.connections.connection_quotas import ConnectionQuotas
from dafka.http.forwarding.broker_client import BrokerClient, OtherBrokers
from dafka.http.forwarding.credentials import SignatureChecker, create_key, read_secret
from dafka.http.forwarding.remote_logs import RemoteLogs
from dafka.http.logs.log_access import LogAccess
from dafka.http.logs.publishing import Publisher, append_here
from dafka.http.server.authentication import Authenticator
from dafka.http.server.origins import Origins
from dafka.http.server.sessions import Sessions
from dafka.http.server.survey_cache import SurveyCache
from dafka.http.server.throughput import Throughput
from dafka.http.server.verification import StorageVerification
from dafka.http.websocket.shared_reads import SharedReads
from dafka.storage.plugin_helpers import now_ms


class HttpCounters:
    """The counters of a server since it started.

    Attributes:
        disconnected: Clients that were disconnected, by reason.
        received_bytes: Bytes received from HTTP clients.
        sent_bytes: Bytes sent to HTTP clients.
        responses: Responses, by status.
        requests: Requests, by method and route.
        produced: Records that clients have published, by topic.
        consumed: Records that were sent to clients, by topic.
        websocket_connections: The number of open WebSocket connections.
    """

    def __init__(self) -> None:
        self.disconnected: Counter[str] = Counter()
        self.received_bytes = 0
        self.sent_bytes = 0
        self.responses: Counter[int] = Counter()
        self.requests: Counter[tuple[str, str]] = Counter()
        self.produced: Counter[str] = Counter()
        self.consumed: Counter[str] = Counter()
        self.websocket_connections = 0


class HttpServer:
    """The state that all clients of HTTP and WebSocket share.

    Args:
        broker: The broker and its coordinators.

    Attributes:
        broker: The broker and its coordinators.
        url: The server's URL. Empty until it listens.
        crowd: The connections and their quotas.
        receiving: The memory for bodies that are being received.
        answers: The memory for unpacked records, and for responses that clients have not read yet.
        counters: The counters of requests and responses.
        forwarding_key: The key with which other brokers sign forwarded requests, if there is no secret file and clients
            do not authenticate; else empty.
        client: Connects to other brokers.
        other_brokers: The other brokers of the cluster.
        remote: The logs that other brokers lead.
        logs: Access to the logs for clients.
        own_logs: Access to this broker's logs, for requests that other brokers forward.
        publisher: Publishes records of clients.
        own_publisher: Publishes records that other brokers forward.
        origins: The origins whose pages may use the broker.
        sessions: The sessions of browsers.
        reads: The reads that subscribers share.
        authenticator: Authenticates the users of requests.
        started_at: When the server was created, in milliseconds since 1970.
        throughput: The broker's throughput.
        usage: The last measurement of the storage, and its time by Trio's clock.
        survey_cache: The surveys of the cluster.
        verification: The verification of the storage.
    """

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.url = ""
        http, security = broker.config.http, broker.security
        self.quotas = ConnectionQuotas(http.connections_max, http.connections_per_address_max)
        self.receiving = broker.memory.make_pool(http.receiving_bytes_max)
        self.answers = broker.memory.make_pool(http.answers_bytes_max)
        self.counters = HttpCounters()
        is_open = security.users is None and not security.settings.tls_client_ca
        self.origins = Origins(http.origins, is_open=is_open, is_encrypted=security.tls is not None)
        config, address = broker.config, broker.node.address
        secret = read_secret(config.broker.secret_file)
        self.forwarding_key = create_key() if not secret and security.users is None else ""
        self._secret = secret or self.forwarding_key
        self.client = client = BrokerClient(config, address, secret)
        self.other_brokers = OtherBrokers(broker, client)
        self.remote = RemoteLogs(broker, client, partial(append_here, broker))
        self.logs, self.own_logs = LogAccess(broker, self.remote, client), LogAccess(broker)
        self.publisher = Publisher(self.logs)
        self.own_publisher = Publisher(self.own_logs, creates_topics=False)
        self.sessions = Sessions(trio.current_time)
        self.reads = SharedReads(self.logs, self.answers)
        self.authenticator = Authenticator(security.users, self.sessions, broker.logins)
        self.started_at = now_ms()
        self.throughput = Throughput()
        self.usage: tuple[float, dict[str, Any]] | None = None
        self.survey_cache = SurveyCache(broker.config)
        self.verification = StorageVerification(broker.node.inventory.storage)
        broker.listeners.append(self)

    def check_signatures(self) -> SignatureChecker:
        """Return the signature checker for a new connection."""
        return SignatureChecker(self._secret, self.broker.node.address)
