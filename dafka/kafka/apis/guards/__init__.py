"""The guards of requests: they take away what a user may not do, and answer that as Kafka does."""

from dafka.kafka.apis.guards import administration, groups, logs, transactions  # noqa: F401 (they register themselves)
from dafka.kafka.apis.guards.registry import GUARDS, Decision, Permits, ResponsePatch

__all__ = ["GUARDS", "Decision", "Permits", "ResponsePatch"]
