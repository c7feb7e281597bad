"""Every setting, its default, and why it has it.

One frozen `Config` holds a section a role. Sections load from TOML, then from `DAFKA_*` environment variables, then
from what the program or the command line sets, each overriding the one before. Keys that libdafka has keep libdafka's
name, unit and default, so that a reader of its documentation is at home; an attribute's name says its unit.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import attrs

from dafka.errors import ConfigError

MIB = 2**20


def _setting(default: Any, *checks: Any, key: str | None = None, converter: Any = None) -> Any:
    return attrs.field(default=default, validator=list(checks), converter=converter, metadata={"key": key})


def _name(attribute: attrs.Attribute[Any]) -> str:
    return str(attribute.metadata.get("key") or attribute.name)


def _at_least(minimum: int) -> Any:
    def check(_: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
        if type(value) is not int or value < minimum:
            raise ConfigError(f"{_name(attribute)}: expected a whole number of at least {minimum}, not {value!r}")

    return check


def _one_of(*choices: str) -> Any:
    def check(_: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
        if value not in choices:
            raise ConfigError(f"{_name(attribute)}: expected {' or '.join(choices)}, not {value!r}")

    return check


def _text(_: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if not isinstance(value, str):
        raise ConfigError(f"{_name(attribute)}: expected text, not {value!r}")


def _texts(_: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if not isinstance(value, tuple) or not all(isinstance(each, str) for each in value):
        raise ConfigError(f"{_name(attribute)}: expected texts, not {value!r}")


def _host(_: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    _text(_, attribute, value)
    if value and not re.fullmatch(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]", value):
        raise ConfigError(
            f"{_name(attribute)}: expected a host name or address, such as 10.0.0.7 or [fe80::1], not {value!r}"
        )


def _endpoints(_: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if not isinstance(value, tuple) or not value:
        found = "none" if value == () else repr(value)
        raise ConfigError(f"{_name(attribute)}: expected endpoints such as tcp://127.0.0.1:5556, not {found}")
    for endpoint in value:
        _endpoint(_, attribute, endpoint)


def _endpoint(_: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    scheme, separator, rest = value.partition("://") if isinstance(value, str) else ("", "", "")
    is_tcp = scheme == "tcp" and rest.rpartition(":")[0] and rest.rpartition(":")[2]
    if not separator or not (is_tcp or (scheme in ("ipc", "inproc") and rest)):
        raise ConfigError(f"{_name(attribute)}: expected an endpoint such as tcp://127.0.0.1:5556, not {value!r}")


def _listen(_: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    found = (
        re.fullmatch(r"(?:([A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\]):)?([0-9]{1,5})", value)
        if isinstance(value, str)
        else None
    )
    if value != "" and (found is None or int(found[2]) > 65535):
        raise ConfigError(
            f"{_name(attribute)}: expected a port or an address with one, such as 9464 or 10.0.0.7:9464, not {value!r}"
        )


def _as_endpoints(value: Any) -> Any:
    """One endpoint, or several with commas between them, or a list."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return tuple(value) if isinstance(value, list) else value


@attrs.frozen(kw_only=True)
class NodeConfig:
    """`[node]`: what every node has, whatever its role."""

    wire: str = _setting("rfc46", _one_of("rfc46", "libdafka"))
    """The dialect to send; both are understood. The clusters of libdafka and jdafka need `libdafka`."""
    bind: str = _setting("tcp://127.0.0.1:*", _endpoint)
    """Where the node's publisher listens: a free port that this machine alone reaches. `tcp://*:*` is a free port of
    every interface; then `[security]` says who is let in."""
    discovery: str = _setting("tower", _text)
    """`tower`, `static:tcp://HOST:PORT,...`, or the name of an installed plugin. In a closed cluster each endpoint of
    `static` is followed by a space and the node's public key."""
    linger_ms: int = _setting(1000, _at_least(0))
    """How long closing sockets may go on sending what is queued."""
    message_bytes_max: int = _setting(256 * MIB, _at_least(1024))
    """The largest frame sent, or taken from a peer: its connection is dropped at a larger one, before it is in memory.
    The same for all nodes of a cluster."""
    receive_messages_max: int = _setting(10_000, _at_least(1))
    """Messages received from one peer and not yet looked at; then it is kept waiting, and its own queue fills."""
    peers_max: int = _setting(10_000, _at_least(1))
    """Nodes known at once. Of further ones, those take the place of others that were heard of once and not again."""
    connecting_max: int = _setting(256, _at_least(1))
    """Nodes connected to that have never answered; those found last are tried first, the others wait in line."""
    connections_max: int = _setting(10_000, _at_least(16))
    """Connections taken from others, if the limit of file descriptors allows as many; those go first that have
    subscribed to nothing."""
    subscriptions_max: int = _setting(50_000, _at_least(64))
    """Subscriptions that one connection may make at a time; it is ended where it makes more."""
    subscription_bytes_max: int = _setting(512 * 1024, _at_least(4096))
    """The octets of all that one connection subscribes to, of all connections eight times as many; beyond this it is
    ended, or the one that has most."""
    partitions_max: int = _setting(100_000, _at_least(1))
    """Partitions followed at once; records of further ones are discarded and counted."""
    partitions_unproven_max: int = _setting(50_000, _at_least(1))
    """Partitions followed that are known by name alone, without a record of theirs that followed the one before."""
    partitions_per_node_max: int = _setting(1000, _at_least(1))
    """Partitions that one node may begin to publish; its RECORDs and HEADs of further ones are discarded."""
    tower_timeout_ms: int = _setting(10_000, _at_least(1))
    """Silence of every tower for this long is an event, and ends a command that has never heard one."""
    grace_ms: int = _setting(10_000, _at_least(0))
    """When a node is stopped, how long it may take to finish: a store writes and acknowledges what it has received,
    `dafka produce` waits for ACKs, `dafka consume` saves its positions."""


