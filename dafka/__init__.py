"""Dafka (ZeroMQ RFC 46) for Trio: decentralised streams of records.

async with dafka.open_producer("orders") as producer:
    await producer.send(b"...")

async with dafka.open_consumer(["orders"]) as consumer:
    async for record in consumer: ...

async with trio.open_nursery() as nursery:
    await nursery.start(dafka.serve_tower)
    await nursery.start(dafka.serve_store)

The modules behind these names are imported when a name is first used, so that `import dafka` takes no time.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dafka.config import (
        BeaconConfig,
        Config,
        ConsumerConfig,
        FetchConfig,
        LogConfig,
        MetricsConfig,
        NodeConfig,
        ProducerConfig,
        SecurityConfig,
        StoreConfig,
        TowerConfig,
    )
    from dafka.errors import DafkaError
    from dafka.records import Partition, Record, RecordBatch
    from dafka.roles import (
        Consumer,
        ConsumerStatistics,
        EventFeed,
        Producer,
        ProducerStatistics,
        Range,
        Reader,
        Store,
        StoreStatistics,
        Tower,
        TowerStatistics,
        open_consumer,
        open_producer,
        open_reader,
        serve_store,
        serve_tower,
    )

__version__ = "0.1.0"

__all__ = [
    "BeaconConfig",
    "Config",
    "Consumer",
    "ConsumerConfig",
    "ConsumerStatistics",
    "DafkaError",
    "EventFeed",
    "FetchConfig",
    "LogConfig",
    "MetricsConfig",
    "NodeConfig",
    "Partition",
    "Producer",
    "ProducerConfig",
    "ProducerStatistics",
    "Range",
    "Reader",
    "Record",
    "RecordBatch",
    "SecurityConfig",
    "Store",
    "StoreConfig",
    "StoreStatistics",
    "Tower",
    "TowerConfig",
    "TowerStatistics",
    "open_consumer",
    "open_producer",
    "open_reader",
    "serve_store",
    "serve_tower",
]

_MODULES = ("config", "errors", "records", "roles")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"dafka.{name}")
    if name in __all__:
        for each in _MODULES:
            module = import_module(f"dafka.{each}")
            if hasattr(module, name):
                value = globals()[name] = getattr(module, name)
                return value
    raise AttributeError(f"module 'dafka' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, *__all__})
