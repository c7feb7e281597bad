"""One frozen `Config` holds a section a role.

Sections load from TOML, then from `DAFKA_*` environment variables, then from what the program or the command line sets,
each overriding the one before.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from dafka.config.loading import make_section, read_toml, read_variable
from dafka.config.sections import (
    BeaconConfig,
    ConsumerConfig,
    FetchConfig,
    LogConfig,
    MetricsConfig,
    NodeConfig,
    ProducerConfig,
    SecurityConfig,
    StoreConfig,
    TowerConfig,
)
from dafka.errors import ConfigError

__all__ = [
    "BeaconConfig",
    "Config",
    "ConsumerConfig",
    "FetchConfig",
    "LogConfig",
    "MetricsConfig",
    "NodeConfig",
    "ProducerConfig",
    "SecurityConfig",
    "StoreConfig",
    "TowerConfig",
]


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
        sections = {} if path is None else read_toml(Path(path))
        for name, text in (os.environ if environ is None else environ).items():
            if name.startswith("DAFKA_"):
                for section, key, value in read_variable(_SECTIONS, name, text):
                    sections.setdefault(section, {})[key] = value
        for section in sections:
            if section not in _SECTIONS:
                raise ConfigError(f"unknown section [{section}]: expected one of {', '.join(_SECTIONS)}")
        return cls(**{name: make_section(_SECTIONS[name], name, values) for name, values in sections.items()})


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