@attrs.frozen(kw_only=True)
class BeaconConfig:
    """`[beacon]`: how a node makes itself known to the towers."""

    interval_ms: int = _setting(1000, _at_least(1), key="interval")
    """How often a node sends its beacon."""
    timeout_ms: int = _setting(4000, _at_least(1), key="timeout")
    """A peer silent for this long is disconnected."""
    sub_addresses: tuple[str, ...] = _setting(
        ("tcp://127.0.0.1:5556",), _endpoints, key="sub_address", converter=_as_endpoints
    )
    """The towers' SUB sockets, to which nodes send their beacons."""
    pub_addresses: tuple[str, ...] = _setting(
        ("tcp://127.0.0.1:5557",), _endpoints, key="pub_address", converter=_as_endpoints
    )
    """The towers' PUB sockets, from which nodes hear of each other."""
    address: str = _setting("", _host)
    """The host that peers should use to reach this node; empty: the address that the tower sees."""
    settle_ms: int = _setting(150, _at_least(0))
    """After a node's first beacon came back to it, the nodes of a running cluster answer at once; when no new one was
    heard for this long, the cluster counts as found."""


@attrs.frozen(kw_only=True)
class TowerConfig:
    """`[tower]`: where a tower listens."""

    sub_address: str = _setting("tcp://127.0.0.1:5556", _endpoint)
    """Where nodes send their beacons; `tcp://*:5556` for those of other machines, too."""
    nodes_max: int = _setting(10_000, _at_least(1))
    """Nodes introduced at once; beacons of further ones are discarded until some fall silent."""
    pub_address: str = _setting("tcp://127.0.0.1:5557", _endpoint)
    """Where nodes hear of each other; `tcp://*:5557` for those of other machines, too."""


@attrs.frozen(kw_only=True)
class SecurityConfig:
    """`[security]`: the keys of a closed cluster. Without a key file all is plain, and open to whoever connects."""

    key_file: str = _setting("", _text)
    """The file with this node's or tower's secret key (`dafka keys new`), which nobody else may read."""
    authorized_keys: str = _setting("", _text)
    """A file with a public key a line, or a folder of such files: whom this node or tower lets in, and whom it connects
    to. It is read again when it changes."""
    tower_keys: tuple[str, ...] = _setting((), _texts, converter=_as_endpoints)
    """The towers' public keys, or files that hold one: one for all towers, or one for each, in the order of
    `[beacon] sub_address` and `pub_address`."""


@attrs.frozen(kw_only=True)
class ProducerConfig:
    """`[producer]`: how records are published, and how long they are kept."""

    head_interval_ms: int = _setting(1000, _at_least(1), key="head_interval")
    """How often a HEAD announces the last record, once there is one."""
    high_watermark: int = _setting(1_000_000, _at_least(0))
    """Messages queued for one slow peer before further ones to it are dropped (it fetches them later)."""
    min_stores: int = _setting(1, _at_least(0))
    """How many distinct stores must ACK a record before it counts as stored and leaves the producer's memory.
    0: nothing is waited for, and the latest records stay at hand, up to the two limits below."""
    unacknowledged_records_max: int = _setting(1_000_000, _at_least(1))
    """With this many records unacknowledged, `send` waits."""
    unacknowledged_bytes_max: int = _setting(32 * MIB, _at_least(1))
    """With contents of this size unacknowledged, `send` waits."""
    close_timeout_ms: int = _setting(30_000, _at_least(0))
    """When no ACK has come for this long, leaving the producer's block stops waiting for the outstanding ones."""
    silence_ms: int = _setting(5000, _at_least(1))
    """Records unacknowledged, and no ACK for this long: an event."""
    spool: str = _setting("", _text)
    """A storage URL. Records are made durable there before they are published, and a producer that was killed
    resumes its own partition from it."""


