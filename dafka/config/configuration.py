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


def _takes_settings_of(
    section: Callable[_Settings, object],
) -> Callable[[Callable[..., Config]], Callable[Concatenate[Config, _Settings], Config]]:
    """Give a method the keyword parameters of a section's class, so that editors and type checkers know them."""

    def decorate(method: Callable[..., Config]) -> Callable[Concatenate[Config, _Settings], Config]:
        own = inspect.signature(method)
        parameters = [own.parameters["self"], *inspect.signature(section).parameters.values()]
        method.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        return method

    return decorate


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

    @_takes_settings_of(NodeConfig)
    def with_node(self, **settings: Any) -> Config:
        """Return a copy with some settings of `[node]` changed."""
        return change_section(self, "node", settings)

    @_takes_settings_of(BeaconConfig)
    def with_beacon(self, **settings: Any) -> Config:
        """Return a copy with some settings of `[beacon]` changed."""
        return change_section(self, "beacon", settings)

    @_takes_settings_of(TowerConfig)
    def with_tower(self, **settings: Any) -> Config:
        """Return a copy with some settings of `[tower]` changed."""
        return change_section(self, "tower", settings)

    @_takes_settings_of(SecurityConfig)
    def with_security(self, **settings: Any) -> Config:
        """Return a copy with some settings of `[security]` changed."""
        return change_section(self, "security", settings)

    @_takes_settings_of(ProducerConfig)
    def with_producer(self, **settings: Any) -> Config:
        """Return a copy with some settings of `[producer]` changed."""
        return change_section(self, "producer", settings)

    @_takes_settings_of(ConsumerConfig)
    def with_consumer(self, **settings: Any) -> Config:
        """Return a copy with some settings of `[consumer]` changed."""
        return change_section(self, "consumer", settings)

    @_takes_settings_of(StoreConfig)
    def with_store(self, **settings: Any) -> Config:
        """Return a copy with some settings of `[store]` changed."""
        return change_section(self, "store", settings)

    @_takes_settings_of(ColdConfig)
    def with_cold(self, **settings: Any) -> Config:
        """Return a copy with some settings of `[cold]` changed."""
        return change_section(self, "cold", settings)

    @_takes_settings_of(BrokerConfig)
    def with_broker(self, **settings: Any) -> Config:
        """Return a copy with some settings of `[broker]` changed."""
        return change_section(self, "broker", settings)

    @_takes_settings_of(KafkaConfig)
    def with_kafka(self, **settings: Any) -> Config:
        """Return a copy with some settings of `[kafka]` changed."""
        return change_section(self, "kafka", settings)

    @_takes_settings_of(HttpConfig)
    def with_http(self, **settings: Any) -> Config:
        """Return a copy with some settings of `[http]` changed."""
        return change_section(self, "http", settings)

    @_takes_settings_of(ClientsConfig)
    def with_clients(self, **settings: Any) -> Config:
        """Return a copy with some settings of `[clients]` changed."""
        return change_section(self, "clients", settings)

    @_takes_settings_of(FetchConfig)
    def with_fetch(self, **settings: Any) -> Config:
        """Return a copy with some settings of `[fetch]` changed."""
        return change_section(self, "fetch", settings)

    @_takes_settings_of(LogConfig)
    def with_log(self, **settings: Any) -> Config:
        """Return a copy with some settings of `[log]` changed."""
        return change_section(self, "log", settings)

    @_takes_settings_of(MetricsConfig)
    def with_metrics(self, **settings: Any) -> Config:
        """Return a copy with some settings of `[metrics]` changed."""
        return change_section(self, "metrics", settings)


SECTIONS: dict[str, type[Any]] = {
    "node": NodeConfig,
    "beacon": BeaconConfig,
    "tower": TowerConfig,
    "security": SecurityConfig,
    "producer": ProducerConfig,
    "consumer": ConsumerConfig,
    "store": StoreConfig,
    "cold": ColdConfig,
    "broker": BrokerConfig,
    "kafka": KafkaConfig,
    "http": HttpConfig,
    "clients": ClientsConfig,
    "fetch": FetchConfig,
    "log": LogConfig,
    "metrics": MetricsConfig,
}
"""The class of each section."""


def change_section(config: Config, section: str, settings: Mapping[str, Any]) -> Config:
    """Return a copy with some settings of one section changed.

    Args:
        config: the configuration to copy.
        section: the section's name.
        settings: the settings to change.

    Returns:
        The changed copy.

    Raises:
        ConfigError: if a setting has an invalid value.
    """
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
