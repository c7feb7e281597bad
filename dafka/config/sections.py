"""Every setting, its default, and why it has it: a class a section.

Keys that libdafka has keep libdafka's name, unit and default, so that a reader of its documentation is at home; an
attribute's name says its unit.
"""

from __future__ import annotations

import attrs

from dafka.config.checks import (
    as_endpoints,
    at_least,
    check_endpoint,
    check_endpoints,
    check_host,
    check_listen,
    check_text,
    check_texts,
    one_of,
    setting,
)

MIB = 2**20


@attrs.frozen(kw_only=True)
class NodeConfig:
    """`[node]`: what every node has, whatever its role."""

    wire: str = setting("rfc46", one_of("rfc46", "libdafka"))
    """The dialect to send; both are understood. The clusters of libdafka and jdafka need `libdafka`."""
    bind: str = setting("tcp://127.0.0.1:*", check_endpoint)
    """Where the node's publisher listens: a free port that this machine alone reaches. `tcp://*:*` is a free port of
    every interface; then `[security]` says who is let in."""
    discovery: str = setting("tower", check_text)
    """`tower`, `static:tcp://HOST:PORT,...`, or the name of an installed plugin. In a closed cluster each endpoint of
    `static` is followed by a space and the node's public key."""
    linger_ms: int = setting(1000, at_least(0))
    """How long closing sockets may go on sending what is queued."""
    message_bytes_max: int = setting(256 * MIB, at_least(1024))
    """The largest frame sent, or taken from a peer: its connection is dropped at a larger one, before it is in memory.
    The same for all nodes of a cluster."""
    receive_messages_max: int = setting(10_000, at_least(1))
    """Messages received from one peer and not yet looked at; then it is kept waiting, and its own queue fills."""
    peers_max: int = setting(10_000, at_least(1))
    """Nodes known at once. Of further ones, those take the place of others that were heard of once and not again."""
    connecting_max: int = setting(256, at_least(1))
    """Nodes connected to that have never answered; those found last are tried first, the others wait in line."""
    connections_max: int = setting(10_000, at_least(16))
    """Connections taken from others, if the limit of file descriptors allows as many; those go first that have
    subscribed to nothing."""
    subscriptions_max: int = setting(50_000, at_least(64))
    """Subscriptions that one connection may make at a time; it is ended where it makes more."""
    subscription_bytes_max: int = setting(512 * 1024, at_least(4096))
    """The octets of all that one connection subscribes to, of all connections eight times as many; beyond this it is
    ended, or the one that has most."""
    partitions_max: int = setting(100_000, at_least(1))
    """Partitions followed at once; records of further ones are discarded and counted."""
    partitions_unproven_max: int = setting(50_000, at_least(1))
    """Partitions followed that are known by name alone, without a record of theirs that followed the one before."""
    partitions_per_node_max: int = setting(1000, at_least(1))
    """Partitions that one node may begin to publish; its RECORDs and HEADs of further ones are discarded."""
    tower_timeout_ms: int = setting(10_000, at_least(1))
    """Silence of every tower for this long is an event, and ends a command that has never heard one."""
    grace_ms: int = setting(10_000, at_least(0))
    """When a node is stopped, how long it may take to finish: a store writes and acknowledges what it has received,
    `dafka produce` waits for ACKs, `dafka consume` saves its positions."""


@attrs.frozen(kw_only=True)
class BeaconConfig:
    """`[beacon]`: how a node makes itself known to the towers."""

    interval_ms: int = setting(1000, at_least(1), key="interval")
    """How often a node sends its beacon."""
    timeout_ms: int = setting(4000, at_least(1), key="timeout")
    """A peer silent for this long is disconnected."""
    sub_addresses: tuple[str, ...] = setting(
        ("tcp://127.0.0.1:5556",), check_endpoints, key="sub_address", converter=as_endpoints
    )
    """The towers' SUB sockets, to which nodes send their beacons."""
    pub_addresses: tuple[str, ...] = setting(
        ("tcp://127.0.0.1:5557",), check_endpoints, key="pub_address", converter=as_endpoints
    )
    """The towers' PUB sockets, from which nodes hear of each other."""
    address: str = setting("", check_host)
    """The host that peers should use to reach this node; empty: the address that the tower sees."""
    settle_ms: int = setting(150, at_least(0))
    """After a node's first beacon came back to it, the nodes of a running cluster answer at once; when no new one was
    heard for this long, the cluster counts as found."""


@attrs.frozen(kw_only=True)
class TowerConfig:
    """`[tower]`: where a tower listens."""

    sub_address: str = setting("tcp://127.0.0.1:5556", check_endpoint)
    """Where nodes send their beacons; `tcp://*:5556` for those of other machines, too."""
    nodes_max: int = setting(10_000, at_least(1))
    """Nodes introduced at once; beacons of further ones are discarded until some fall silent."""
    pub_address: str = setting("tcp://127.0.0.1:5557", check_endpoint)
    """Where nodes hear of each other; `tcp://*:5557` for those of other machines, too."""


@attrs.frozen(kw_only=True)
class SecurityConfig:
    """`[security]`: the keys of a closed cluster. Without a key file all is plain, and open to whoever connects."""

    key_file: str = setting("", check_text)
    """The file with this node's or tower's secret key (`dafka keys new`), which nobody else may read."""
    authorized_keys: str = setting("", check_text)
    """A file with a public key a line, or a folder of such files: whom this node or tower lets in, and whom it connects
    to. It is read again when it changes."""
    tower_keys: tuple[str, ...] = setting((), check_texts, converter=as_endpoints)
    """The towers' public keys, or files that hold one: one for all towers, or one for each, in the order of
    `[beacon] sub_address` and `pub_address`."""


