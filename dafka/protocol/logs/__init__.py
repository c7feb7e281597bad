"""The logs of a broker: which record stands at which offset, the topics, and the log of each record."""

from dafka.protocol.logs.entries import (
    BatchEntry,
    Entry,
    MarkerEntry,
    ProducerEntry,
    RestartEntry,
    RunEntry,
    StartEntry,
    decode_entries,
    encode_entries,
)
from dafka.protocol.logs.log_index import Location, LogIndex
from dafka.protocol.logs.log_state import OWN, LogState
from dafka.protocol.logs.ordering import INDEX_TOPIC, LogOrder, OrderPlan, index_partition, own_partition
from dafka.protocol.logs.placement import log_of_address, log_of_key, murmur2
from dafka.protocol.logs.topics import (
    LOGS_MAX,
    TOPICS_TOPIC,
    Topic,
    decode_topic,
    encode_topic,
    find_name_problem,
)

__all__ = [
    "INDEX_TOPIC",
    "LOGS_MAX",
    "OWN",
    "TOPICS_TOPIC",
    "BatchEntry",
    "Entry",
    "Location",
    "LogIndex",
    "LogOrder",
    "LogState",
    "MarkerEntry",
    "OrderPlan",
    "ProducerEntry",
    "RestartEntry",
    "RunEntry",
    "StartEntry",
    "Topic",
    "decode_entries",
    "decode_topic",
    "encode_entries",
    "encode_topic",
    "find_name_problem",
    "index_partition",
    "log_of_address",
    "log_of_key",
    "murmur2",
    "own_partition",
]