@attrs.frozen(kw_only=True)
class ConsumerConfig:
    """`[consumer]`: where to begin, and how much to hold."""

    offset_reset: str = _setting("latest", _one_of("latest", "earliest"), key="offset.reset")
    """Where to begin in a partition for which no position is known."""
    high_watermark: int = _setting(1_000_000, _at_least(0))
    """Messages queued from one fast peer before it drops further ones (they are fetched later)."""
    buffer_bytes_max: int = _setting(64 * MIB, _at_least(1))
    """Records in order and not yet taken by the program. Beyond this, live records are let go and fetched later."""
    silence_ms: int = _setting(5000, _at_least(1))
    """A live producer's HEADs or a store's answers missing for this long: an event."""
    name: str = _setting("", _text)
    """Under which name positions are saved."""
    positions: str = _setting("", _text)
    """A storage URL, where positions are saved."""


@attrs.frozen(kw_only=True)
class StoreConfig:
    """`[store]`: where records are kept."""

    storage: str = _setting("sqlite:dafka.db", _text)
    """A storage URL: where records are kept."""
    high_watermark: int = _setting(1_000_000, _at_least(0))
    """Messages queued from or to one peer before further ones are dropped (they are fetched later)."""
    pending_bytes_max: int = _setting(64 * MIB, _at_least(1))
    """Records received and not yet durable. Beyond this, live records are let go and fetched later."""
    retention_ms: int = _setting(0, _at_least(0))
    """Records stored longer ago than this are dropped; 0: however old."""
    retention_bytes: int = _setting(0, _at_least(0))
    """The contents of each partition that are kept, the oldest going first; 0: however large."""
    retention_records: int = _setting(0, _at_least(0))
    """How many records of each partition are kept, the oldest going first; 0: however many."""
    retention_interval_ms: int = _setting(60_000, _at_least(1))
    """How often it is looked for records to drop."""
    retry_ms: int = _setting(1000, _at_least(1))
    """After the storage failed (a full disk), how long until it is tried again."""
    slow_commit_ms: int = _setting(2000, _at_least(1))
    """Making records durable takes longer than this: a warning in the log, at most once a minute."""

    @property
    def has_retention(self) -> bool:
        """Does the store drop records by itself?"""
        return bool(self.retention_ms or self.retention_bytes or self.retention_records)


@attrs.frozen(kw_only=True)
class FetchConfig:
    """`[fetch]`: how missing records are asked for, by consumers and stores alike."""

    page_records_first: int = _setting(1000, _at_least(1))
    """The first FETCH for a partition, while the size of its records is unknown."""
    page_records_max: int = _setting(40_000, _at_least(1))
    """Later FETCHes ask for at most this many records, all partitions together."""
    page_bytes_max: int = _setting(4 * MIB, _at_least(1))
    """Later FETCHes ask for as many records as fit into this, all partitions together."""
    partitions_max: int = _setting(16, _at_least(1))
    """Partitions fetched at the same time; the others wait in line."""
    retry_ms: int = _setting(500, _at_least(1))
    """No progress for this long: the FETCH is sent again, each time after twice the wait."""
    retry_max_ms: int = _setting(5000, _at_least(1))
    """The longest wait before a FETCH is sent again."""
    ahead_bytes_max: int = _setting(64 * MIB, _at_least(0))
    """Records that arrived ahead of a gap and are kept until it is filled; beyond this they are fetched again."""
    reply_records_max: int = _setting(1_000_000, _at_least(1))
    """Records sent in answer to one FETCH; whoever wants more asks again."""
    replies_max: int = _setting(10_000, _at_least(1))
    """FETCHes being answered or in line at one node; further ones are discarded, and asked again by their sender."""


@attrs.frozen(kw_only=True)
class LogConfig:
    """`[log]`: what the `dafka` command logs, on standard error. A program that embeds nodes configures `logging`."""

    level: str = _setting("warning", _one_of("debug", "info", "warning", "error"))
    """What is less important than this is left out."""
    format: str = _setting("text", _one_of("text", "json"))
    """`text`: a sentence a line. `json`: an object a line, with the event's name and fields (operations.md)."""


