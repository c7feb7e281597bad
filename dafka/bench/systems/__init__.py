"""The systems that are compared."""

from dafka.bench.systems.base import Cluster, Setup, System
from dafka.bench.systems.dafka import STORAGES, DafkaSystem
from dafka.bench.systems.libdafka import Libdafka
from dafka.bench.systems.nats import NATS
from dafka.bench.systems.raw import Raw
from dafka.bench.systems.redis import REDIS

__all__ = ["NATS", "REDIS", "STORAGES", "Cluster", "DafkaSystem", "Libdafka", "Raw", "Setup", "System"]
