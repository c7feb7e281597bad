"""Makes the reference page about Kafka's protocol: each API, its versions, and what the broker does with it."""

from __future__ import annotations

from collections.abc import Iterator

from dafka.broker.core.metadata.group_settings import GROUP_SETTINGS
from dafka.broker.core.metadata.topic_settings import list_settings
from dafka.broker.core.metadata.topics import Topic
from dafka.config import Config
from dafka.kafka.apis import SERVED
from dafka.kafka.protocol.apis import ADVERTISED
from dafka.kafka.protocol.constants import ApiKey

PREFACE = """\
# Kafka's protocol

`docs/generate.py` makes this page from the tables of the protocol and from the broker's handlers. See
[Use Kafka's clients](../how-to/kafka-clients.md) for how to start a broker.

## What the broker serves

The broker names these versions when a client asks for them. Most clients choose the newest version that both know.
A request of another API or version is not decoded: the broker ends the connection and logs a warning that names the
API, the version and the client. Only ApiVersions in an unknown version is answered, in version 0 with
UNSUPPORTED_VERSION.

| API | key | versions | remarks |
| --- | --- | --- | --- |
"""

NOTES = {
    ApiKey.PRODUCE: "with acks 1, records are on the leader's disk before the answer, and with acks all on the disks "
    "of enough replicas; acks 0 is not answered. From "
    "version 3 on, records are record batches; before it, message sets of version 0 and 1. Each batch of an idempotent "
    "producer is appended once. Where a log has several replicas, a batch that comes before the one it follows is "
    "answered with NOT_ENOUGH_REPLICAS for a second, then with OUT_OF_ORDER_SEQUENCE_NUMBER: librdkafka sends batches "
    "to a new leader in this order, and would send again as new records what the log has already. Records that break a "
    "rule of their topic are named in `record_errors`, at most 1,000. "
    "A partition gets one record batch in a request",
    ApiKey.FETCH: "long polls, sessions (KIP-227), both isolation levels; clients that say their rack read "
    "from a replica there (KIP-392)",
    ApiKey.LIST_OFFSETS: "earliest, latest, by time, and the record with the latest time; from versions 8, 9 and 11 on "
    "the bounds of the [cold tier](../how-to/cold-tier.md): records that move to it leave the disk, so that the latest "
    "tiered record is the one before the earliest local one, which is the next to be moved",
    ApiKey.METADATA: "the living brokers, and who leads which log; topics are created where "
    "`[kafka] auto_create_topics` allows it",
    ApiKey.OFFSET_COMMIT: "also for consumers that assign themselves their logs",
    ApiKey.FIND_COORDINATOR: "the broker that leads the log of `$coordinators` to which the group or transactional id "
    "belongs; a share partition has the coordinator of its group",
    ApiKey.JOIN_GROUP: "eager and cooperative assignment, static members; the classic protocol of groups",
    ApiKey.CREATE_TOPICS: "with a replication factor or with the brokers of each log, and with "
    "[settings](#settings-of-topics). A name that differs from another one only in `.` and `_` is refused",
    ApiKey.DELETE_TOPICS: "as in all requests that change topics, nothing is done with a topic that is named twice",
    ApiKey.CREATE_PARTITIONS: "their number can only increase; with the brokers of the further logs, or without",
    ApiKey.DELETE_RECORDS: "also records of Dafka's own producers, unless another log needs earlier ones of their "
    "partition; POLICY_VIOLATION for a topic that is only compacted",
    ApiKey.INIT_PRODUCER_ID: "for idempotent producers and for transactions, with every storage",
    ApiKey.END_TXN: "from version 5 on, each transaction has an epoch of its own; Produce 12 and TxnOffsetCommit 5 add "
    "their logs and group to the transaction (KIP-890)",
    ApiKey.DESCRIBE_CONFIGS: "topics and groups; and the broker, whose settings cannot be changed by clients: those "
    "that have the same meaning as in Kafka, with their names here as documentation",
    ApiKey.ALTER_CONFIGS: "[topics](#settings-of-topics) and [groups](#settings-of-groups)",
    ApiKey.DESCRIBE_ACLS: "the ACLs of the cluster, and what the broker's file of users permits",
    ApiKey.CREATE_ACLS: "[ACLs of the cluster](../how-to/secure-broker.md#users-and-acls-of-the-cluster), which allow "
    "or deny; hosts are single addresses; from the feature level 3 on",
    ApiKey.DELETE_ACLS: "not what the file of users permits",
    ApiKey.ALTER_CLIENT_QUOTAS: "[quotas](../how-to/secure-broker.md#quotas-of-clients) of users, client ids and "
    "addresses; without `request_percentage`; from the feature level 3 on",
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: "[users of the cluster](../how-to/secure-broker.md#users-and-acls-of-the-"
    "cluster); salts of at least 12 bytes; not users in the broker's file; from the feature level 3 on",
    ApiKey.ELECT_LEADERS: "preferred leaders, which also lead again after `[broker] preferred_leader_after_ms`; no "
    "unclean elections, which would lose records",
    ApiKey.INCREMENTAL_ALTER_CONFIGS: "topics and groups; of a broker, settings are deleted, which changes nothing, "
    "and not set, so `kafka-reassign-partitions.sh` works without `--throttle`",
    ApiKey.API_VERSIONS: "with the feature `metadata.version`: the [feature level]"
    "(../how-to/run-several-brokers.md#upgrade) of the cluster, whose levels have other numbers than Kafka's own; "
    "`transaction.version` is 2 from the feature level 3 on, and `share.version` 1, from 4 on 2",
    ApiKey.DESCRIBE_QUORUM: "log 0 of `__cluster_metadata`: any broker answers with what the controller knows; brokers "
    "that do not vote are observers",
    ApiKey.DESCRIBE_CLUSTER: "fenced brokers (KIP-1073) are dead ones that clients reached",
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: "no metrics are wanted: a client gets its id, and asks again in five minutes",
    ApiKey.PUSH_TELEMETRY: "metrics are discarded",
    ApiKey.UPDATE_FEATURES: "`metadata.version` is raised, and never lowered",
    ApiKey.UNREGISTER_BROKER: "a broker that is lost for good; refused while it is alive, or a log has no quorum "
    "without it",
    ApiKey.DESCRIBE_LOG_DIRS: "the storage, with the size of its disk and the logs that the broker keeps; their sizes "
    "are without compression",
    ApiKey.SASL_HANDSHAKE: "PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512, where users are configured, and OAUTHBEARER, where "
    "the keys of an issuer are",
    ApiKey.CONSUMER_GROUP_HEARTBEAT: "groups with `group.protocol=consumer` (KIP-848): the assignors `uniform` and "
    "`range`, static members, regular expressions of RE2; a group changes its type while its clients are upgraded or "
    "downgraded; from the feature level 2 on",
    ApiKey.SHARE_GROUP_HEARTBEAT: "[share groups](../how-to/kafka-clients.md#share-groups) (KIP-932); from the feature "
    "level 3 on",
    ApiKey.SHARE_FETCH: "whole batches or a number of records; answered as soon as there is a record, whatever "
    "`min_bytes` is; markers of transactions are never delivered",
    ApiKey.SHARE_ACKNOWLEDGE: "accept, release, reject, and renew (KIP-1222); answered when it is committed in the log "
    "of the group's coordinator. Who accepts a record whose lock has expired, or that is accepted already, gets "
    "INVALID_RECORD_STATE. Records that are rejected get [dead letters](../how-to/kafka-clients.md#dead-letters) "
    "(KIP-1191)",
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: "with the lag (KIP-1226), if this broker knows the end of the log",
    ApiKey.LIST_TRANSACTIONS: "patterns of transactional ids are regular expressions of RE2",
    ApiKey.LIST_CONFIG_RESOURCES: "topics, the broker, and groups with settings",
}
"""Remarks on the APIs that are served."""

