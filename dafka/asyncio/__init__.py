"""Dafka for asyncio: FastAPI and everything else that does not run on Trio.

    async with dafka.asyncio.open_producer("orders") as producer:
        await producer.send(b"...")

    async with dafka.asyncio.open_consumer(["orders"]) as consumer:
        async for record in consumer: ...

The names are those of `dafka`, whose documentation holds here too. Every method is awaited, except for those that
return an iterator; attributes are not. Instead of `async with`, `await open_producer("orders")` returns an open
producer, which the program closes with `aclose`. Time limits are those of asyncio (`asyncio.timeout`): a cancelled call
loses no record. Exceptions have the types that `dafka` gives them.

The nodes run on Trio in a thread of their own. It ends when the last node of the process is closed. A node may be used
from any event loop of asyncio, but not in a process that was forked after it was opened; open another one there. At the
end of the process, a producer that is still open waits for its records for at most `[producer] close_timeout_ms`, and
reports on stderr how many were not stored.
"""

from dafka.asyncio.node import EventFeed, Opening
from dafka.asyncio.roles import (
    Consumer,
    Observer,
    Producer,
    Range,
    Reader,
    Store,
    Tower,
    open_consumer,
    open_observer,
    open_producer,
    open_reader,
    serve_store,
    serve_tower,
)

__all__ = [
    "Consumer",
    "EventFeed",
    "Observer",
    "Opening",
    "Producer",
    "Range",
    "Reader",
    "Store",
    "Tower",
    "open_consumer",
    "open_observer",
    "open_producer",
    "open_reader",
    "serve_store",
    "serve_tower",
]
