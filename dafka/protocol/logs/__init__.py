"""The logs of a broker: which record stands at which offset, the topics, and the log of each record."""

from dafka.protocol.logs.addresses import INDEX_TOPIC, BranchAddress, name_log, parse_address
from dafka.protocol.logs.entries import (
    BatchEntry,
    BranchEntry,
    Entry,
    MarkerEntry,
    ProducerEntry,
    RestartEntry,
    RunEntry,
    StartEntry,
    begins_again,
    decode_entries,
    encode_entries,
    names_offset,
)
from dafka.protocol.logs.log_index import Location, LogIndex
from dafka.protocol.logs.log_state import OWN, Leadership, LogState, NamesReplicas
from dafka.protocol.logs.ordering import LogOrder, OrderPlan, index_partition, own_partition
from dafka.protocol.logs.placement import log_of_address, log_of_key, murmur2
from dafka.protocol.logs.topic_table import TopicTable
from dafka.protocol.logs.topics import (
    LOGS_MAX,
    MESSAGES_AGE_MS,
    MESSAGES_TOPIC,
    TOPICS_TOPIC,
    Deletion,
    Topic,
    decode_topic,
    encode_deletion,
    encode_topic,
    find_name_problem,
)
from dafka.protocol.logs.transactions import AbortedTransaction, LogTransactions

__all__ = [
    "INDEX_TOPIC",
    "LOGS_MAX",
    "MESSAGES_AGE_MS",
    "MESSAGES_TOPIC",
    "OWN",
    "TOPICS_TOPIC",
    "AbortedTransaction",
    "BatchEntry",
    "BranchAddress",
    "BranchEntry",
    "Deletion",
    "Entry",
    "Leadership",
    "Location",
    "LogIndex",
    "LogOrder",
    "LogState",
    "LogTransactions",
    "MarkerEntry",
    "NamesReplicas",
    "OrderPlan",
    "ProducerEntry",
    "RestartEntry",
    "RunEntry",
    "StartEntry",
    "Topic",
    "TopicTable",
    "begins_again",
    "decode_entries",
    "decode_topic",
    "encode_deletion",
    "encode_entries",
    "encode_topic",
    "find_name_problem",
    "index_partition",
    "log_of_address",
    "log_of_key",
    "murmur2",
    "name_log",
    "names_offset",
    "own_partition",
    "parse_address",
]
