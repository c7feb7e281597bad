"""Tools for tests: a cluster or a broker in the process, and checks of plugins against their contracts."""

from dafka.testing.check_assignor import check_assignor
from dafka.testing.check_discovery import check_discovery
from dafka.testing.cluster import Cluster, open_cluster
from dafka.testing.kafka import RunningKafka, kafka
from dafka.testing.storage import check_storage

__all__ = ["Cluster", "RunningKafka", "check_assignor", "check_discovery", "check_storage", "kafka", "open_cluster"]
