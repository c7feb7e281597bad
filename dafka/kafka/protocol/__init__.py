"""Kafka's protocol at the level of bytes: requests and responses of all versions, their frames and headers.

Each message is a class in `dafka.kafka.protocol.messages`; its table there says how each version is encoded.
"""
