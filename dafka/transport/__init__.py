"""ZeroMQ for trio: sockets that receive and send messages in batches, and the CURVE keys of closed clusters."""

from dafka.transport.accepted import AcceptedConnection, AcceptedConnections
from dafka.transport.connections import is_other_machine, raise_descriptors_max
from dafka.transport.connector import Connector, diagnose_connection, find_resolution_problem, listen
from dafka.transport.keys import KeyPair
from dafka.transport.loops import choose_loops
from dafka.transport.mesh import Mesh, open_context, open_mesh
from dafka.transport.publisher import PublisherSocket
from dafka.transport.security import Security, open_security
from dafka.transport.socket import RunSocket, Socket
from dafka.transport.zap import ZapHandler, open_zap_handler

__all__ = [
    "AcceptedConnection",
    "AcceptedConnections",
    "Connector",
    "KeyPair",
    "Mesh",
    "PublisherSocket",
    "RunSocket",
    "Security",
    "Socket",
    "ZapHandler",
    "choose_loops",
    "diagnose_connection",
    "find_resolution_problem",
    "is_other_machine",
    "listen",
    "open_context",
    "open_mesh",
    "open_security",
    "open_zap_handler",
    "raise_descriptors_max",
]
