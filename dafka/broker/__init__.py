"""A broker as its listeners see it, whatever protocol their clients speak.

A listener uses `Service`: the broker's logs, groups, transactions and users. `accept_clients` accepts its connections.
"""

from dafka.broker.accepting import AcceptedClient, accept_clients, open_listening
from dafka.broker.crowd import Crowd
from dafka.broker.producer_table import ProducerTable
from dafka.broker.security import ListenerSecurity, is_loopback
from dafka.broker.service import Service, open_service
from dafka.broker.slots import CoordinatorError

__all__ = [
    "AcceptedClient",
    "CoordinatorError",
    "Crowd",
    "ListenerSecurity",
    "ProducerTable",
    "Service",
    "accept_clients",
    "is_loopback",
    "open_listening",
    "open_service",
]
