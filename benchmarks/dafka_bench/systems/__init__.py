"""The systems that are compared: one module each, with the servers and the clients of a system."""

from dafka_bench.systems.base import Cluster, ClusterSetup, System
from dafka_bench.systems.dafka import STORAGES, DafkaSystem
from dafka_bench.systems.libdafka import Libdafka
from dafka_bench.systems.nats import NATS
from dafka_bench.systems.raw import RawZmq
from dafka_bench.systems.redis import REDIS

__all__ = ["NATS", "REDIS", "STORAGES", "Cluster", "ClusterSetup", "DafkaSystem", "Libdafka", "RawZmq", "System"]