@attrs.frozen(kw_only=True)
class MetricsConfig:
    """`[metrics]`: where the `dafka` command answers `/metrics`, `/livez` and `/readyz` over HTTP."""

    listen: str = _setting("", _listen)
    """`PORT`, which is one of 127.0.0.1, or `ADDRESS:PORT`; with port 0 a free one, and where empty, nowhere."""


@attrs.frozen(kw_only=True)
class Config:
    """All sections together; what is not given has its default."""

    node: NodeConfig = attrs.field(factory=NodeConfig)
    beacon: BeaconConfig = attrs.field(factory=BeaconConfig)
    tower: TowerConfig = attrs.field(factory=TowerConfig)
    security: SecurityConfig = attrs.field(factory=SecurityConfig)
    producer: ProducerConfig = attrs.field(factory=ProducerConfig)
    consumer: ConsumerConfig = attrs.field(factory=ConsumerConfig)
    store: StoreConfig = attrs.field(factory=StoreConfig)
    fetch: FetchConfig = attrs.field(factory=FetchConfig)
    log: LogConfig = attrs.field(factory=LogConfig)
    metrics: MetricsConfig = attrs.field(factory=MetricsConfig)

    def override(self, section: str, **values: Any) -> Config:
        """A copy with some settings of one section changed; values of None are left as they are."""
        changes = {name: value for name, value in values.items() if value is not None}
        try:
            return attrs.evolve(self, **{section: attrs.evolve(getattr(self, section), **changes)})
        except ConfigError as error:
            raise ConfigError(f"[{section}] {error}") from None

    @classmethod
    def load(cls, path: str | os.PathLike[str] | None = None, environ: Mapping[str, str] | None = None) -> Config:
        """Reads a TOML file (if one is named), then the environment (`DAFKA_BEACON_INTERVAL=500`).

        Raises `ConfigError` for a file that cannot be read, an unknown section or key, or a value out of range.
        """
        sections = {} if path is None else _read_toml(Path(path))
        for name, text in (os.environ if environ is None else environ).items():
            if name.startswith("DAFKA_"):
                for section, key, value in _read_variable(name, text):
                    sections.setdefault(section, {})[key] = value
        for section in sections:
            if section not in _SECTIONS:
                raise ConfigError(f"unknown section [{section}]: expected one of {', '.join(_SECTIONS)}")
        return cls(**{name: _make_section(_SECTIONS[name], name, values) for name, values in sections.items()})


_SECTIONS: dict[str, type[Any]] = {
    "node": NodeConfig,
    "beacon": BeaconConfig,
    "tower": TowerConfig,
    "security": SecurityConfig,
    "producer": ProducerConfig,
    "consumer": ConsumerConfig,
    "store": StoreConfig,
    "fetch": FetchConfig,
    "log": LogConfig,
    "metrics": MetricsConfig,
}

_Section = TypeVar("_Section")


def _keys(section: type[Any]) -> dict[str, str]:
    """The attribute behind each key of a section."""
    return {_name(attribute): attribute.name for attribute in attrs.fields(section)}


def _make_section(section: type[_Section], name: str, values: Mapping[str, Any]) -> _Section:
    keys = _keys(section)
    unknown = sorted(set(values) - set(keys))
    if unknown:
        raise ConfigError(f"unknown key {unknown[0]!r} in [{name}]: expected one of {', '.join(keys)}")
    try:
        return section(**{keys[key]: value for key, value in values.items()})
    except ConfigError as error:
        raise ConfigError(f"[{name}] {error}") from None


def _read_toml(path: Path) -> dict[str, dict[str, Any]]:
    try:
        with path.open("rb") as file:
            document = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}") from None
    except ValueError as error:  # not TOML, not UTF-8, or a number of thousands of digits
        raise ConfigError(f"{path} is not TOML: {error}") from None
    for section, values in document.items():
        if not isinstance(values, dict):
            raise ConfigError(
                f"{path}: {section!r} stands outside of a section; expected [{section}] or a section's key"
            )
    return {section: _flatten(values) for section, values in document.items()}


def _flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """TOML's `offset.reset = ...` is a table in a table; here it is one key."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat.update(_flatten(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat


def _read_variable(name: str, text: str) -> Iterator[tuple[str, str, str | int]]:
    """The setting that an environment variable stands for, if any."""
    for section, kind in _SECTIONS.items():
        for attribute in attrs.fields(kind):
            key = _name(attribute)
            if name == f"DAFKA_{section}_{key}".upper().replace(".", "_"):
                yield section, key, _parse_number(text) if attribute.type in (int, "int") else text


def _parse_number(text: str) -> str | int:
    """The number, or what stands there instead, for the setting's check to refuse."""
    try:
        return int(text)
    except ValueError:
        return text
