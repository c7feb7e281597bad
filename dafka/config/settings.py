"""Every setting, with its default and its meaning: one class for each section.

A setting's name ends in its unit: `_ms` for milliseconds, `_bytes` for bytes. A setting in milliseconds takes a number
or text such as `10s`; a setting in bytes takes a number or text such as `64MiB`.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Literal

import attrs

from dafka.config.values import (
    check_advertised_address,
    check_bytes,
    check_choice,
    check_cluster_id,
    check_count,
    check_endpoint,
    check_endpoints,
    check_host,
    check_listen_address,
    check_milliseconds,
    check_names,
    check_text,
    check_texts,
    check_towers,
    to_bytes,
    to_milliseconds,
    to_texts,
)
from dafka.endpoints import parse_tower
from dafka.errors import ConfigError
from dafka.records import BATCH_OVERHEAD_BYTES, RECORD_BYTES_LIMIT

DialectName = Literal["auto", "rfc46", "libdafka"]
OffsetReset = Literal["latest", "earliest"]
RecordBatches = Literal["on", "off"]
Switch = Literal["on", "off"]
CompressionName = Literal["none", "gzip", "snappy", "lz4", "zstd"]
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]

MIB = 2**20

RECORD_BYTES_MAX = 64 * MIB
"""The default size limit of a record (`[node] message_bytes_max`) and of a Kafka client's batch. A node has such a
record in memory about four times while it receives, decodes and stores it, and the default limits for records in memory
are large enough for it."""

BATCH_BYTES_MAX = RECORD_BYTES_MAX + BATCH_OVERHEAD_BYTES
"""The size of the record batch with the largest record, uncompressed, in bytes."""

BROKER_NUMBER_MAX = 1023
"""The largest number of a broker."""

DEFAULT_KAFKA_LISTEN = "127.0.0.1:9092"
"""The default address for Kafka clients, with Kafka's port."""


@attrs.frozen(kw_only=True)
class NodeConfig:
    """`[node]`: settings of every node, whatever its role."""

    wire: DialectName = attrs.field(default="auto", validator=check_choice("auto", "rfc46", "libdafka"))
    """The dialect that this node sends. Every node understands both. `auto` is `rfc46` until the node meets nodes of
    libdafka or jdafka, and `libdafka` from then on."""
    bind: str = attrs.field(default="tcp://127.0.0.1:*", validator=check_endpoint)
    """The endpoint on which this node listens to its peers. `*` is any free port. `tcp://*:*` listens on all network
    interfaces: restrict access with `[security]`. It uses IPv4; if a tower has an IPv6 address, IPv6 too."""
    discovery: str = attrs.field(default="tower", validator=check_text)
    """How this node finds its peers: `tower`, `static:tcp://HOST:PORT,...`, or the name of an installed plugin. In a
    closed cluster, each endpoint of `static` is followed by a space and that node's public key."""
    record_batches: RecordBatches = attrs.field(default="on", validator=check_choice("on", "off"))
    """`on`: this node exchanges records in batches with all nodes that support it, which is several times as fast, and
    one by one with others. `off`: one by one with all nodes, as in RFC 46."""
    linger_ms: int = attrs.field(default=1000, converter=to_milliseconds, validator=check_milliseconds(0))
    """How long a closing socket continues to send queued messages."""
    message_bytes_max: int = attrs.field(
        default=RECORD_BYTES_MAX, converter=to_bytes, validator=check_bytes(1024, RECORD_BYTES_LIMIT)
    )
    """The maximum size of a record that this node publishes or accepts: its value, key and headers, and 10 bytes for
    each header. `send` refuses a larger one. A peer that announces a larger frame is disconnected before the frame is
    read into memory; 1 KiB more is allowed for a batch around a record. Use the same value on all nodes of a
    cluster."""
    receive_messages_max: int = attrs.field(default=10_000, validator=check_count(1))
    """How many messages from one peer can wait to be processed. Beyond it, reading from this peer pauses, and messages
    queue up at the peer."""
    peers_max: int = attrs.field(default=10_000, validator=check_count(1))
    """How many peers this node knows at a time. Beyond it, a new peer replaces one that was seen only once."""
    connecting_max: int = attrs.field(default=256, validator=check_count(1))
    """How many connections can be open to peers that have never answered. The peers found last are tried first; the
    others wait."""
    connections_max: int = attrs.field(default=10_000, validator=check_count(16))
    """How many incoming connections this node accepts, if the limit of open files allows. Beyond it, connections
    without a subscription are closed first."""
    subscriptions_max: int = attrs.field(default=50_000, validator=check_count(64))
    """How many subscriptions one connection can have. A connection that asks for more is closed."""
    subscription_bytes_max: int = attrs.field(default=512 * 1024, converter=to_bytes, validator=check_bytes(4096))
    """The total size of one connection's subscriptions. A connection that exceeds it is closed. All connections
    together can use eight times as much; beyond it, the connection that uses most is closed."""
    partitions_max: int = attrs.field(default=100_000, validator=check_count(1))
    """How many partitions this node follows. Records of other partitions are discarded and counted."""
    partitions_unproven_max: int = attrs.field(default=50_000, validator=check_count(1))
    """How many of these partitions may be unproven: known by name only, without two consecutive records."""
    partitions_per_node_max: int = attrs.field(default=1000, validator=check_count(1))
    """How many partitions one peer can publish. Its records and heads of other partitions are discarded."""
    tower_timeout_ms: int = attrs.field(default=10_000, converter=to_milliseconds, validator=check_milliseconds(1))
    """How long all towers can be silent before this is reported as an event. A tower of an idle cluster announces
    silence of up to 10 s, which does not count. Stores and brokers keep trying, and log it again each minute; other
    commands that have never heard a tower end with an error."""
    grace_ms: int = attrs.field(default=10_000, converter=to_milliseconds, validator=check_milliseconds(0))
    """How long a stopping node can take to finish its work: a store writes and acknowledges received records, a broker
    first answers its clients, `dafka produce` waits for ACKs, `dafka consume` saves its positions."""


