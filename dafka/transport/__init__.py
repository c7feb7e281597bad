"""ZeroMQ under trio: sockets that receive and send by the batch, and the keys of closed clusters."""

from dafka.transport.caller import Caller
from dafka.transport.closed import split_place
from dafka.transport.crowd import Crowd
from dafka.transport.descriptors import Connection, connection_of, raise_descriptors_max
from dafka.transport.guard import Guard, open_guard
from dafka.transport.keys import KeyPair, is_key
from dafka.transport.listening import listen
from dafka.transport.loops import choose_loops
from dafka.transport.mesh import Mesh, open_context, open_mesh
from dafka.transport.publisher import PublisherSocket
from dafka.transport.security import Security, open_security
from dafka.transport.socket import Origin, RunSocket, Socket

__all__ = [
    "Caller",
    "Connection",
    "Crowd",
    "Guard",
    "KeyPair",
    "Mesh",
    "Origin",
    "PublisherSocket",
    "RunSocket",
    "Security",
    "Socket",
    "choose_loops",
    "connection_of",
    "is_key",
    "listen",
    "open_context",
    "open_guard",
    "open_mesh",
    "open_security",
    "raise_descriptors_max",
    "split_place",
]
