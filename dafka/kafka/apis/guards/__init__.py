"""Authorizes requests: removes the parts that a user may not do, and answers them as Kafka does."""

from dafka.kafka.apis.guards import administration, groups, logs, transactions  # noqa: F401 (they register themselves)
from dafka.kafka.apis.guards.registry import GUARDS, Decision, Permits, ResponsePatch

__all__ = ["GUARDS", "Decision", "Permits", "ResponsePatch"]
