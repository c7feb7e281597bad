"""Reads the topics of a broker from its storage."""

from __future__ import annotations

from dafka.broker.core.metadata.topic_table import TopicTable
from dafka.broker.core.metadata.topics import TOPICS_TOPIC, Deletion, decode_topic
from dafka.errors import StorageFormatError
from dafka.storage.base import Storage
from dafka.storage.opening import read_range


async def read_topics(storage: Storage) -> TopicTable | None:
    """Return the topics in the storage of a broker; None if no broker has used it. Raise `StorageError`."""
    table, partitions = TopicTable(), await storage.partitions(TOPICS_TOPIC)
    for partition, info in partitions.items():
        async for batch in read_range(storage, partition, info.earliest_sequence, info.end_sequence):
            for key, value in zip(batch.keys or (), batch.values, strict=True):
                try:
                    found = None if value is None else decode_topic((key or b"").decode(), value)
                except (StorageFormatError, UnicodeDecodeError):
                    continue  # brokers ignore such a record, too
                if isinstance(found, Deletion):
                    table.learn_deletion(found)
                elif found is not None:
                    table.learn(found)
    return table if partitions else None
