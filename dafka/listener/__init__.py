"""The listener of a broker: Kafka's clients connect to it over TCP."""

from dafka.listener.serve import DEFAULT_LISTEN, KafkaBroker, serve_kafka

__all__ = ["DEFAULT_LISTEN", "KafkaBroker", "serve_kafka"]
