"""What all clients of Kafka that connect to a broker share."""

from __future__ import annotations

import secrets

from dafka.broker import Crowd, Service
from dafka.broker.room import AnswerRoom, ReceivingRoom
from dafka.kafka.fetch_sessions import FetchSessions
from dafka.kafka.protocol.messages.logs import FetchPartition
from dafka.listener.counters import Counters


class KafkaListener:
    """What all clients of Kafka share.

    Args:
        service: The broker and its coordinators.

    Attributes:
        service: The broker and its coordinators.
        bootstrap_servers: Where the listener listens, as clients take it: `HOST:PORT`. Empty until then.
        fetch_sessions: The sessions of fetches.
        counters: What clients have done.
        crowd: The connections.
        receiving: The memory for requests that are being received.
        answers: The memory for answers that clients have not read yet.
    """

    def __init__(self, service: Service) -> None:
        self.service = service
        self.bootstrap_servers = ""
        kafka = service.config.kafka
        self.fetch_sessions = FetchSessions[FetchPartition](lambda: 1 + secrets.randbelow(2**31 - 1))
        self.counters = Counters()
        self.crowd = Crowd(kafka.connections_max, kafka.connections_per_address_max)
        self.receiving = ReceivingRoom(kafka.receiving_bytes_max)
        self.answers = AnswerRoom(kafka.answers_bytes_max)
        service.listeners.append(self)
