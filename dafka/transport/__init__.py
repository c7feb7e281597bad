"""ZeroMQ under trio: sockets that receive and send by the batch."""

from dafka.transport.mesh import Mesh, open_context, open_mesh
from dafka.transport.socket import Socket

__all__ = ["Mesh", "Socket", "open_context", "open_mesh"]
