"""The configuration of nodes and towers: `Config`, with one class for each of its sections.

Settings come from a TOML file, then from `DAFKA_*` environment variables, then from the program or the command line.
Later ones override earlier ones. A setting has the same name in all of them.
"""

from dafka.config.configuration import Config
from dafka.config.settings import (
    BATCH_BYTES_MAX,
    DEFAULT_KAFKA_LISTEN,
    RECORD_BYTES_MAX,
    BeaconConfig,
    BrokerConfig,
    ClientsConfig,
    ColdConfig,
    CompressionName,
    ConsumerConfig,
    DialectName,
    FetchConfig,
    HttpConfig,
    KafkaConfig,
    LogConfig,
    LogFormat,
    LogLevel,
    MetricsConfig,
    NodeConfig,
    OffsetReset,
    ProducerConfig,
    RecordBatches,
    SecurityConfig,
    StoreConfig,
    Switch,
    TowerConfig,
)
from dafka.config.values import split_listen_address

__all__ = [
    "BATCH_BYTES_MAX",
    "DEFAULT_KAFKA_LISTEN",
    "RECORD_BYTES_MAX",
    "BeaconConfig",
    "BrokerConfig",
    "ClientsConfig",
    "ColdConfig",
    "CompressionName",
    "Config",
    "ConsumerConfig",
    "DialectName",
    "FetchConfig",
    "HttpConfig",
    "KafkaConfig",
    "LogConfig",
    "LogFormat",
    "LogLevel",
    "MetricsConfig",
    "NodeConfig",
    "OffsetReset",
    "ProducerConfig",
    "RecordBatches",
    "SecurityConfig",
    "StoreConfig",
    "Switch",
    "TowerConfig",
    "split_listen_address",
]
