"""The systems that are compared."""

from dafka.bench.systems.base import Cluster, Setup, System
from dafka.bench.systems.brokers import NATS, REDIS
from dafka.bench.systems.libdafka import Libdafka
from dafka.bench.systems.ours import STORAGES, Ours
from dafka.bench.systems.raw import Raw

__all__ = ["NATS", "REDIS", "STORAGES", "Cluster", "Libdafka", "Ours", "Raw", "Setup", "System"]
