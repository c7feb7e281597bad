"""Reads replica assignments, in which clients name brokers by number."""

from __future__ import annotations

from collections.abc import Sequence

from dafka.broker.core.error_codes import ErrorCode
from dafka.errors import DafkaError
from dafka.kafka.server.cluster_view import ClusterView

DEFAULT_FACTOR = -1
"""The replication factor that stands for `[broker] replicas`."""


class AssignmentError(DafkaError):
    """An assignment names unsuitable brokers, or more replicas than there are brokers."""

    def __init__(self, message: str, error_code: ErrorCode = ErrorCode.INVALID_REPLICA_ASSIGNMENT) -> None:
        super().__init__(message)
        self.error_code = error_code


def check_factor(cluster: ClusterView, factor: int) -> None:
    """Raise `AssignmentError` if there are fewer brokers than requested replicas."""
    living = len(cluster.brokers.living())
    if factor != DEFAULT_FACTOR and not 1 <= factor <= living:
        raise AssignmentError(
            f"expected a replication factor from 1 to {living}, the number of living brokers, not {factor}",
            ErrorCode.INVALID_REPLICATION_FACTOR,
        )


def read_assignment(cluster: ClusterView, numbers: Sequence[int]) -> tuple[str, ...]:
    """Return the addresses of the requested replicas of a log, the preferred leader first.

    Raise `AssignmentError` if there are no numbers, one occurs twice, or one is not known.
    """
    if not numbers or len(set(numbers)) < len(numbers):
        raise AssignmentError(f"expected at least one broker, and each once, not {list(numbers)}")
    found = []
    for number in numbers:
        broker = cluster.brokers.find_number(number)
        if broker is None:
            known = ", ".join(str(each.number) for each in cluster.brokers.all())
            raise AssignmentError(f"there is no broker {number}, but there are {known}")
        found.append(broker.address)
    return tuple(found)


def read_assignments(cluster: ClusterView, assignments: Sequence[Sequence[int]]) -> list[tuple[str, ...]]:
    """Return the addresses for several logs; see `read_assignment`. All must have the same number of replicas."""
    found = [read_assignment(cluster, each) for each in assignments]
    if len({len(each) for each in found}) > 1:
        raise AssignmentError("expected the same number of brokers for each partition")
    return found
