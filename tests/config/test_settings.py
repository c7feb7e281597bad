"""Every setting against a table: its default, what it takes, what it refuses, and which source applies."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from dafka.config import Config, ConsumerConfig, NodeConfig
from dafka.config.configuration import SECTIONS
from dafka.errors import ConfigError

TABLE = """
node.wire                            choice         auto|rfc46|libdafka        auto
node.bind                            endpoint       -                          tcp://127.0.0.1:*
node.discovery                       text           -                          tower
node.record_batches                  choice         on|off                     on
node.linger_ms                       ms             0..                        1000
node.message_bytes_max               bytes          1024..536870912            67108864
node.receive_messages_max            count          1..                        10000
node.peers_max                       count          1..                        10000
node.connecting_max                  count          1..                        256
node.connections_max                 count          16..                       10000
node.subscriptions_max               count          64..                       50000
node.subscription_bytes_max          bytes          4096..                     524288
node.partitions_max                  count          1..                        100000
node.partitions_unproven_max         count          1..                        50000
node.partitions_per_node_max         count          1..                        1000
node.tower_timeout_ms                ms             1..                        10000
node.grace_ms                        ms             0..                        10000
beacon.interval_ms                   ms             1..                        1000
beacon.timeout_ms                    ms             1..                        4000
beacon.tower                         towers         -                          -
beacon.tower_sub                     endpoints      -                          tcp://127.0.0.1:5556
beacon.tower_pub                     endpoints      -                          tcp://127.0.0.1:5557
beacon.advertise                     host           -                          -
beacon.settle_ms                     ms             0..                        150
tower.sub                            endpoint       -                          tcp://127.0.0.1:5556
tower.pub                            endpoint       -                          tcp://127.0.0.1:5557
tower.nodes_max                      count          1..                        10000
security.key_file                    text           -                          -
security.authorized_keys             text           -                          -
security.tower_keys                  texts          -                          -
producer.head_interval_ms            ms             1..                        1000
producer.head_interval_max_ms        ms             1..                        30000
producer.high_watermark              count          0..                        1000000
producer.linger_ms                   ms             0..                        0
producer.compression                 choice         none|gzip|snappy|lz4|zstd  none
producer.min_stores                  count          0..                        1
producer.unacknowledged_records_max  count          1..                        1000000
producer.unacknowledged_bytes_max    bytes          1..                        33554432
producer.close_timeout_ms            ms             0..                        30000
producer.silence_ms                  ms             1..                        5000
producer.new_partition_after_ms      ms             0..                        5000
producer.spool                       text           -                          -
consumer.offset_reset                choice         latest|earliest            latest
consumer.high_watermark              count          0..                        1000000
consumer.buffer_bytes_max            bytes          1..                        67108864
consumer.silence_ms                  ms             1..                        5000
consumer.name                        text           -                          -
consumer.positions                   text           -                          -
consumer.group                       text           -                          -
consumer.group_lease_ms              ms             100..                      10000
consumer.group_handover_ms           ms             0..                        5000
consumer.group_stores                count          0..                        0
store.storage                        text           -                          sqlite:dafka.db
store.high_watermark                 count          0..                        1000000
store.pending_bytes_max              bytes          1..                        67108864
store.retention_ms                   ms             0..                        0
store.retention_bytes                bytes          0..                        0
store.retention_records              count          0..                        0
store.retention_interval_ms          ms             1..                        60000
store.compact_topics                 texts          -                          -
store.compaction_interval_ms         ms             1..                        15000
store.compaction_rate_bytes          bytes          0..                        16777216
store.compaction_dirty_percent       count          0..                        50
store.compaction_keys_max            count          1..                        500000
store.tombstone_ms                   ms             0..                        86400000
store.forget_empty_after_ms          ms             0..                        2592000000
store.retry_ms                       ms             1..                        1000
store.slow_commit_ms                 ms             1..                        2000
cold.storage                         text           -                          -
cold.local_retention_ms              ms             0..                        86400000
cold.local_retention_bytes           bytes          0..                        0
cold.segment_bytes                   bytes          1..                        67108864
cold.segment_ms                      ms             0..                        86400000
cold.interval_ms                     ms             1..                        60000
cold.second_bytes_max                bytes          0..                        0
cold.cache_bytes_max                 bytes          0..                        67108864
cold.timeout_ms                      ms             1..                        30000
broker.number                        count          -1..1023                   -1
broker.initial_brokers               count          1..                        1
broker.cluster                       cluster_id     -                          -
broker.rack                          text           -                          -
broker.replicas                      count          1..                        3
broker.heartbeat_ms                  ms             1..                        250
broker.leader_timeout_ms             ms             1..                        1000
broker.preferred_leader_after_ms     ms             0..                        30000
broker.replace_replicas_after_ms     ms             0..                        60000
broker.delete_delay_ms               ms             0..                        60000
broker.copy_rate_bytes               bytes          0..                        67108864
broker.full_bytes                    bytes          0..                        0
broker.reserve_bytes                 bytes          0..                        268435456
broker.memory                        bytes          0..                        0
broker.secret_file                   text           -                          -
broker.tls_ca                        text           -                          -
kafka.listen                         listen_address -                          -
kafka.advertised_listener            advertised     -                          -
kafka.auto_create_topics             choice         on|off                     on
kafka.log_count                      count          1..                        1
kafka.batch_bytes_max                bytes          1..67109888                16777216
kafka.message_bytes_max              bytes          1..67109888                1048588
kafka.request_bytes_max              bytes          1..                        104857600
kafka.receiving_bytes_max            bytes          1..                        268435456
kafka.receive_ms                     ms             1..                        30000
kafka.answers_bytes_max              bytes          1..                        268435456
kafka.send_ms                        ms             1..                        30000
kafka.connections_max                count          1..                        10000
kafka.connections_per_address_max    count          0..                        0
kafka.idle_ms                        ms             1..                        600000
kafka.rebalance_delay_ms             ms             0..                        0
kafka.session_timeout_min_ms         ms             1..                        6000
http.listen                          listen_address -                          -
http.advertised_url                  text           -                          -
http.connections_max                 count          1..                        10000
http.connections_per_address_max     count          0..                        0
http.origins                         texts          -                          -
http.body_bytes_max                  bytes          1..                        16777216
http.message_bytes_max               bytes          1024..                     4194304
http.subscriptions_max               count          1..                        1000
http.receiving_bytes_max             bytes          1..                        134217728
http.receive_ms                      ms             1..                        30000
http.answers_bytes_max               bytes          1..                        268435456
http.send_ms                         ms             1..                        30000
http.idle_ms                         ms             1..                        120000
clients.users                        text           -                          -
clients.tls_certificate              text           -                          -
clients.tls_key                      text           -                          -
clients.tls_client_ca                text           -                          -
clients.allow_unauthenticated        choice         on|off                     off
clients.login_ms                     ms             1..                        10000
fetch.page_records_first             count          1..                        1000
fetch.page_records_max               count          1..                        40000
fetch.page_bytes_max                 bytes          1..                        4194304
fetch.partitions_max                 count          1..                        16
fetch.retry_ms                       ms             1..                        500
fetch.retry_max_ms                   ms             1..                        5000
fetch.ahead_bytes_max                bytes          0..                        67108864
fetch.reply_records_max              count          1..                        1000000
fetch.replies_max                    count          1..                        10000
log.level                            choice         debug|info|warning|error   warning
log.format                           choice         text|json                  text
metrics.listen                       listen_address -                          -
metrics.topics_max                   count          0..                        100
"""
"""The setting, its kind, its limits or choices, and its default; `-` for none."""


@attrs.frozen
class Row:
    section: str
    name: str
    kind: str
    limits: str
    default: Any

    @classmethod
    def parse(cls, line: str) -> Row:
        path, kind, limits, default = line.split()
        section, _, name = path.partition(".")
        text = "" if default == "-" else default
        if kind in NUMBERS:
            return cls(section, name, kind, limits, int(text))
        return cls(
            section,
            name,
            kind,
            limits,
            tuple(text.split(",")) if kind in LISTS and text else () if kind in LISTS else text,
        )

    @property
    def variable(self) -> str:
        return f"DAFKA_{self.section}_{self.name}".upper()

    def refused(self) -> list[Any]:
        """Return values that the setting does not take."""
        match self.kind:
            case "choice":
                return ["", "x", self.limits, self.limits.partition("|")[0].upper(), 1, True, None, ["x"]]
            case kind if kind in REFUSED:
                return [*REFUSED[kind], 1, True, [1]]
        least, _, most = self.limits.partition("..")
        outside = [int(least) - 1, *([int(most) + 1] if most else [])]
        return [*outside, -2, True, 1.5, [7], None, "", "x", "-7", *FOREIGN_UNITS[self.kind]]

    def taken(self) -> list[tuple[Any, Any]]:
        """Return at least two values that the setting takes, each with the value that it then has."""
        match self.kind:
            case "choice":
                return [(each, each) for each in self.limits.split("|")]
            case kind if kind in TAKEN:
                return TAKEN[kind]
        least, _, most = self.limits.partition("..")
        bounds = [int(least), int(most or 2**40)]
        return [*((each, each) for each in bounds), *UNITS[self.kind]]


NUMBERS = ("ms", "bytes", "count")
LISTS = ("texts", "endpoints", "towers")
UNITS: dict[str, list[tuple[Any, Any]]] = {
    "ms": [("10s", 10_000), ("1.5 H", 5_400_000)],
    "bytes": [("64KiB", 65_536), ("1 mb", 1_000_000)],
    "count": [],
}
FOREIGN_UNITS = {"ms": ["64KiB"], "bytes": ["10s"], "count": ["10s", "64KiB"]}
ENDPOINTS_REFUSED = ["x", "tcp://", "tcp://a", "tcp://:1", "udp://a:1", "tcp://a:65536", "tcp://a:b"]
LISTEN_REFUSED = ["x", "a:", "a:b", ":", "a:65536", "99999", "a b:1", "::1", "[x]:1", None]
REFUSED: dict[str, list[Any]] = {
    "text": [None, ["a"], 1.5],
    "texts": [None, ["a", 1]],
    "endpoint": ["", None, *ENDPOINTS_REFUSED],
    "endpoints": ["", [], None, *ENDPOINTS_REFUSED, ["tcp://a:1", "b"]],
    "listen_address": LISTEN_REFUSED,
    "advertised": [*LISTEN_REFUSED, "0", "a:0"],
    "cluster_id": ["x", "A" * 31, "A" * 33, "a" * 32, "G" * 32, None],
    "host": ["a b", "a:1", "::1", "h" * 256, "[::1", None],
    "towers": ["a:b", "a:0", "a:65535", "a:1:1", "::1", "tcp://a:1", None],
}
TAKEN: dict[str, list[tuple[Any, Any]]] = {
    "text": [("x", "x"), (" 10s,y ", " 10s,y "), ("", "")],
    "texts": [("x", ("x",)), ("x, y,", ("x", "y")), (["x", "y,z"], ("x", "y,z"))],
    "endpoint": [("tcp://*:7", "tcp://*:7"), ("ipc://x", "ipc://x"), ("tcp://[::1]:*", "tcp://[::1]:*")],
    "endpoints": [
        ("tcp://a:1", ("tcp://a:1",)),
        ("tcp://a:1, tcp://b:2,", ("tcp://a:1", "tcp://b:2")),
        (["tcp://a:1", "ipc://b"], ("tcp://a:1", "ipc://b")),
    ],
    "listen_address": [("0", "0"), ("65535", "65535"), ("h:1", "h:1"), ("[::1]:1", "[::1]:1"), ("", "")],
    "advertised": [("1", "1"), ("h:65535", "h:65535"), ("", "")],
    "cluster_id": [("0F" * 16, "0F" * 16), ("A" * 32, "A" * 32), ("", "")],
    "host": [("h", "h"), ("h" * 255, "h" * 255), ("[fe80::1]", "[fe80::1]"), ("", "")],
    "towers": [("h:1", ("h:1",)), ("h, [::1]:7", ("h", "[::1]:7")), (["h:1:3"], ("h:1:3",))],
}
ROWS = [Row.parse(line) for line in TABLE.strip().splitlines()]
each_section = pytest.mark.parametrize("section", SECTIONS)


def rows_of(section: str) -> list[Row]:
    return [row for row in ROWS if row.section == section]


def test_the_table_has_every_setting_in_its_order() -> None:
    settings = [(section, name) for section, kind in SECTIONS.items() for name in attrs.fields_dict(kind)]
    assert [(row.section, row.name) for row in ROWS] == settings
    assert {name: type(getattr(Config(), name)) for name in attrs.fields_dict(Config)} == SECTIONS


def values_of(config: Config) -> dict[tuple[str, str], Any]:
    return {(row.section, row.name): getattr(getattr(config, row.section), row.name) for row in ROWS}


DEFAULTS = {(row.section, row.name): row.default for row in ROWS}


def changed(config: Config) -> dict[tuple[str, str], Any]:
    """Return the settings that do not have their default; of towers, without the endpoints that follow from them."""
    found = {path: value for path, value in values_of(config).items() if value != DEFAULTS[path]}
    if ("beacon", "tower") in found:
        found = {path: value for path, value in found.items() if path[1] not in ("tower_sub", "tower_pub")}
    return found


def in_file(folder: Path, row: Row, value: Any) -> Path:
    path = folder / "dafka.toml"
    path.write_text(f"[{row.section}]\n{row.name} = {json.dumps(value)}\n")
    return path


def sources(row: Row, value: Any, folder: Path) -> Iterator[tuple[str, Any]]:
    """Yield each source that can give a value, and what its errors begin with."""
    yield f"[{row.section}] ", lambda: getattr(Config(), f"with_{row.section}")(**{row.name: value})
    if value is not None:
        yield (f"{folder / 'dafka.toml'}: [{row.section}] ", lambda: Config.load(in_file(folder, row, value), {}))
    if isinstance(value, str) or (row.kind in NUMBERS and type(value) is int):
        yield f"{row.variable}: ", lambda: Config.load(environ={row.variable: str(value)})


@each_section
def test_a_setting_takes_the_values_of_its_kind_from_each_source(section: str, tmp_path: Path) -> None:
    assert values_of(Config()) == values_of(Config.load(environ={})) == DEFAULTS
    for row in rows_of(section):
        for given, value in row.taken():
            expected = {} if value == row.default else {(section, row.name): value}
            for _, configure in sources(row, given, tmp_path):
                assert changed(configure()) == expected, (row, given)


@each_section
def test_a_setting_refuses_other_values_in_one_sentence_that_names_it(section: str, tmp_path: Path) -> None:
    for row in rows_of(section):
        limits = [limit for limit in row.limits.split("..") if limit] if row.kind in NUMBERS else []
        for value in row.refused():
            for begin, configure in sources(row, value, tmp_path):
                with pytest.raises(ConfigError) as caught:
                    configure()
                sentence = str(caught.value)
                name = "" if begin.startswith("DAFKA_") else f"{row.name}: "
                assert sentence.startswith(f"{begin}{name}expected "), (row, value)
                assert "\n" not in sentence
                assert all(limit in sentence for limit in limits), (row, value)


@each_section
def test_the_environment_overrides_the_file_and_the_program_both(section: str, tmp_path: Path) -> None:
    for row in rows_of(section):
        (first, in_first), (second, in_second) = row.taken()[:2]
        variables = {row.variable: ",".join(second) if isinstance(second, list) else str(second)}
        other = ("broker", "replicas") if section != "broker" else ("tower", "nodes_max")
        path = in_file(tmp_path, row, first)
        path.write_text(f"[{other[0]}]\n{other[1]} = 7\n{path.read_text()}")
        config = Config.load(path, variables)
        expected = {other: 7, (section, row.name): in_second}
        assert changed(config) == {path: value for path, value in expected.items() if value != DEFAULTS[path]}
        again = getattr(config, f"with_{section}")(**{row.name: first})
        assert (getattr(getattr(again, section), row.name)) == in_first
        assert (getattr(getattr(config, section), row.name)) == in_second, "the original was changed"


@each_section
def test_unknown_names_are_refused_with_a_suggestion(section: str, tmp_path: Path) -> None:
    name = next(row.name for row in ROWS if row.section == section)
    path = tmp_path / "dafka.toml"
    for text, expected in (
        (f"[{section}]\n{name}x = 1", f"unknown setting '{name}x' in [{section}]: did you mean {name}?"),
        (f"[{section}]\nqqqqqqqq = 1", f"unknown setting 'qqqqqqqq' in [{section}]: expected one of {name}"),
        (f"{section} = 1", f"'{section}' is the name of a section: expected [{section}], and its settings below it"),
        (f"[{section}.{name}]\nq = 1", f"unknown setting '{name}.q' in [{section}]: "),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError) as caught:
            Config.load(path, {})
        assert str(caught.value).startswith(f"{path}: {expected}")


def test_the_storage_of_a_store_names_its_cold_tier() -> None:
    assert Config().with_store(storage="memory:").storage_url == "memory:"
    config = Config().with_store(storage="filelog:log").with_cold(storage="s3://b/p", local_retention_bytes=5)
    options = "local_retention_ms=86400000&local_retention_bytes=5&cold_segment_bytes=67108864&cold_segment_ms=86400000"
    rest = "&cold_interval_ms=60000&cold_rate_bytes=0&cold_cache_bytes=67108864&cold_timeout_ms=30000"
    assert config.storage_url == f"tiered:filelog:log?cold=s3%3A%2F%2Fb%2Fp&{options}{rest}"
    config = config.with_store(storage="filelog:log?x=1").with_cold(local_retention_ms=0)
    assert config.storage_url.startswith("tiered:filelog:log?x=1&cold=s3%3A%2F%2Fb%2Fp&local_retention_bytes=5&")
    with pytest.raises(ConfigError, match=r"^\[cold\] local_retention_ms: expected this or local_retention_bytes, or"):
        config.with_cold(local_retention_bytes=0)


def test_a_store_knows_what_it_drops_and_compacts() -> None:
    store = Config().store
    assert not store.has_retention
    for limit in ("retention_ms", "retention_bytes", "retention_records"):
        given: dict[str, Any] = {limit: 1}
        assert Config().with_store(**given).store.has_retention, limit
    store = Config().with_store(compact_topics="users.*, Exact").store
    assert [store.compacts(topic) for topic in ("users.a", "users", "Exact", "exact", "xExact")] == [
        *(True, False),
        *(True, False, False),
    ]


def test_a_changed_copy_leaves_the_original_and_the_other_sections() -> None:
    original = Config().with_node(wire="libdafka")
    changed = original.with_consumer(offset_reset="earliest", buffer_bytes_max="1MiB")
    assert changed == Config(
        node=NodeConfig(wire="libdafka"), consumer=ConsumerConfig(offset_reset="earliest", buffer_bytes_max=2**20)
    )
    assert original == Config(node=NodeConfig(wire="libdafka"))
