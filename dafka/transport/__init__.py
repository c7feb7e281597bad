"""ZeroMQ under trio: sockets that receive and send by the batch."""

from dafka.transport.loops import choose_loops
from dafka.transport.mesh import Mesh, open_context, open_mesh
from dafka.transport.socket import RunSocket, Socket

__all__ = ["Mesh", "RunSocket", "Socket", "choose_loops", "open_context", "open_mesh"]
