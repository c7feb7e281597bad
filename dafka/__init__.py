"""Dafka (ZeroMQ RFC 46) for Trio: decentralized streams of records.

    async with dafka.open_producer("orders") as producer:
        await producer.send(b"...")

    async with dafka.open_consumer(["orders"]) as consumer:
        async for record in consumer: ...

    async with trio.open_nursery() as nursery:
        await nursery.start(dafka.serve_tower)
        await nursery.start(dafka.serve_store)

This is for programs on Trio. `dafka.asyncio` and `dafka.blocking` have the same names for other programs. The classes
of events are in `dafka.events`, those of exceptions in `dafka.errors`.

A name's module is imported when the name is first used, so that `import dafka` is fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dafka import errors, events
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
    from dafka.events import Event
    from dafka.protocol.observer.cluster_survey import (
        ClusterSurvey,
        HolderView,
        NodeState,
        NodeView,
        PartitionView,
        Sighting,
        TopicView,
        TowerView,
    )
    from dafka.records import Partition, ProducerRecord, Record, RecordBatch
    from dafka.roles import (
        Consumer,
        ConsumerStatistics,
        EventFeed,
        Health,
        Histogram,
        Observer,
        Producer,
        ProducerStatistics,
        Range,
        Reader,
        Store,
        StoreStatistics,
        Tower,
        TowerStatistics,
        open_consumer,
        open_observer,
        open_producer,
        open_reader,
        serve_store,
        serve_tower,
    )

__version__ = "0.1.0"

__all__ = [
    "BeaconConfig",
    "ClusterSurvey",
    "Config",
    "Consumer",
    "ConsumerConfig",
    "ConsumerStatistics",
    "DafkaError",
    "Event",
    "EventFeed",
    "FetchConfig",
    "Health",
    "Histogram",
    "HolderView",
    "LogConfig",
    "MetricsConfig",
    "NodeConfig",
    "NodeState",
    "NodeView",
    "Observer",
    "Partition",
    "PartitionView",
    "Producer",
    "ProducerConfig",
    "ProducerRecord",
    "ProducerStatistics",
    "Range",
    "Reader",
    "Record",
    "RecordBatch",
    "SecurityConfig",
    "Sighting",
    "Store",
    "StoreConfig",
    "StoreStatistics",
    "TopicView",
    "Tower",
    "TowerConfig",
    "TowerStatistics",
    "TowerView",
    "errors",
    "events",
    "open_consumer",
    "open_observer",
    "open_producer",
    "open_reader",
    "serve_store",
    "serve_tower",
]

_SUBMODULES = ("asyncio", "blocking", "config", "errors", "events", "records", "roles")
_SOURCES = ("config", "errors", "events", "records", "roles", "protocol.observer.cluster_survey")


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return import_module(f"dafka.{name}")
    if name in __all__:
        for source in _SOURCES:
            module = import_module(f"dafka.{source}")
            if hasattr(module, name):
                value = globals()[name] = getattr(module, name)
                return value
    raise AttributeError(f"module 'dafka' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_SUBMODULES, *__all__})