NOT_SERVED = (
    ("CreateDelegationToken and the others for tokens (38-41)", "there are no tokens"),
    ("InitializeShareGroupState and the others of share states (83-87)", "brokers keep them by messages of their own"),
    ("StreamsGroupHeartbeat, StreamsGroupDescribe (88, 89)", "Kafka Streams uses the classic protocol of groups"),
    ("WriteTxnMarkers (27)", "an administrator ends a transaction by fencing its producer, with InitProducerId"),
    ("AddRaftVoter and RemoveRaftVoter (80, 81)", "the controller chooses the voters"),
    ("AlterReplicaLogDirs (34)", "a broker has one storage"),
)
"""The APIs of clients that are not served, and why. Those among brokers are not listed."""


SETTINGS = """\
## Settings of topics

Kafka's limits apply to all of them. Those without an effect are kept and shown, so that programs can set what they set
in Kafka. DescribeConfigs has these texts, too.

| setting | type | default | meaning |
| --- | --- | --- | --- |
"""


GROUPS = """\
## Settings of groups

They belong to share groups and to groups with `group.protocol=consumer`, and exist without the group. `[kafka]` has the
defaults of those that are numbers.

| setting | type | default | meaning |
| --- | --- | --- | --- |
"""


def kafka_page() -> str:
    """Return the page."""
    refused = "".join(f"| {names} | {reason} |\n" for names, reason in NOT_SERVED)
    return "\n".join(
        (
            PREFACE + "".join(_rows()),
            "## What it does not serve\n\n| API | why |\n| --- | --- |\n" + refused,
            SETTINGS + "".join(_setting_rows()),
            GROUPS + "".join(_group_rows()),
        )
    )


def _setting_rows() -> Iterator[str]:
    for each in list_settings(Topic("", ""), Config()):
        yield f"| `{each.name}` | {each.rule.kind.value} | {each.default} | {each.rule.description} |\n"


def _group_rows() -> Iterator[str]:
    for name, rule in GROUP_SETTINGS.items():
        yield f"| `{name}` | {rule.kind.value} | {rule.default(Config())} | {rule.description} |\n"


def _rows() -> Iterator[str]:
    for key in sorted(SERVED):
        name = "".join(word.capitalize() for word in key.name.split("_"))
        yield f"| {name} | {key.value} | {ADVERTISED[key]} | {NOTES.get(key, '')} |\n"
