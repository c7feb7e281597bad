"""The target `embedded`: this project's roles in the suite's own process and event loop.

A subclass can replace the functions that serve or open the roles, for example with broken variants.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import trio

import dafka
from dafka.exceptions import unwrap_group
from dafka.records import decode_text
from dafka_conformance.model import Dialect, Role
from dafka_conformance.targets.base import Ability, Delivery, Node, Request, Reset, Target, TargetError

DAY_MS = 24 * 60 * 60 * 1000
"""How long a producer waits for ACKs: longer than any scenario takes."""


class EmbeddedTarget(Target):
    """All roles of this project, in the suite's process.

    Attributes:
        serve_tower: Runs the tower; `dafka.serve_tower` by default.
        serve_store: Runs the store; `dafka.serve_store` by default.
        open_producer: Opens the producer; `dafka.open_producer` by default.
        open_consumer: Opens the consumer; `dafka.open_consumer` by default.
    """

    name = "embedded"
    dialects = tuple(Dialect)
    abilities: Mapping[Role, frozenset[Ability]] = {
        Role.TOWER: frozenset({Ability.START}),
        Role.STORE: frozenset({Ability.START, Ability.KILL}),
        Role.PRODUCER: frozenset({Ability.START, Ability.FEED, Ability.CHOOSE_TOPIC}),
        Role.CONSUMER: frozenset({Ability.START, Ability.COLLECT, Ability.CHOOSE_TOPIC, Ability.LATEST}),
    }

    serve_tower: Callable[..., Any] = staticmethod(dafka.serve_tower)
    serve_store: Callable[..., Any] = staticmethod(dafka.serve_store)
    open_producer: Callable[..., AbstractAsyncContextManager[dafka.Producer]] = staticmethod(dafka.open_producer)
    open_consumer: Callable[..., AbstractAsyncContextManager[dafka.Consumer]] = staticmethod(dafka.open_consumer)

    @asynccontextmanager
    async def start(self, request: Request) -> AsyncIterator[Node]:
        """Run a role. A tower or store is listening when the block begins; a producer or consumer is still joining."""
        node = EmbeddedNode()
        role = self._role(request, node)
        with unwrap_group():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(node.run, role)
                try:
                    await node.started.wait()
                    if not node.has_started:
                        raise TargetError(f"the {request.role.title} of {self.name}: {node.exit_reason}")
                    yield node
                finally:
                    node.cancel()

    def config(self, request: Request) -> dafka.Config:
        """Return the settings of a role for a request."""
        return (
            dafka.Config()
            .with_node(wire=request.dialect.value, bind="tcp://127.0.0.1:*")
            .with_beacon(tower_sub=(request.sub_endpoint,), tower_pub=(request.pub_endpoint,))
            .with_tower(sub=request.sub_endpoint, pub=request.pub_endpoint)
            .with_store(storage=f"sqlite:{request.folder / 'store.db'}")
            .with_producer(close_timeout_ms=DAY_MS)
            .with_consumer(offset_reset="earliest" if request.reset is Reset.EARLIEST else "latest")
        )

    def _role(self, request: Request, node: EmbeddedNode) -> Callable[[], Any]:
        """Return the function that runs the role of a request."""
        config = self.config(request)
        topic = decode_text(request.topic)
        if request.role is Role.TOWER:
            return lambda: node.serve(self.serve_tower, config)
        if request.role is Role.STORE:
            return lambda: node.serve(self.serve_store, config)
        if request.role is Role.PRODUCER:
            return lambda: node.produce(self.open_producer(topic, config))
        return lambda: node.consume(self.open_consumer([topic], config))


class EmbeddedNode(Node):
    """A role in the suite's process, created by `EmbeddedTarget`.

    Attributes:
        started: Set when the role has started or failed to start.
        has_started: Whether it has started.
    """

    def __init__(self) -> None:
        super().__init__()
        self.started = trio.Event()
        self.has_started = False
        self._input, self._contents = trio.open_memory_channel[Sequence[bytes]](math.inf)
        self._scope = trio.CancelScope()
        self._gone = trio.Event()

    async def feed(self, contents: Sequence[bytes]) -> None:
        """Queue records for the producer."""
        if self.ended.is_set():
            raise TargetError(f"the producer has ended: {self.exit_reason}")
        await self._input.send(contents)

    async def end_input(self) -> None:
        """Have the producer close once all its records are acknowledged."""
        await self._input.aclose()

    async def kill(self) -> None:
        """Cancel the role and wait for its end. A store still writes the records that it has received."""
        self.cancel()
        await self._gone.wait()

    def cancel(self) -> None:
        """Cancel the role."""
        self._scope.cancel()

    async def run(self, role: Callable[[], Any]) -> None:
        """Run the role to its end. An error becomes the exit reason."""
        try:
            with self._scope, unwrap_group():
                await role()
        except Exception as error:  # any error of a role is a finding, not a failure of the suite
            self.exit_reason = str(error) if isinstance(error, dafka.DafkaError) else repr(error)
        finally:
            if not self._scope.cancel_called:
                self.ended.set()
            self._gone.set()
            self.started.set()

    def _start(self) -> None:
        self.has_started = True
        self.started.set()

    async def serve(self, serve: Callable[..., Any], config: dafka.Config) -> None:
        """Run a tower or a store."""
        async with trio.open_nursery() as nursery:
            await nursery.start(serve, config)
            self._start()

    async def produce(self, opening: AbstractAsyncContextManager[dafka.Producer]) -> None:
        """Publish the queued records. After the end of the input, wait until all are acknowledged."""
        self._start()
        async with opening as producer:
            async for contents in self._contents:
                await producer.send_many(contents)

    async def consume(self, opening: AbstractAsyncContextManager[dafka.Consumer]) -> None:
        """Deliver the received records."""
        self._start()
        async with opening as consumer:
            async for batch in consumer.batches():
                topic = batch.partition.topic.encode("utf-8", "surrogateescape")
                address = batch.partition.address.encode("utf-8", "surrogateescape")
                records = enumerate(batch.values, batch.first_sequence)
                self._deliver.send_nowait(
                    [Delivery(value or b"", topic, address, sequence) for sequence, value in records]
                )