@attrs.frozen(kw_only=True)
class ProducerConfig:
    """`[producer]`: how records are published, and how long they are kept."""

    head_interval_ms: int = setting(1000, at_least(1), key="head_interval")
    """How often a HEAD announces the last record, once there is one."""
    high_watermark: int = setting(1_000_000, at_least(0))
    """Messages queued for one slow peer before further ones to it are dropped (it fetches them later)."""
    min_stores: int = setting(1, at_least(0))
    """How many distinct stores must ACK a record before it counts as stored and leaves the producer's memory.
    0: nothing is waited for, and the latest records stay at hand, up to the two limits below."""
    unacknowledged_records_max: int = setting(1_000_000, at_least(1))
    """With this many records unacknowledged, `send` waits."""
    unacknowledged_bytes_max: int = setting(32 * MIB, at_least(1))
    """With contents of this size unacknowledged, `send` waits."""
    close_timeout_ms: int = setting(30_000, at_least(0))
    """When no ACK has come for this long, leaving the producer's block stops waiting for the outstanding ones."""
    silence_ms: int = setting(5000, at_least(1))
    """Records unacknowledged, and no ACK for this long: an event."""
    spool: str = setting("", check_text)
    """A storage URL. Records are made durable there before they are published, and a producer that was killed
    resumes its own partition from it."""


@attrs.frozen(kw_only=True)
class ConsumerConfig:
    """`[consumer]`: where to begin, and how much to hold."""

    offset_reset: str = setting("latest", one_of("latest", "earliest"), key="offset.reset")
    """Where to begin in a partition for which no position is known."""
    high_watermark: int = setting(1_000_000, at_least(0))
    """Messages queued from one fast peer before it drops further ones (they are fetched later)."""
    buffer_bytes_max: int = setting(64 * MIB, at_least(1))
    """Records in order and not yet taken by the program. Beyond this, live records are let go and fetched later."""
    silence_ms: int = setting(5000, at_least(1))
    """A live producer's HEADs or a store's answers missing for this long: an event."""
    name: str = setting("", check_text)
    """Under which name positions are saved."""
    positions: str = setting("", check_text)
    """A storage URL, where positions are saved."""


@attrs.frozen(kw_only=True)
class StoreConfig:
    """`[store]`: where records are kept."""

    storage: str = setting("sqlite:dafka.db", check_text)
    """A storage URL: where records are kept."""
    high_watermark: int = setting(1_000_000, at_least(0))
    """Messages queued from or to one peer before further ones are dropped (they are fetched later)."""
    pending_bytes_max: int = setting(64 * MIB, at_least(1))
    """Records received and not yet durable. Beyond this, live records are let go and fetched later."""
    retention_ms: int = setting(0, at_least(0))
    """Records stored longer ago than this are dropped; 0: however old."""
    retention_bytes: int = setting(0, at_least(0))
    """The contents of each partition that are kept, the oldest going first; 0: however large."""
    retention_records: int = setting(0, at_least(0))
    """How many records of each partition are kept, the oldest going first; 0: however many."""
    retention_interval_ms: int = setting(60_000, at_least(1))
    """How often it is looked for records to drop."""
    retry_ms: int = setting(1000, at_least(1))
    """After the storage failed (a full disk), how long until it is tried again."""
    slow_commit_ms: int = setting(2000, at_least(1))
    """Making records durable takes longer than this: a warning in the log, at most once a minute."""

    @property
    def has_retention(self) -> bool:
        """Does the store drop records by itself?"""
        return bool(self.retention_ms or self.retention_bytes or self.retention_records)


@attrs.frozen(kw_only=True)
class FetchConfig:
    """`[fetch]`: how missing records are asked for, by consumers and stores alike."""

    page_records_first: int = setting(1000, at_least(1))
    """The first FETCH for a partition, while the size of its records is unknown."""
    page_records_max: int = setting(40_000, at_least(1))
    """Later FETCHes ask for at most this many records, all partitions together."""
    page_bytes_max: int = setting(4 * MIB, at_least(1))
    """Later FETCHes ask for as many records as fit into this, all partitions together."""
    partitions_max: int = setting(16, at_least(1))
    """Partitions fetched at the same time; the others wait in line."""
    retry_ms: int = setting(500, at_least(1))
    """No progress for this long: the FETCH is sent again, each time after twice the wait."""
    retry_max_ms: int = setting(5000, at_least(1))
    """The longest wait before a FETCH is sent again."""
    ahead_bytes_max: int = setting(64 * MIB, at_least(0))
    """Records that arrived ahead of a gap and are kept until it is filled; beyond this they are fetched again."""
    reply_records_max: int = setting(1_000_000, at_least(1))
    """Records sent in answer to one FETCH; whoever wants more asks again."""
    replies_max: int = setting(10_000, at_least(1))
    """FETCHes being answered or in line at one node; further ones are discarded, and asked again by their sender."""


@attrs.frozen(kw_only=True)
class LogConfig:
    """`[log]`: what the `dafka` command logs, on standard error. A program that embeds nodes configures `logging`."""

    level: str = setting("warning", one_of("debug", "info", "warning", "error"))
    """What is less important than this is left out."""
    format: str = setting("text", one_of("text", "json"))
    """`text`: a sentence a line. `json`: an object a line, with the event's name and fields (operations.md)."""


@attrs.frozen(kw_only=True)
class MetricsConfig:
    """`[metrics]`: where the `dafka` command answers `/metrics`, `/livez` and `/readyz` over HTTP."""

    listen: str = setting("", check_listen)
    """`PORT`, which is one of 127.0.0.1, or `ADDRESS:PORT`; with port 0 a free one, and where empty, nowhere."""
