"""The roles: each connects a state machine to its sockets, discovery and storage."""

from dafka.roles.arguments import Time
from dafka.roles.consumer import Consumer, open_consumer
from dafka.roles.events import EventFeed
from dafka.roles.group_tools import GroupDescription, MemberDescription, describe_group, list_groups, reset_group
from dafka.roles.observer import Observer, open_observer
from dafka.roles.producer import Producer, open_producer
from dafka.roles.reader import Range, Reader, open_reader
from dafka.roles.statistics import (
    ConsumerStatistics,
    Health,
    Histogram,
    ProducerStatistics,
    StoreStatistics,
    TowerStatistics,
)
from dafka.roles.store import Store, serve_store
from dafka.roles.tower import Tower, serve_tower

__all__ = [
    "Consumer",
    "ConsumerStatistics",
    "EventFeed",
    "GroupDescription",
    "Health",
    "Histogram",
    "MemberDescription",
    "Observer",
    "Producer",
    "ProducerStatistics",
    "Range",
    "Reader",
    "Store",
    "StoreStatistics",
    "Time",
    "Tower",
    "TowerStatistics",
    "describe_group",
    "list_groups",
    "open_consumer",
    "open_observer",
    "open_producer",
    "open_reader",
    "reset_group",
    "serve_store",
    "serve_tower",
]
