"""The tests of other suites that cannot pass, and why."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_DOCKER = "programs in the container give Kafka its certificates; the tests of `tests/kafka/server` cover TLS"

EXPECTED: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "aiokafka": {
            "TestConsumerIntegration.test_consumer_compressed_returns_older_msgs": (
                "the broker returns the wanted part of a batch where Kafka returns all of it"
            ),
            "TestConsumerIntegration.test_exclude_internal_topics": (
                "offsets are kept in the topic `$offsets`, which clients do not see, and not in `__consumer_offsets`"
            ),
            "TestConsumerIntegration.test_ssl_consume": _DOCKER,
            "TestKafkaProducerIntegration.test_producer_ssl": _DOCKER,
        },
        "kafka-python": {
            "test_admin_integration.test_alter_partition_reassignments": "there is one broker",
            "test_admin_integration.test_alter_replica_log_dirs": "there is one storage",
            "test_admin_integration.test_create_describe_delete_acls": (
                "permissions belong to users, whom `dafka user` administers"
            ),
            "test_admin_integration.test_describe_metadata_quorum": "there is one broker, and no quorum",
            "test_admin_integration.test_elect_leaders": "there is one broker",
            "test_admin_integration.test_list_partition_reassignments": "there is one broker",
        },
    }
)
"""For each suite, tests by the beginning of their names, and the reason."""


def find_reason(suite: str, test: str) -> str | None:
    """Return why a test cannot pass; None if it should."""
    return next((reason for name, reason in EXPECTED[suite].items() if test.startswith(name)), None)
