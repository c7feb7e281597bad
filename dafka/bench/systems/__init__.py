"""The systems that are compared: one module each, with the servers and the clients of a system."""

from dafka.bench.systems.base import Cluster, ClusterSetup, System
from dafka.bench.systems.dafka import STORAGES, DafkaSystem
from dafka.bench.systems.libdafka import Libdafka
from dafka.bench.systems.nats import NATS
from dafka.bench.systems.raw import RawZmq
from dafka.bench.systems.redis import REDIS

__all__ = ["NATS", "REDIS", "STORAGES", "Cluster", "ClusterSetup", "DafkaSystem", "Libdafka", "RawZmq", "System"]
