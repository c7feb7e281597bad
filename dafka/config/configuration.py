"""`Config`, which contains all sections, and functions that load it and change copies of it."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Concatenate, ParamSpec
from urllib.parse import urlencode

import attrs

from dafka.config.loading import log_unknown_variables, read_environment, read_file
from dafka.config.settings import (
    BeaconConfig,
    BrokerConfig,
    ClientsConfig,
    ColdConfig,
    ConsumerConfig,
    FetchConfig,
    HttpConfig,
    KafkaConfig,
    LogConfig,
    MetricsConfig,
    NodeConfig,
    ProducerConfig,
    SecurityConfig,
    StoreConfig,
    TowerConfig,
)
from dafka.errors import ConfigError

_Settings = ParamSpec("_Settings")


def _changes(name: str, section: Callable[_Settings, object]) -> Callable[Concatenate[Config, _Settings], Config]:
    """Return a method that changes a section. Editors and type checkers know the settings as its keyword parameters."""

    def change(self: Config, /, *args: _Settings.args, **settings: _Settings.kwargs) -> Config:
        return change_section(self, name, settings)

    own = inspect.signature(change)
    parameters = [own.parameters["self"], *inspect.signature(section).parameters.values()]
    change.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    change.__name__ = f"with_{name}"
    change.__qualname__ = f"Config.with_{name}"
    change.__doc__ = f"Return a copy with some settings of `[{name}]` changed."
    return change


@attrs.frozen(kw_only=True)
class Config:
    """All settings, by section. Omitted sections have their defaults.

    A configuration does not change. `with_consumer(offset_reset="earliest")` and its siblings return a changed copy.

    Attributes:
        node: `[node]`, for every node.
        beacon: `[beacon]`, how a node finds the towers.
        tower: `[tower]`, where a tower listens.
        security: `[security]`, the keys of a closed cluster.
        producer: `[producer]`, how records are published.
        consumer: `[consumer]`, where a consumer begins.
        store: `[store]`, where records are kept.
        cold: `[cold]`, where older records are kept.
        broker: `[broker]`, how a broker shares logs with others.
        kafka: `[kafka]`, how a broker serves clients of Kafka.
        http: `[http]`, how a broker serves WebSocket, HTTP and the console.
        clients: `[clients]`, how a broker identifies its clients.
        fetch: `[fetch]`, how missing records are fetched.
        log: `[log]`, what the `dafka` command logs.
        metrics: `[metrics]`, where the `dafka` command serves metrics.
    """

    node: NodeConfig = attrs.field(factory=NodeConfig)
    beacon: BeaconConfig = attrs.field(factory=BeaconConfig)
    tower: TowerConfig = attrs.field(factory=TowerConfig)
    security: SecurityConfig = attrs.field(factory=SecurityConfig)
    producer: ProducerConfig = attrs.field(factory=ProducerConfig)
    consumer: ConsumerConfig = attrs.field(factory=ConsumerConfig)
    store: StoreConfig = attrs.field(factory=StoreConfig)
    cold: ColdConfig = attrs.field(factory=ColdConfig)
    broker: BrokerConfig = attrs.field(factory=BrokerConfig)
    kafka: KafkaConfig = attrs.field(factory=KafkaConfig)
    http: HttpConfig = attrs.field(factory=HttpConfig)
    clients: ClientsConfig = attrs.field(factory=ClientsConfig)
    fetch: FetchConfig = attrs.field(factory=FetchConfig)
    log: LogConfig = attrs.field(factory=LogConfig)
    metrics: MetricsConfig = attrs.field(factory=MetricsConfig)

    @property
    def storage_url(self) -> str:
        """The URL of the storage of a store, which names the cold tier if there is one."""
        cold = self.cold
        if not cold.storage:
            return self.store.storage
        options = {
            "cold": cold.storage,
            "local_retention_ms": cold.local_retention_ms or None,
            "local_retention_bytes": cold.local_retention_bytes or None,
            "cold_segment_bytes": cold.segment_bytes,
            "cold_segment_ms": cold.segment_ms,
            "cold_interval_ms": cold.interval_ms,
            "cold_rate_bytes": cold.second_bytes_max,
            "cold_cache_bytes": cold.cache_bytes_max,
            "cold_timeout_ms": cold.timeout_ms,
        }
        query = urlencode({name: value for name, value in options.items() if value is not None})
        return f"tiered:{self.store.storage}{'&' if '?' in self.store.storage else '?'}{query}"

    @classmethod
    def load(cls, path: str | os.PathLike[str] | None = None, environ: Mapping[str, str] | None = None) -> Config:
        """Load settings from a TOML file, then from environment variables, which override the file.

        A variable is `DAFKA_`, the section and the setting: `DAFKA_BEACON_INTERVAL_MS=500`. A variable with this prefix
        that is not a setting is ignored, and logged as a warning.

        Args:
            path: the TOML file; without one, only the environment counts.
            environ: the environment variables; `os.environ` if not given.

        Returns:
            The configuration.

        Raises:
            ConfigError: if the file cannot be read, names an unknown section or setting, or a setting has an invalid
                value.
        """
        config, unknown = load_config(path, environ)
        log_unknown_variables(unknown)
        return config

    with_node = _changes("node", NodeConfig)
    with_beacon = _changes("beacon", BeaconConfig)
    with_tower = _changes("tower", TowerConfig)
    with_security = _changes("security", SecurityConfig)
    with_producer = _changes("producer", ProducerConfig)
    with_consumer = _changes("consumer", ConsumerConfig)
    with_store = _changes("store", StoreConfig)
    with_cold = _changes("cold", ColdConfig)
    with_broker = _changes("broker", BrokerConfig)
    with_kafka = _changes("kafka", KafkaConfig)
    with_http = _changes("http", HttpConfig)
    with_clients = _changes("clients", ClientsConfig)
    with_fetch = _changes("fetch", FetchConfig)
    with_log = _changes("log", LogConfig)
    with_metrics = _changes("metrics", MetricsConfig)


SECTIONS: dict[str, type[Any]] = {
    name: type(section) for name, section in attrs.asdict(Config(), recurse=False).items()
}
"""The class of each section."""


def change_section(config: Config, section: str, settings: Mapping[str, Any]) -> Config:
    """Return a copy with some settings of one section changed. Raise `ConfigError` if a value is invalid."""
    former = {name: getattr(getattr(config, section), name) for name in attrs.fields_dict(SECTIONS[section])}
    return attrs.evolve(config, **{section: _make_section(section, override_settings(section, former, settings))})


def override_settings(section: str, former: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a section after some of them were changed.

    `[beacon] tower` and the pair `tower_sub` and `tower_pub` have the same meaning. The changed one applies.
    """
    kept = dict(former)
    if section == "beacon" and "tower" in settings:
        kept = {name: value for name, value in kept.items() if name not in ("tower_sub", "tower_pub")}
    elif section == "beacon" and not settings.keys().isdisjoint(("tower_sub", "tower_pub")):
        named = kept.pop("tower", ())
        if named:
            endpoints = BeaconConfig(tower=named)
            kept = {"tower_sub": endpoints.tower_sub, "tower_pub": endpoints.tower_pub, **kept}
    return {**kept, **settings}


def load_config(
    path: str | os.PathLike[str] | None = None, environ: Mapping[str, str] | None = None
) -> tuple[Config, list[str]]:
    """Load settings as `Config.load` does, and return the unknown environment variables instead of logging them."""
    values = {} if path is None else read_file(Path(path), SECTIONS)
    from_environment, unknown = read_environment(os.environ if environ is None else environ, SECTIONS)
    for section, settings in from_environment.items():
        values[section] = override_settings(section, values.get(section, {}), settings)
    return Config(**{section: _make_section(section, settings) for section, settings in values.items()}), unknown


def _make_section(section: str, settings: Mapping[str, Any]) -> Any:
    try:
        return SECTIONS[section](**settings)
    except ConfigError as error:
        raise ConfigError(f"[{section}] {error}") from None
