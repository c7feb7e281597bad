"""One transactional id: its producer, and the phase of its transaction."""

from __future__ import annotations

from enum import Enum

import attrs

from dafka.broker.core.coordination.state_records import (
    TRANSACTIONS_TOPIC,
    StateRecord,
    decode_fields,
    encode_state,
    field_errors,
)
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.topic_partition import TopicPartition
from dafka.errors import StorageFormatError

TRANSACTION_VERSION = 1
"""The version of a transaction's value."""

EPOCH_MAX = 32_767
"""The largest producer epoch."""


class TransactionPhase(Enum):
    """The phases of a transaction, with Kafka's names."""

    EMPTY = "Empty"
    """The producer has its id, but no transaction yet."""

    ONGOING = "Ongoing"
    """The producer is writing."""

    PREPARE_COMMIT = "PrepareCommit"
    """The transaction is committed; its markers are being written."""

    PREPARE_ABORT = "PrepareAbort"
    """The transaction is aborted; its markers are being written."""

    COMPLETE_COMMIT = "CompleteCommit"
    """All markers are written."""

    COMPLETE_ABORT = "CompleteAbort"
    """All markers are written."""


PREPARED = {
    TransactionPhase.PREPARE_COMMIT: TransactionPhase.COMPLETE_COMMIT,
    TransactionPhase.PREPARE_ABORT: TransactionPhase.COMPLETE_ABORT,
}
"""The phases in which markers are being written, and the phases that follow them."""


@attrs.frozen(kw_only=True)
class Transaction:
    """The state of a transactional id, which the producer keeps when it restarts."""

    transactional_id: str
    producer_id: int
    previous_producer_id: int = -1  # its epochs are exhausted; -1 if there was none
    producer_epoch: int  # counts the incarnations of the producer; an older epoch is fenced
    last_producer_epoch: int = -1  # if the producer itself has requested a new one; otherwise -1
    has_own_epoch: bool = False  # the producer's end of the last transaction has raised the epoch
    transaction_timeout_ms: int
    phase: TransactionPhase = TransactionPhase.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    groups: frozenset[str] = frozenset()  # for which it has offsets
    started_at_ms: int = -1  # -1 if there is none
    updated_at_ms: int

    @property
    def is_epoch_exhausted(self) -> bool:
        """Whether the producer needs another id. One epoch is reserved to fence the producer."""
        return self.producer_epoch >= EPOCH_MAX - 1

    def check_producer(self, producer_id: int, producer_epoch: int) -> ErrorCode:
        """Return the error of a request of this producer in any phase, or NONE.

        No producer has the largest epoch: it only fences.
        """
        if producer_id != self.producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        is_current = producer_epoch == self.producer_epoch < EPOCH_MAX
        return ErrorCode.NONE if is_current else ErrorCode.PRODUCER_FENCED

    def check_expected(self, producer_id: int, producer_epoch: int) -> ErrorCode:
        """Return the error of a producer that requests a new epoch with its current one, or NONE."""
        is_own = producer_id == self.producer_id and producer_epoch in {self.producer_epoch, self.last_producer_epoch}
        is_replaced = producer_id == self.previous_producer_id and producer_epoch == self.last_producer_epoch
        return ErrorCode.NONE if producer_epoch >= 0 and (is_own or is_replaced) else ErrorCode.PRODUCER_FENCED

    def is_repeated(self, producer_id: int, producer_epoch: int) -> bool:
        """Return whether a producer that passed `check_expected` has its new epoch already, and lost the response."""
        return producer_id != self.producer_id or producer_epoch != self.producer_epoch

    def has_ended(self, producer_id: int, producer_epoch: int) -> bool:
        """Return whether a producer has ended its last transaction as this one, and has a later epoch since."""
        former_id = self.producer_id if self.producer_epoch else self.previous_producer_id
        return self.has_own_epoch and (producer_id, producer_epoch) == (former_id, self.last_producer_epoch)

    def reset(self, transaction_timeout_ms: int, now_ms: int) -> Transaction:
        """Return the state of a producer that has its id and epoch, but no transaction."""
        return attrs.evolve(
            self,
            phase=TransactionPhase.EMPTY,
            has_own_epoch=False,
            transaction_timeout_ms=transaction_timeout_ms,
            updated_at_ms=now_ms,
        )

    def join(self, partitions: frozenset[TopicPartition], groups: frozenset[str], now_ms: int) -> Transaction:
        """Return the transaction with additional logs and groups. It begins if there is none."""
        is_ongoing = self.phase is TransactionPhase.ONGOING
        return attrs.evolve(
            self,
            phase=TransactionPhase.ONGOING,
            has_own_epoch=False,
            partitions=self.partitions | partitions if is_ongoing else partitions,
            groups=self.groups | groups if is_ongoing else groups,
            started_at_ms=self.started_at_ms if is_ongoing else now_ms,
            updated_at_ms=now_ms,
        )

    def complete(self, now_ms: int) -> Transaction:
        """Return the transaction after its markers were written."""
        return attrs.evolve(
            self,
            phase=PREPARED[self.phase],
            partitions=frozenset(),
            groups=frozenset(),
            started_at_ms=-1,
            updated_at_ms=now_ms,
        )


def encode_transaction(transaction: Transaction) -> StateRecord:
    """Return the record of a transaction: in `$transactions`, with the key `["transaction", transactional_id]`.

    A field of a later feature level is left out if it has its default.
    """
    fields = attrs.asdict(transaction, recurse=False, filter=lambda attribute, _: attribute.name != "transactional_id")
    if not transaction.has_own_epoch:
        del fields["has_own_epoch"]
    fields["phase"] = transaction.phase.value
    fields["partitions"] = sorted(transaction.partitions)
    fields["groups"] = sorted(transaction.groups)
    key = ("transaction", transaction.transactional_id)
    return encode_state(TRANSACTIONS_TOPIC, key, fields, TRANSACTION_VERSION)


def encode_transaction_tombstone(transactional_id: str) -> StateRecord:
    """Return the tombstone of a transactional id that has expired."""
    return encode_state(TRANSACTIONS_TOPIC, ("transaction", transactional_id), None, TRANSACTION_VERSION)


def decode_transaction(record: StateRecord, transactional_id: str) -> Transaction:
    """Decode the record of a transaction, which is not a tombstone.

    Raise `StorageFormatError` if it is malformed, or a newer version of dafka has written it.
    """
    fields = {"has_own_epoch": False, **decode_fields(record, TRANSACTION_VERSION)}
    with field_errors(record):
        known = {name: fields[name] for name in attrs.fields_dict(Transaction) if name != "transactional_id"}
        partitions = frozenset(TopicPartition(str(topic), int(number)) for topic, number in fields["partitions"])
        known |= {
            "phase": TransactionPhase(fields["phase"]),
            "partitions": partitions,
            "groups": frozenset(fields["groups"]),
        }
        numbers = [value for name, value in known.items() if name not in {"phase", "partitions", "groups"}]
        if not all(isinstance(number, int) for number in numbers):
            raise StorageFormatError(f"{record.topic}: {record.key!r} has a field that is not a number")
        return Transaction(transactional_id=transactional_id, **known)
