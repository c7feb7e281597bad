"""Tools for the tests of programs that embed dafka, and of plugins: a cluster in the process, and contract checks."""

from dafka.testing.check_discovery import check_discovery
from dafka.testing.cluster import Cluster, open_cluster
from dafka.testing.storage import check_storage

__all__ = ["Cluster", "check_discovery", "check_storage", "open_cluster"]
