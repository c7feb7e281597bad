"""A proxy that cuts connections at random, in the middle of whatever passes."""

from __future__ import annotations

import random
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

CUT_BYTES_MIN, CUT_BYTES_MAX = 1_500, 10_000
"""The bytes that pass a connection, in both directions, until it is cut."""

_RESET = struct.pack("ii", 1, 0)


class CuttingProxy:
    """The proxy. It passes connections on to a port of this machine."""

    def __init__(self, target_port: int, seed: int) -> None:
        self._target = ("127.0.0.1", target_port)
        self._random = random.Random(seed)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.cuts = 0
        self.is_cutting = True

    def serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                broker = socket.create_connection(self._target)
            except OSError:  # the broker is being restarted
                client.close()
                continue
            left = [self._random.randint(CUT_BYTES_MIN, CUT_BYTES_MAX)]
            for source, sink in ((client, broker), (broker, client)):
                threading.Thread(target=self._pass_on, args=(source, sink, left), daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _pass_on(self, source: socket.socket, sink: socket.socket, left: list[int]) -> None:
        with suppress(OSError):
            while data := source.recv(2**16):
                if self.is_cutting and len(data) >= left[0]:
                    sink.sendall(data[: max(left[0], 0)])
                    self.cuts += 1
                    for each in (source, sink):
                        each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                    break
                left[0] -= len(data)
                sink.sendall(data)
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


@contextmanager
def cut_connections(target_port: int, seed: int) -> Iterator[CuttingProxy]:
    proxy = CuttingProxy(target_port, seed)
    thread = threading.Thread(target=proxy.serve, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.close()
        thread.join()