@attrs.frozen(kw_only=True)
class BeaconConfig:
    """`[beacon]`: how a node finds the towers and is found by other nodes."""

    interval_ms: int = attrs.field(default=1000, converter=to_milliseconds, validator=check_milliseconds(1))
    """How often a node sends its beacon to the towers."""
    timeout_ms: int = attrs.field(default=4000, converter=to_milliseconds, validator=check_milliseconds(1))
    """How long a peer can send no beacon of the first form before it counts as silent. A peer that is silent, or that a
    tower reports as gone, is disconnected when its connection is lost, too."""
    tower: tuple[str, ...] = attrs.field(default=(), converter=to_texts, validator=check_towers)
    """The towers, each by one address: `HOST`, `HOST:SUB_PORT` or `HOST:SUB_PORT:PUB_PORT`. The default ports are 5556
    and 5557; without PUB_PORT, it is the port after SUB_PORT. It sets `tower_sub` and `tower_pub`."""
    tower_sub: tuple[str, ...] = attrs.field(
        default=attrs.Factory(lambda self: self.named_towers[0], takes_self=True),
        converter=to_texts,
        validator=check_endpoints,
    )
    """The SUB endpoints of the towers, to which this node sends its beacons: one for each tower."""
    tower_pub: tuple[str, ...] = attrs.field(
        default=attrs.Factory(lambda self: self.named_towers[1], takes_self=True),
        converter=to_texts,
        validator=check_endpoints,
    )
    """The PUB endpoints of the towers, from which this node learns of its peers: one for each tower."""
    advertise: str = attrs.field(default="", validator=check_host)
    """The host name or address at which peers reach this node. Empty: the address that the tower sees."""
    settle_ms: int = attrs.field(default=150, converter=to_milliseconds, validator=check_milliseconds(0))
    """How long a joining node waits for more peers, or for the directories of more towers. With the first form of
    beacons, it is settled when it has heard its own beacon and, for this long, no new peer. Then a consumer at `latest`
    waits as long again, until all producers have its subscriptions."""

    def __attrs_post_init__(self) -> None:
        if self.tower and (self.tower_sub, self.tower_pub) != self.named_towers:
            raise ConfigError("tower: expected either tower, or tower_sub and tower_pub, not both")

    @property
    def named_towers(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The SUB endpoints and the PUB endpoints of the towers in `tower`; those of a local tower if it is empty."""
        try:
            pairs = [parse_tower(text) for text in self.tower or ("127.0.0.1",)]
        except (AttributeError, TypeError, ValueError):  # for the validator of `tower` to refuse
            pairs = [parse_tower("127.0.0.1")]
        return tuple(sub for sub, _ in pairs), tuple(pub for _, pub in pairs)


@attrs.frozen(kw_only=True)
class TowerConfig:
    """`[tower]`: where a tower listens."""

    sub: str = attrs.field(default="tcp://127.0.0.1:5556", validator=check_endpoint)
    """The SUB endpoint, on which the tower receives beacons. `tcp://*:5556` accepts nodes of other machines over
    IPv4, `tcp://[::]:5556` over IPv4 and IPv6."""
    pub: str = attrs.field(default="tcp://127.0.0.1:5557", validator=check_endpoint)
    """The PUB endpoint, on which the tower announces nodes to each other. `tcp://*:5557` accepts nodes of other
    machines over IPv4, `tcp://[::]:5557` over IPv4 and IPv6."""
    nodes_max: int = attrs.field(default=10_000, validator=check_count(1))
    """How many nodes the tower announces at a time. Beacons of other nodes are discarded until some fall silent."""


@attrs.frozen(kw_only=True)
class SecurityConfig:
    """`[security]`: the keys of a closed cluster. Without `key_file`, anyone can connect, and nothing is encrypted."""

    key_file: str = attrs.field(default="", validator=check_text)
    """The file with this node's or tower's secret key, made by `dafka keys new`. Only its owner may be able to read
    it."""
    authorized_keys: str = attrs.field(default="", validator=check_text)
    """A file with one public key per line, or a folder of such files: the nodes and towers that may connect to this one
    and to which it connects. Changes take effect without a restart."""
    tower_keys: tuple[str, ...] = attrs.field(default=(), converter=to_texts, validator=check_texts)
    """The towers' public keys, or files with one each. One key is for all towers; several keys are in the order of
    `[beacon] tower_sub`."""


@attrs.frozen(kw_only=True)
class ProducerConfig:
    """`[producer]`: how records are published, and how long a producer keeps them."""

    head_interval_ms: int = attrs.field(default=1000, converter=to_milliseconds, validator=check_milliseconds(1))
    """How often a producer announces its last record (HEAD)."""
    head_interval_max_ms: int = attrs.field(default=30_000, converter=to_milliseconds, validator=check_milliseconds(1))
    """The limit to which the time between two HEADs grows while nothing new is published and all connected stores have
    acknowledged everything. It does not grow while a node of another implementation listens. With the value of
    `head_interval_ms`, the interval is regular."""
    high_watermark: int = attrs.field(default=1_000_000, validator=check_count(0))
    """How many messages can wait for one slow peer: record batches, or single records. Beyond it, messages to this peer
    are dropped, and the peer fetches the records later. When 1 GiB of record batches wait for all peers together (16
    times `[node] message_bytes_max`, but at least 256 MiB), the slowest peer is disconnected; it connects again, and
    fetches the records, too."""
    linger_ms: int = attrs.field(default=0, converter=to_milliseconds, validator=check_milliseconds(0))
    """How long a record can wait for others, so that they are published in one batch. 0: no record waits; only records
    that are sent together form a batch."""
    compression: CompressionName = attrs.field(
        default="none", validator=check_choice("none", "gzip", "snappy", "lz4", "zstd")
    )
    """How batches of records are compressed, on the network and in file logs. Nodes that get records one by one get
    them uncompressed."""
    min_stores: int = attrs.field(default=1, validator=check_count(0))
    """How many stores must acknowledge a record before the producer forgets it. 0: the producer waits for none, and
    keeps the latest records, up to the two limits below."""
    unacknowledged_records_max: int = attrs.field(default=1_000_000, validator=check_count(1))
    """How many records can be unacknowledged. At this number, `send` waits."""
    unacknowledged_bytes_max: int = attrs.field(default=32 * MIB, converter=to_bytes, validator=check_bytes(1))
    """The total size of unacknowledged records. At this size, `send` waits."""
    close_timeout_ms: int = attrs.field(default=30_000, converter=to_milliseconds, validator=check_milliseconds(0))
    """How long a closing producer waits for the next ACK before it gives up, and then at most for nodes of other
    implementations that still fetch records."""
    silence_ms: int = attrs.field(default=5000, converter=to_milliseconds, validator=check_milliseconds(1))
    """How long no ACK arrives while records are unacknowledged before this is reported as an event."""
    new_partition_after_ms: int = attrs.field(default=5000, converter=to_milliseconds, validator=check_milliseconds(0))
    """How long all stores miss acknowledged records before the producer begins a new partition, because the stores were
    replaced by empty ones. 0: without limit."""
    spool: str = attrs.field(default="", validator=check_text)
    """A storage URL. If set, records are durable there before they are published, and a killed producer continues its
    partition from it."""


@attrs.frozen(kw_only=True)
class ConsumerConfig:
    """`[consumer]`: where a consumer begins, and how much it buffers."""

    offset_reset: OffsetReset = attrs.field(default="latest", validator=check_choice("latest", "earliest"))
    """The first record to read in a partition without a saved position: the next one, or the earliest one."""
    high_watermark: int = attrs.field(default=1_000_000, validator=check_count(0))
    """How many messages of one fast peer can wait. Beyond it, messages of this peer are dropped, and the records are
    fetched later."""
    buffer_bytes_max: int = attrs.field(default=64 * MIB, converter=to_bytes, validator=check_bytes(1))
    """The maximum total size of the received records that the program has not taken yet, in order or not. Beyond half
    of it, live records are dropped, and fetched later; up to a quarter can wait for missing earlier records."""
    silence_ms: int = attrs.field(default=5000, converter=to_milliseconds, validator=check_milliseconds(1))
    """How long a live producer, or a store that was asked, can be silent before this is reported as an event. A
    producer without new records repeats its HEAD at growing intervals, and is reported later."""
    name: str = attrs.field(default="", validator=check_text)
    """The name under which positions are saved."""
    positions: str = attrs.field(default="", validator=check_text)
    """The storage URL where positions are saved."""
    group: str = attrs.field(default="", validator=check_text)
    """The name of the group of consumers that share the partitions. Positions are then saved in the cluster."""
    group_lease_ms: int = attrs.field(default=10_000, converter=to_milliseconds, validator=check_milliseconds(100))
    """How long a member of a group can be without contact to the stores. Then it stops, and a quarter of this time
    later, others take over its partitions."""
    group_handover_ms: int = attrs.field(default=5000, converter=to_milliseconds, validator=check_milliseconds(0))
    """How long the program can take to save its positions when another member takes over a partition."""
    group_stores: int = attrs.field(default=0, validator=check_count(0))
    """How many stores must confirm a member's records. Use more than half of the cluster's stores. 0: more than half of
    the stores that a member has been connected to."""


@attrs.frozen(kw_only=True)
class StoreConfig:
    """`[store]`: where a store keeps records, and for how long."""

    storage: str = attrs.field(default="sqlite:dafka.db", validator=check_text)
    """The storage of the records: `sqlite:PATH`, `filelog:FOLDER`, `memory:`, or the URL of an installed plugin."""
    high_watermark: int = attrs.field(default=1_000_000, validator=check_count(0))
    """How many messages from or to one peer can wait. Beyond it, messages are dropped, and the records are fetched
    later."""
    pending_bytes_max: int = attrs.field(default=64 * MIB, converter=to_bytes, validator=check_bytes(1))
    """The total size of received records that are not durable yet. Beyond it, live records are dropped and fetched
    later."""
    retention_ms: int = attrs.field(default=0, converter=to_milliseconds, validator=check_milliseconds(0))
    """How long records are kept after they were stored. 0: without limit."""
    retention_bytes: int = attrs.field(default=0, converter=to_bytes, validator=check_bytes(0))
    """The size up to which the records of a partition are kept, or of a log of a broker; the oldest are dropped first.
    0: without limit."""
    retention_records: int = attrs.field(default=0, validator=check_count(0))
    """How many records of a partition are kept, or of a log of a broker; the oldest are dropped first. 0: without
    limit."""
    retention_interval_ms: int = attrs.field(default=60_000, converter=to_milliseconds, validator=check_milliseconds(1))
    """How often retention runs."""
    compact_topics: tuple[str, ...] = attrs.field(default=(), converter=to_texts, validator=check_texts)
    """The topics that are compacted: the last record of each key stays, and retention does not apply. A pattern such as
    `users.*` matches several topics. A broker's topics can have a setting `cleanup.policy` instead."""
    compaction_interval_ms: int = attrs.field(
        default=15_000, converter=to_milliseconds, validator=check_milliseconds(1)
    )
    """How often the store looks for partitions to compact."""
    compaction_rate_bytes: int = attrs.field(default=16 * MIB, converter=to_bytes, validator=check_bytes(0))
    """The maximum that compaction reads in a second, so that it does not slow down other work. 0: without limit."""
    compaction_dirty_percent: int = attrs.field(default=50, validator=check_count(0))
    """A partition is compacted when at least this part of it, in percent, was stored after the last compaction."""
    compaction_keys_max: int = attrs.field(default=500_000, validator=check_count(1))
    """How many different keys one pass of compaction remembers; 500,000 take about 100 MB. If there are more, it takes
    several passes."""
    tombstone_ms: int = attrs.field(default=24 * 3_600_000, converter=to_milliseconds, validator=check_milliseconds(0))
    """How long compaction keeps a tombstone after it was stored. A consumer that reads a partition from its beginning
    within this time learns of every deletion."""
    forget_empty_after_ms: int = attrs.field(
        default=30 * 24 * 3_600_000, converter=to_milliseconds, validator=check_milliseconds(0)
    )
    """How long there is no message about a partition without records before the store forgets it. 0: without limit."""
    retry_ms: int = attrs.field(default=1000, converter=to_milliseconds, validator=check_milliseconds(1))
    """How long the store waits after its storage failed, as on a full disk, before it tries again."""
    slow_commit_ms: int = attrs.field(default=2000, converter=to_milliseconds, validator=check_milliseconds(1))
    """A commit that takes longer than this is logged as a warning, at most once a minute."""

    @property
    def has_retention(self) -> bool:
        """Return whether the store drops old records."""
        return bool(self.retention_ms or self.retention_bytes or self.retention_records)

    def compacts(self, topic: str) -> bool:
        """Return whether a topic is one of `compact_topics`."""
        return any(fnmatchcase(topic, pattern) for pattern in self.compact_topics)


@attrs.frozen(kw_only=True)
class ColdConfig:
    """`[cold]`: the cold tier of a store or a broker, which keeps older records in an object store."""

    storage: str = attrs.field(default="", validator=check_text)
    """The object store of the cold tier: `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX`, `az://CONTAINER/PREFIX` or
    `file:///FOLDER`. Options of the client follow as `?endpoint=URL&region=NAME`. Empty: a new storage gets no cold
    tier."""
    local_retention_ms: int = attrs.field(
        default=24 * 3_600_000, converter=to_milliseconds, validator=check_milliseconds(0)
    )
    """How long records stay in `[store] storage` before they move to the cold tier. 0: without limit. Kafka calls it
    `local.retention.ms`."""
    local_retention_bytes: int = attrs.field(default=0, converter=to_bytes, validator=check_bytes(0))
    """The size of each partition up to which records stay in `[store] storage`. 0: without limit. Kafka calls it
    `local.retention.bytes`."""
    segment_bytes: int = attrs.field(default=64 * MIB, converter=to_bytes, validator=check_bytes(1))
    """The size of the records in one object. The object is smaller, since it is compressed."""
    segment_ms: int = attrs.field(default=24 * 3_600_000, converter=to_milliseconds, validator=check_milliseconds(0))
    """How long records that should move can wait until there are enough of them for an object."""
    interval_ms: int = attrs.field(default=60_000, converter=to_milliseconds, validator=check_milliseconds(1))
    """How often the store looks for records to move."""
    second_bytes_max: int = attrs.field(default=0, converter=to_bytes, validator=check_bytes(0))
    """The maximum number of bytes of objects written in a second. 0: without limit."""
    cache_bytes_max: int = attrs.field(default=64 * MIB, converter=to_bytes, validator=check_bytes(0))
    """The maximum memory for records that were read from objects."""
    timeout_ms: int = attrs.field(default=30_000, converter=to_milliseconds, validator=check_milliseconds(1))
    """The timeout of a request to the object store. An upload can take a second more for each MiB."""

    def __attrs_post_init__(self) -> None:
        if self.storage and not self.local_retention_ms and not self.local_retention_bytes:
            raise ConfigError("local_retention_ms: expected this or local_retention_bytes, or nothing would move")


@attrs.frozen(kw_only=True)
class KafkaConfig:
    """`[kafka]`: how a broker serves clients of Kafka, and the logs of topics. Its records are in `[store] storage`."""

    listen: str = attrs.field(default="", validator=check_listen_address)
    """The address at which `dafka up` and `dafka broker` listen for Kafka clients: `PORT` (of 127.0.0.1) or
    `ADDRESS:PORT`. Port 0 is any free port. Empty: `dafka up` does not listen for them, and `dafka broker` uses
    127.0.0.1:9092."""
    advertised_listener: str = attrs.field(default="", validator=check_advertised_address)
    """The address at which clients reach the broker, `HOST:PORT`. Empty: the address to which they have connected."""
    auto_create_topics: Switch = attrs.field(default="on", validator=check_choice("on", "off"))
    """Whether a topic is created when a client asks for it or a producer of Dafka publishes to it."""
    log_count: int = attrs.field(default=1, validator=check_count(1))
    """How many logs a new topic has, unless the request that creates it specifies a number. Kafka calls them
    partitions."""
    batch_bytes_max: int = attrs.field(default=16 * MIB, converter=to_bytes, validator=check_bytes(1, BATCH_BYTES_MAX))
    """The maximum decompressed size of the records that a client sends for one log at once, unless the topic has the
    setting `max.decompressed.message.bytes`. A larger batch is refused."""
    message_bytes_max: int = attrs.field(
        default=1_048_588, converter=to_bytes, validator=check_bytes(1, BATCH_BYTES_MAX)
    )
    """The largest batch of a client, compressed if it is, unless the topic has the setting `max.message.bytes`. Kafka
    calls it `message.max.bytes`."""
    request_bytes_max: int = attrs.field(default=100 * MIB, converter=to_bytes, validator=check_bytes(1))
    """The largest request of a client. A client that announces a larger one is disconnected."""
    receiving_bytes_max: int = attrs.field(default=256 * MIB, converter=to_bytes, validator=check_bytes(1))
    """The size of all requests above 16 KiB that are being received. A request counts as it arrives, at most twice;
    while more than half is free, also with a 64th of what is free. Beyond it, reading pauses; users and addresses take
    turns, and clients that send less than 1 MiB in a second are disconnected."""
    receive_ms: int = attrs.field(default=30_000, converter=to_milliseconds, validator=check_milliseconds(1))
    """How long a client can take to send a request that it has begun, and a second more for each MiB that it has
    sent."""
    answers_bytes_max: int = attrs.field(default=256 * MIB, converter=to_bytes, validator=check_bytes(1))
    """The size of all answers that clients have not read yet. When little is left, clients get less with each fetch,
    and clients that do not read are disconnected."""
    send_ms: int = attrs.field(default=30_000, converter=to_milliseconds, validator=check_milliseconds(1))
    """How long a client can take to read 256 KiB of an answer."""
    connections_max: int = attrs.field(default=10_000, validator=check_count(1))
    """How many clients can be connected. Another client replaces one that has not sent a request yet, or is
    disconnected."""
    connections_per_address_max: int = attrs.field(default=0, validator=check_count(0))
    """How many clients of one address can be connected. 0: as many as in all."""
    idle_ms: int = attrs.field(default=600_000, converter=to_milliseconds, validator=check_milliseconds(1))
    """How long a client can be silent before it is disconnected."""
    rebalance_delay_ms: int = attrs.field(default=0, converter=to_milliseconds, validator=check_milliseconds(0))
    """How long a new group of consumers waits for more members before it divides the logs among them."""
    session_timeout_min_ms: int = attrs.field(default=6000, converter=to_milliseconds, validator=check_milliseconds(1))
    """The shortest session timeout that a member of a group can request. Kafka calls it
    `group.min.session.timeout.ms`."""
    consumer_session_timeout_ms: int = attrs.field(
        default=45_000, converter=to_milliseconds, validator=check_milliseconds(1)
    )
    """How long a member of a group with `group.protocol=consumer` can be silent before it is removed. Kafka calls it
    `group.consumer.session.timeout.ms`."""
    consumer_heartbeat_interval_ms: int = attrs.field(
        default=5000, converter=to_milliseconds, validator=check_milliseconds(1)
    )
    """How often such a member sends a heartbeat. Kafka calls it `group.consumer.heartbeat.interval.ms`."""
    consumer_assignors: tuple[str, ...] = attrs.field(
        default=("uniform", "range"), converter=to_texts, validator=check_names
    )
    """The assignors from which such a group can choose: `uniform`, `range`, and those of installed plugins. The first
    one is for groups that choose none. Use the same value on all brokers. Kafka calls it `group.consumer.assignors`."""
    share_members_max: int = attrs.field(default=200, validator=check_count(1))
    """How many members a share group can have. Kafka calls it `group.share.max.size`."""
    share_sessions_max: int = attrs.field(default=2000, validator=check_count(1))
    """How many members of share groups can get records from the broker. Kafka calls it
    `group.share.max.share.sessions`."""
    share_lock_ms: int = attrs.field(default=30_000, converter=to_milliseconds, validator=check_milliseconds(1000))
    """How long a member of a share group has a record, unless the group has the setting
    `share.record.lock.duration.ms`."""
    share_deliveries_max: int = attrs.field(default=5, validator=check_count(1, 1000))
    """How often a share group delivers a record, unless it has the setting `share.delivery.count.limit`."""
    share_locks_max: int = attrs.field(default=2000, validator=check_count(100, 10_000))
    """How many offsets of a log can be in flight in a share group, unless it has the setting
    `share.partition.max.record.locks`."""
    dead_letter_prefix: str = attrs.field(default="dlq.", validator=check_text)
    """How the names of topics begin to which share groups write dead letters. Kafka calls it
    `errors.deadletterqueue.topic.name.prefix`."""
    auto_create_dead_letters: Switch = attrs.field(default="off", validator=check_choice("on", "off"))
    """Whether a topic for dead letters is created when a share group needs it. Kafka calls it
    `errors.deadletterqueue.auto.create.topics.enable`."""


@attrs.frozen(kw_only=True)
class BrokerConfig:
    """`[broker]`: how a broker shares logs with the other brokers of its cluster."""

    number: int = attrs.field(default=-1, validator=check_count(-1, BROKER_NUMBER_MAX))
    """The broker's id for Kafka clients, from 0 to 1023. -1: at its first start, the broker gets the smallest free id,
    and keeps it."""
    initial_brokers: int = attrs.field(default=1, validator=check_count(1))
    """How many brokers must see each other to form a cluster. It is the same on all of them. Only a broker that belongs
    to no cluster and sees none uses it."""
    cluster: str = attrs.field(default="", validator=check_cluster_id)
    """The id of the cluster that the broker joins at its first start. Empty: the only one that it sees; or, if there is
    none, the one that it forms with others."""
    rack: str = attrs.field(default="", validator=check_text)
    """The rack or zone of the broker. The replicas of a log are spread over as many racks as possible."""
    replicas: int = attrs.field(default=3, validator=check_count(1))
    """The number of replicas of each log of a new topic, unless the request that creates it specifies one. While there
    are fewer brokers, each of them has a replica."""
    heartbeat_ms: int = attrs.field(default=250, converter=to_milliseconds, validator=check_milliseconds(1))
    """The time between two heartbeats, less than `leader_timeout_ms`."""
    leader_timeout_ms: int = attrs.field(default=1000, converter=to_milliseconds, validator=check_milliseconds(1))
    """The time without a heartbeat after which others take over the logs of a broker."""
    preferred_leader_after_ms: int = attrs.field(
        default=30_000, converter=to_milliseconds, validator=check_milliseconds(0)
    )
    """How long a preferred leader that has come back must be caught up before it takes leadership back. It takes over
    its logs one after another, within at most the same time again."""
    replace_replicas_after_ms: int = attrs.field(
        default=60_000, converter=to_milliseconds, validator=check_milliseconds(0)
    )
    """How long a broker can be absent before other brokers replace its replicas."""
    delete_delay_ms: int = attrs.field(default=60_000, converter=to_milliseconds, validator=check_milliseconds(0))
    """How long the records of a deleted topic, or of a log that other brokers replicate instead, stay in the storage,
    where nobody sees them. A restart begins the wait again."""
    copy_rate_bytes: int = attrs.field(default=64 * MIB, converter=to_bytes, validator=check_bytes(0))
    """The maximum size of the records that a broker fetches in a second to become an additional replica of logs.
    Fetches that logs need to continue are not limited. 0: no limit."""
    full_bytes: int = attrs.field(default=0, converter=to_bytes, validator=check_bytes(0))
    """A broker with less free space than this gets no new replicas, and transfers the leadership of its logs to
    others."""
    reserve_bytes: int = attrs.field(default=256 * MIB, converter=to_bytes, validator=check_bytes(0))
    """With less free space on the disk than this, a broker takes no records of clients, and transfers the leadership of
    its logs to others. What the cluster needs goes on, so that topics can still be deleted. 0: off."""
    memory: int = attrs.field(default=0, converter=to_bytes, validator=check_bytes(0))
    """The maximum memory for all clients together: their requests, unread responses, and the records that are unpacked
    for them. 0: a quarter of the machine's memory, or of the container's limit."""
    secret_file: str = attrs.field(default="", validator=check_text)
    """A file with a secret of at least 32 characters, which is the same on all brokers of the cluster. Brokers use it
    to authenticate to each other. Needed with `[clients] users`."""
    tls_ca: str = attrs.field(default="", validator=check_text)
    """A file with certificates of the authorities that sign other brokers' certificates, in PEM format. Empty: the
    authorities of the system, and those in `[clients] tls_client_ca`."""

    @property
    def least_free_bytes(self) -> int:
        """The free space below which a broker is full for others."""
        return max(self.full_bytes, self.reserve_bytes)


@attrs.frozen(kw_only=True)
class HttpConfig:
    """`[http]`: how a broker serves WebSocket, HTTP and the console."""

    listen: str = attrs.field(default="", validator=check_listen_address)
    """The address at which `dafka up` and `dafka broker` listen for HTTP clients: `PORT` (of 127.0.0.1) or
    `ADDRESS:PORT`. Port 0 is any free port. Empty: they do not listen for them."""
    advertised_url: str = attrs.field(default="", validator=check_text)
    """The URL at which other brokers reach this one, to forward requests to it: `http://HOST:PORT` or
    `https://HOST:PORT`. Empty: the address at which it listens, or the address of `[node] bind` if it listens at all
    addresses."""
    connections_max: int = attrs.field(default=10_000, validator=check_count(1))
    """How many clients can be connected. Another client replaces one that has not sent a request yet, or is
    disconnected."""
    connections_per_address_max: int = attrs.field(default=0, validator=check_count(0))
    """How many clients of one address can be connected. 0: as many as in all. With a web proxy, all clients have the
    proxy's address."""
    origins: tuple[str, ...] = attrs.field(default=(), converter=to_texts, validator=check_texts)
    """Origins of web pages that may use the broker, in addition to its own: `https://example.com`. Add the name of a
    web proxy on this machine if browsers reach a broker without users through it."""
    body_bytes_max: int = attrs.field(default=16 * MIB, converter=to_bytes, validator=check_bytes(1))
    """The maximum size of a request's body. A larger one is refused."""
    message_bytes_max: int = attrs.field(default=4 * MIB, converter=to_bytes, validator=check_bytes(1024))
    """The largest message over WebSocket, uncompressed. A client that sends a larger one is disconnected."""
    subscriptions_max: int = attrs.field(default=1000, validator=check_count(1))
    """How many subscriptions and watches a WebSocket connection can have."""
    receiving_bytes_max: int = attrs.field(default=128 * MIB, converter=to_bytes, validator=check_bytes(1))
    """The size of all bodies and messages above 16 KiB that are being received. They count as they arrive, at most
    twice; while more than half is free, also with a 64th of what is free. Beyond it, reading pauses; users and
    addresses take turns, and clients that send less than 1 MiB in a second are disconnected."""
    receive_ms: int = attrs.field(default=30_000, converter=to_milliseconds, validator=check_milliseconds(1))
    """How long a client can take to send a request or a message that it has begun, and a second more for each MiB that
    it has sent."""
    answers_bytes_max: int = attrs.field(default=256 * MIB, converter=to_bytes, validator=check_bytes(1))
    """The maximum size of all records that are unpacked for clients, and of unread responses. Beyond it, reads wait,
    and clients that do not read are disconnected."""
    send_ms: int = attrs.field(default=30_000, converter=to_milliseconds, validator=check_milliseconds(1))
    """How long a client can take to read 256 KiB of a response."""
    idle_ms: int = attrs.field(default=120_000, converter=to_milliseconds, validator=check_milliseconds(1))
    """How long a client can send no request before it is disconnected. WebSocket clients get pings, and are
    disconnected if they neither answer nor read for this long."""


@attrs.frozen(kw_only=True)
class ClientsConfig:
    """`[clients]`: how a broker identifies its clients, and protects their connections."""

    users: str = attrs.field(default="", validator=check_text)
    """The file of users, made by `dafka user add`, with their credentials and permissions. Changes take effect without
    a restart. Empty: clients do not authenticate, and may do everything."""
    tls_certificate: str = attrs.field(default="", validator=check_text)
    """The file with the broker's certificate, followed by those of intermediate authorities, in PEM format. Empty:
    connections are not encrypted. Changes of this file and the next two take effect without a restart."""
    tls_key: str = attrs.field(default="", validator=check_text)
    """The file with the certificate's private key, in PEM format, without a password. Empty: it is in the file
    `tls_certificate`."""
    tls_client_ca: str = attrs.field(default="", validator=check_text)
    """A file with certificates of authorities, in PEM format. Clients must then have a certificate of one of them.
    Empty: clients need none."""
    tls_users: Switch = attrs.field(default="off", validator=check_choice("on", "off"))
    """Whether a client of Kafka is the user that the common name of its certificate names, and needs no password. This
    needs `users` and `tls_client_ca`. A user who is not in the file may do what the ACLs of the cluster allow."""
    oauth_keys: str = attrs.field(default="", validator=check_text)
    """A file with the public keys (JWKS) of an issuer of tokens, by which clients log in: over Kafka's protocol
    by OAUTHBEARER, over HTTP and WebSocket with a bearer token. This needs `users`, `oauth_issuer` and
    `oauth_audience`. Changes take effect without a restart. Empty: the keys are fetched from
    `oauth_jwks_endpoint_url`."""
    oauth_jwks_endpoint_url: str = attrs.field(default="", validator=check_text)
    """The URL at which the issuer publishes its public keys, its `jwks_uri`, in place of a file. It begins with
    `https://`, or names this machine. A broker starts without the keys, too, and keeps the former ones while it cannot
    fetch them. A token with an unknown key causes a fetch, at most every 10 s. The environment variable `HTTPS_PROXY`
    counts. Kafka calls it `sasl.oauthbearer.jwks.endpoint.url`. Empty, without a file: tokens are not accepted."""
    oauth_jwks_endpoint_refresh_ms: int = attrs.field(
        default=3_600_000, converter=to_milliseconds, validator=check_milliseconds(1)
    )
    """How often the keys are fetched. Kafka calls it `sasl.oauthbearer.jwks.endpoint.refresh.ms`."""
    oauth_jwks_endpoint_retry_backoff_ms: int = attrs.field(
        default=100, converter=to_milliseconds, validator=check_milliseconds(1)
    )
    """How long the next fetch waits after one that failed. The wait doubles with each one that fails. Kafka calls it
    `sasl.oauthbearer.jwks.endpoint.retry.backoff.ms`."""
    oauth_jwks_endpoint_retry_backoff_max_ms: int = attrs.field(
        default=10_000, converter=to_milliseconds, validator=check_milliseconds(1)
    )
    """The longest wait after fetches that failed. Kafka calls it
    `sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms`."""
    oauth_tls_ca: str = attrs.field(default="", validator=check_text)
    """A file with certificates of the authorities that sign the certificate of `oauth_jwks_endpoint_url`, in PEM
    format. Empty: the authorities of the system."""
    oauth_issuer: str = attrs.field(default="", validator=check_text)
    """The issuer of accepted tokens: their claim `iss`. Kafka calls it `sasl.oauthbearer.expected.issuer`."""
    oauth_audience: str = attrs.field(default="", validator=check_text)
    """The audience of accepted tokens: their claim `aud`, or one of its values. Kafka calls it
    `sasl.oauthbearer.expected.audience`."""
    oauth_user_claim: str = attrs.field(default="sub", validator=check_text)
    """The claim of a token that names the user. A user who is not in the file may do what the ACLs of the cluster
    allow. Kafka calls it `sasl.oauthbearer.sub.claim.name`."""
    allow_unauthenticated: Switch = attrs.field(default="off", validator=check_choice("on", "off"))
    """Whether a broker may listen beyond loopback without `users` and without `tls_client_ca`. Then anyone who can
    reach its port can read and write everything."""
    login_ms: int = attrs.field(default=10_000, converter=to_milliseconds, validator=check_milliseconds(1))
    """How long a client can take to authenticate before it is disconnected."""
    reauthenticate_ms: int = attrs.field(default=0, converter=to_milliseconds, validator=check_milliseconds(0))
    """How long a login of a client of Kafka lasts. The client must then authenticate again on the same connection, as
    new ones do by themselves (KIP-368), or it is disconnected at its next request. 0: as long as the connection."""


@attrs.frozen(kw_only=True)
class FetchConfig:
    """`[fetch]`: how consumers and stores fetch missing records, and how nodes answer."""

    page_records_first: int = attrs.field(default=1000, validator=check_count(1))
    """How many records the first FETCH for a partition asks for, while the size of its records is unknown."""
    page_records_max: int = attrs.field(default=40_000, validator=check_count(1))
    """The maximum number of records that later FETCHes ask for, over all partitions."""
    page_bytes_max: int = attrs.field(default=4 * MIB, converter=to_bytes, validator=check_bytes(1))
    """The maximum size of the records that later FETCHes ask for, over all partitions."""
    partitions_max: int = attrs.field(default=16, validator=check_count(1))
    """How many partitions are fetched at the same time; the others wait."""
    retry_ms: int = attrs.field(default=500, converter=to_milliseconds, validator=check_milliseconds(1))
    """How long a FETCH can make no progress before it is sent again. The wait doubles with each retry."""
    retry_max_ms: int = attrs.field(default=5000, converter=to_milliseconds, validator=check_milliseconds(1))
    """The longest wait before a FETCH is sent again."""
    ahead_bytes_max: int = attrs.field(default=64 * MIB, converter=to_bytes, validator=check_bytes(0))
    """The total size of records kept while records before them are missing. Beyond it, they are dropped and fetched
    again."""
    reply_records_max: int = attrs.field(default=1_000_000, validator=check_count(1))
    """The maximum number of records in the answer to one FETCH; the peer asks again for the rest."""
    replies_max: int = attrs.field(default=10_000, validator=check_count(1))
    """How many FETCHes one node answers or queues. More are discarded, and their senders ask again."""


@attrs.frozen(kw_only=True)
class LogConfig:
    """`[log]`: what the `dafka` command logs to standard error. A program that embeds nodes configures `logging`."""

    level: LogLevel = attrs.field(default="warning", validator=check_choice("debug", "info", "warning", "error"))
    """The lowest level that is logged."""
    format: LogFormat = attrs.field(default="text", validator=check_choice("text", "json"))
    """`text`: one sentence per line. `json`: one object per line, with the event's name and fields."""


@attrs.frozen(kw_only=True)
class MetricsConfig:
    """`[metrics]`: where the `dafka` command serves `/metrics`, `/livez` and `/readyz` over HTTP."""

    listen: str = attrs.field(default="", validator=check_listen_address)
    """`PORT` (of 127.0.0.1) or `ADDRESS:PORT`. Port 0 is any free port. Empty: nothing is served."""
    topics_max: int = attrs.field(default=100, validator=check_count(0))
    """How many topics have separate metrics. Other topics are added up under the label `other`. 0: there are no metrics
    by topic."""
