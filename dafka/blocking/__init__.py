"""Dafka for programs without an event loop: scripts, notebooks, Django, Flask.

    with dafka.blocking.open_producer("orders") as producer:
        producer.send(b"...")

    with dafka.blocking.open_consumer(["orders"]) as consumer:
        for record in consumer: ...

The names are those of `dafka`, whose documentation holds here too. What is awaited there blocks the calling thread.
What opens a node returns it open: use it in a `with` block, or call its `close`. Methods that wait take `timeout_s`,
and raise `TimeoutError` when it is over; a call that ends so loses no record. Exceptions have the types that `dafka`
gives them. A producer may be used by several threads at the same time, a consumer by one.

The nodes run on Trio in a thread of their own. It ends when the last node of the process is closed. At the end of the
process, a producer that is still open waits for its records for at most `[producer] close_timeout_ms`, and reports on
stderr how many were not stored. A node cannot be used in a process that was forked after it was opened; open another
one there.
"""

from dafka.blocking.node import EventFeed
from dafka.blocking.roles import (
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
