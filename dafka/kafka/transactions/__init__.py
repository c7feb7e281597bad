"""Idempotent producers and transactions: the coordinator, and what each log knows of its producers."""

from dafka.kafka.transactions.coordinator import InitProducerResult, Producer, TransactionCoordinator
from dafka.kafka.transactions.log_producers import AppendedBatch, BatchCheck, LogProducers
from dafka.kafka.transactions.markers import Marker
from dafka.kafka.transactions.producer_ids import ProducerIds
from dafka.kafka.transactions.settings import TransactionSettings
from dafka.kafka.transactions.transaction import Transaction, TransactionPhase

__all__ = [
    "AppendedBatch",
    "BatchCheck",
    "InitProducerResult",
    "LogProducers",
    "Marker",
    "Producer",
    "ProducerIds",
    "Transaction",
    "TransactionCoordinator",
    "TransactionPhase",
    "TransactionSettings",
]
