"""Kafka's listener: clients of Kafka connect to it over TCP."""

from dafka.listener.kafka_listener import KafkaListener
from dafka.listener.serve import serve_kafka

__all__ = ["KafkaListener", "serve_kafka"]
