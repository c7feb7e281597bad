"""What our own tests use, for embedders' and plugin authors' tests too."""

from dafka.testing.cluster import Cluster, open_cluster

__all__ = ["Cluster", "open_cluster"]
