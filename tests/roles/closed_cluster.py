"""Keys for the nodes of a test's cluster, and a relay that records every byte that passes through it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import attrs
import trio

from dafka import Config
from dafka.transport import KeyPair
from dafka.transport.keys import write_key_file


class Keys:
    """Key files in a folder, and a list of authorized keys. The tower's key is named `tower`."""

    def __init__(self, folder: Path, *names: str) -> None:
        self.folder = folder
        self.authorized = folder / "authorized"
        self.pairs: dict[str, KeyPair] = {}
        for name in ("tower", *names):
            self.add(name)
        self.authorize("tower", *names)

    def add(self, name: str) -> KeyPair:
        """Create a key that is not authorized yet."""
        pair = self.pairs[name] = KeyPair.generate(name)
        write_key_file(self.folder / f"{name}.key", pair)
        return pair

    def authorize(self, *names: str) -> None:
        """Authorize these keys and no others."""
        self.authorized.write_text("".join(f"{self.pairs[name].public} {name}\n" for name in names))

    def config(self, name: str, config: Config | None = None) -> Config:
        """Return the configuration of a node with this key."""
        return (config or Config()).with_security(
            key_file=str(self.folder / f"{name}.key"),
            authorized_keys=str(self.authorized),
            tower_keys=(self.pairs["tower"].public,),
        )


@attrs.define
class Tap:
    """The endpoint of a relay, the bytes that it has relayed each way, and the number of ended connections."""

    endpoint: str
    sent: bytearray = attrs.field(factory=bytearray)
    received: bytearray = attrs.field(factory=bytearray)
    ended: int = 0

    @property
    def captured(self) -> bytes:
        return bytes(self.sent + self.received)


@asynccontextmanager
async def open_tap(target: str) -> AsyncIterator[Tap]:
    """Open a relay to an endpoint. `sent` has the bytes from clients, `received` the bytes from the target."""
    host, _, port = target.partition("://")[2].rpartition(":")
    tap = Tap("")
    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(
            partial(trio.serve_tcp, host="127.0.0.1"), partial(_relay, host, int(port), tap), 0
        )
        tap.endpoint = f"tcp://127.0.0.1:{listener.socket.getsockname()[1]}"
        yield tap
        nursery.cancel_scope.cancel()


async def _relay(host: str, port: int, tap: Tap, stream: trio.SocketStream) -> None:
    try:
        async with await trio.open_tcp_stream(host, port) as target, trio.open_nursery() as nursery:

            async def pump(source: trio.SocketStream, sink: trio.SocketStream, record: bytearray) -> None:
                try:
                    async for chunk in source:
                        record += chunk
                        await sink.send_all(chunk)
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    pass
                nursery.cancel_scope.cancel()

            nursery.start_soon(pump, stream, target, tap.sent)
            nursery.start_soon(pump, target, stream, tap.received)
    except OSError:
        pass
    tap.ended += 1
