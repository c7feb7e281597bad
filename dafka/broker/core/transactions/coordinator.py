"""The transaction coordinator: assigns producer ids and epochs, and commits or aborts transactions.

One record decides a transaction, `PrepareCommit` or `PrepareAbort`. The markers follow it, in all participating logs
and groups. After a crash the coordinator has them written again, so that every decision is completed.
"""

from __future__ import annotations

import attrs

from dafka.broker.core.coordination.deadlines import Deadlines
from dafka.broker.core.coordination.effects import Action, Answer, Token, WriteMarkers, WriteState, write_state
from dafka.broker.core.coordination.state_records import TRANSACTIONS_TOPIC, StateRecord, decode_key
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.log.producer_state import Producer
from dafka.broker.core.topic_partition import TopicPartition
from dafka.broker.core.transactions.producer_ids import PRODUCER_IDS_KIND, ProducerIds
from dafka.broker.core.transactions.transaction import (
    EPOCH_MAX,
    PREPARED,
    Transaction,
    TransactionPhase,
    decode_transaction,
    encode_transaction,
    encode_transaction_tombstone,
)
from dafka.errors import StorageFormatError

_NO_PRODUCER = Producer(-1, -1)


@attrs.frozen(kw_only=True)
class TransactionSettings:
    """The limits of transactions. Names and defaults are as in Kafka's broker settings, with underscores for dots."""

    transaction_max_timeout_ms: int = 900_000
    transactional_id_expiration_ms: int = 7 * 24 * 3_600_000
    transactional_ids_max: int = 100_000  # Kafka has no such limit


@attrs.frozen
class InitProducerResult:
    """The response to InitProducerId."""

    error_code: ErrorCode
    producer: Producer = _NO_PRODUCER


@attrs.frozen
class EndResult:
    """The response to EndTxn, with the producer of the next transaction if there was no error."""

    error_code: ErrorCode
    producer: Producer = _NO_PRODUCER


class TransactionCoordinator:
    """The transactional ids of one shard, and the producer ids that it assigns, from 0 on by default.

    To restart: `restore` every record in order, then `start`, and execute its actions before serving clients.
    """

    def __init__(self, settings: TransactionSettings, producer_ids: ProducerIds | None = None) -> None:
        self._settings = settings
        self._producer_ids = producer_ids or ProducerIds()
        self._transactions: dict[str, Transaction] = {}
        self._deadlines: Deadlines[str] = Deadlines()
        self._ending: dict[str, Token] = {}

    def restore(self, record: StateRecord) -> None:
        """Restore a record of `$transactions`.

        Raise `StorageFormatError` if it is malformed, or a newer version of dafka has written it.
        """
        match decode_key(record):
            case [kind] if kind == PRODUCER_IDS_KIND and record.topic == TRANSACTIONS_TOPIC:
                self._producer_ids.restore(record)
            case ["transaction", str(transactional_id)] if record.topic == TRANSACTIONS_TOPIC:
                self._transactions.pop(transactional_id, None)
                if record.value is not None:
                    self._transactions[transactional_id] = decode_transaction(record, transactional_id)
            case _:
                raise StorageFormatError(f"{record.topic}: {record.key!r} is not the key of a transaction")

    def start(self) -> list[Action]:
        """Begin to serve, after all records were restored. Decided transactions are completed."""
        for transaction in self._transactions.values():
            self._set_deadline(transaction)
        return [_markers(each) for each in self._transactions.values() if each.phase in PREPARED]

    def next_deadline_ms(self) -> int | None:
        """Return when to call `advance`; None if there is no deadline."""
        return self._deadlines.next_deadline_ms()

    def advance(self, now_ms: int) -> list[Action]:
        """Abort transactions that have timed out, and forget unused transactional ids."""
        actions = list[Action]()
        while (transactional_id := self._deadlines.pop_due(now_ms)) is not None:
            transaction = self._transactions[transactional_id]
            if transaction.phase is TransactionPhase.ONGOING:
                actions += self._prepare(_fence(transaction), is_commit=False, now_ms=now_ms)
            else:
                del self._transactions[transactional_id]
                actions.append(WriteState((encode_transaction_tombstone(transactional_id),)))
        return actions

    def init_producer_id(
        self,
        token: Token,
        transactional_id: str | None,
        transaction_timeout_ms: int,
        expected: Producer | None,
        now_ms: int,
    ) -> list[Action]:
        """Assign an id and an epoch to a producer. The result is an `InitProducerResult`.

        A producer that is only idempotent has no transactional id. `expected` are the current id and epoch of a
        transactional producer that wants a new epoch; None, or numbers below 0, if it has none (InitProducerId before
        version 3 does not have it). CONCURRENT_TRANSACTIONS asks the client to retry: an earlier transaction is being
        ended.
        """
        if transactional_id is None:
            producer_id, records = self._producer_ids.take()
            return [*write_state(records), Answer(token, InitProducerResult(ErrorCode.NONE, Producer(producer_id, 0)))]
        if expected is not None and expected.producer_id < 0:
            expected = None
        transaction = self._transactions.get(transactional_id)
        error = self._check_init(transactional_id, transaction, transaction_timeout_ms, expected)
        if error:
            return [Answer(token, InitProducerResult(error))]
        if transaction is not None and transaction.phase is TransactionPhase.ONGOING:
            fenced = _fence(transaction)
            if expected is not None:  # the producer itself asks: its next attempt must succeed
                fenced = attrs.evolve(fenced, last_producer_epoch=transaction.producer_epoch)
            actions = self._prepare(fenced, is_commit=False, now_ms=now_ms)
            return [*actions, Answer(token, InitProducerResult(ErrorCode.CONCURRENT_TRANSACTIONS))]
        records = list[StateRecord]()
        if transaction is None or (transaction.is_epoch_exhausted and not _is_repeated(transaction, expected)):
            producer_id, records = self._producer_ids.take()
            transaction = Transaction(
                transactional_id=transactional_id,
                producer_id=producer_id,
                previous_producer_id=-1 if transaction is None else transaction.producer_id,
                producer_epoch=0,
                last_producer_epoch=-1 if expected is None else expected.producer_epoch,
                transaction_timeout_ms=transaction_timeout_ms,
                updated_at_ms=now_ms,
            )
        elif not _is_repeated(transaction, expected):
            transaction = attrs.evolve(
                transaction,
                producer_epoch=transaction.producer_epoch + 1,
                last_producer_epoch=-1 if expected is None else expected.producer_epoch,
            )
        records.append(self._put(transaction.reset(transaction_timeout_ms, now_ms)))
        return [*write_state(records), Answer(token, InitProducerResult(ErrorCode.NONE, _producer_of(transaction)))]

    def join(
        self,
        token: Token,
        transactional_id: str,
        producer: Producer,
        partitions: frozenset[TopicPartition],
        groups: frozenset[str],
        now_ms: int,
    ) -> list[Action]:
        """Add existing logs, and the offsets of groups, to a transaction, which begins if there is none.

        The result is an `ErrorCode`. CONCURRENT_TRANSACTIONS asks the client to retry: the last transaction is being
        ended.
        """
        transaction, error = self._find(transactional_id, producer)
        if transaction is None:
            return [Answer(token, error)]
        if transaction.phase in PREPARED:
            return [Answer(token, ErrorCode.CONCURRENT_TRANSACTIONS)]
        is_part = partitions <= transaction.partitions and groups <= transaction.groups
        if is_part and transaction.phase is TransactionPhase.ONGOING:
            return [Answer(token, ErrorCode.NONE)]
        return [*write_state([self._put(transaction.join(partitions, groups, now_ms))]), Answer(token, ErrorCode.NONE)]

    def check_partition(self, transactional_id: str, producer: Producer, log: TopicPartition) -> ErrorCode:
        """Return the error of a transactional batch for a log, or NONE. The log must be part of the transaction.

        Call this before the log's `ProducerStates` checks the batch and it is appended, in the same step. So no batch
        comes after the marker of its transaction.
        """
        transaction, error = self._find(transactional_id, producer)
        if error is ErrorCode.PRODUCER_FENCED:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if transaction is None:
            return error
        is_part = transaction.phase is TransactionPhase.ONGOING and log in transaction.partitions
        return ErrorCode.NONE if is_part else ErrorCode.INVALID_TXN_STATE

    def check_group(self, transactional_id: str, producer: Producer, group_id: str) -> ErrorCode:
        """Return the error of a TxnOffsetCommit, or NONE. The group must be part of the transaction.

        Call this before `GroupCoordinator.commit_transaction_offsets`, in the same step.
        """
        transaction, error = self._find(transactional_id, producer)
        if transaction is None:
            return error
        is_part = transaction.phase is TransactionPhase.ONGOING and group_id in transaction.groups
        return ErrorCode.NONE if is_part else ErrorCode.INVALID_TXN_STATE

    def end_transaction(
        self,
        token: Token,
        transactional_id: str,
        producer: Producer,
        is_commit: bool,
        now_ms: int,
        raises_epoch: bool = False,
    ) -> list[Action]:
        """Commit or abort a transaction. The result is an `EndResult`. It waits until the markers are written.

        With `raises_epoch`, the next transaction has a later epoch: no record of this one can come into it, and the
        producer can abort without knowing whether a transaction has begun. When the epochs are used up, the producer
        gets another id.
        """
        transaction = self._transactions.get(transactional_id)
        is_repeated = transaction is not None and transaction.has_ended(*producer)
        if not is_repeated:
            transaction, error = self._find(transactional_id, producer)
        if transaction is None:
            return [Answer(token, EndResult(error))]
        begins = raises_epoch and not is_commit and transaction.phase not in PREPARED
        if not is_repeated and (begins or transaction.phase is TransactionPhase.ONGOING):
            self._ending[transactional_id] = token
            ending = _raise_epoch(transaction) if raises_epoch else transaction
            return self._prepare(ending, is_commit=is_commit, now_ms=now_ms)
        match transaction.phase, is_commit:
            case (TransactionPhase.COMPLETE_COMMIT, True) | (TransactionPhase.COMPLETE_ABORT, False):
                is_former = raises_epoch and not is_repeated
                result = EndResult(ErrorCode.INVALID_TXN_STATE) if is_former else _done(transaction)
            case (TransactionPhase.PREPARE_COMMIT, True) | (TransactionPhase.PREPARE_ABORT, False):
                result = EndResult(ErrorCode.CONCURRENT_TRANSACTIONS)
            case _:
                result = EndResult(ErrorCode.INVALID_TXN_STATE)
        return [Answer(token, result)]

    def markers_written(self, transactional_id: str, now_ms: int) -> list[Action]:
        """Complete a transaction, after everything in its `WriteMarkers` is durable."""
        transaction = self._transactions.get(transactional_id)
        if transaction is None or transaction.phase not in PREPARED:
            return []
        transaction, records = transaction.complete(now_ms), list[StateRecord]()
        if transaction.has_own_epoch and transaction.producer_epoch == EPOCH_MAX:
            producer_id, records = self._producer_ids.take()
            previous_id = transaction.producer_id
            transaction = attrs.evolve(
                transaction, producer_id=producer_id, previous_producer_id=previous_id, producer_epoch=0
            )
        actions = write_state([*records, self._put(transaction)])
        if transactional_id in self._ending:
            actions.append(Answer(self._ending.pop(transactional_id), _done(transaction)))
        return actions

    def describe_transaction(self, transactional_id: str) -> Transaction | None:
        """Return the state of a transactional id; None if there is no such id (TRANSACTIONAL_ID_NOT_FOUND)."""
        return self._transactions.get(transactional_id)

    def list_transactions(self) -> list[Transaction]:
        """Return the states of all transactional ids."""
        return list(self._transactions.values())

    def _check_init(
        self,
        transactional_id: str,
        transaction: Transaction | None,
        transaction_timeout_ms: int,
        expected: Producer | None,
    ) -> ErrorCode:
        if not transactional_id:
            return ErrorCode.INVALID_REQUEST
        if not 0 < transaction_timeout_ms <= self._settings.transaction_max_timeout_ms:
            return ErrorCode.INVALID_TRANSACTION_TIMEOUT
        if transaction is None:
            is_full = len(self._transactions) >= self._settings.transactional_ids_max
            return ErrorCode.POLICY_VIOLATION if is_full else ErrorCode.NONE
        error = ErrorCode.NONE if expected is None else transaction.check_expected(*expected)
        if not error and transaction.phase in PREPARED:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        if transaction.phase is TransactionPhase.ONGOING and _is_repeated(transaction, expected):
            return ErrorCode.PRODUCER_FENCED  # an old request: the producer already uses its new epoch
        return error

    def _find(self, transactional_id: str, producer: Producer) -> tuple[Transaction | None, ErrorCode]:
        """Return the transaction of a producer; None and the error if it is not the producer's."""
        if not transactional_id:
            return None, ErrorCode.INVALID_REQUEST
        transaction = self._transactions.get(transactional_id)
        if transaction is None:
            return None, ErrorCode.INVALID_PRODUCER_ID_MAPPING
        error = transaction.check_producer(*producer)
        return (None if error else transaction), error

    def _prepare(self, transaction: Transaction, *, is_commit: bool, now_ms: int) -> list[Action]:
        """Decide a transaction."""
        phase = TransactionPhase.PREPARE_COMMIT if is_commit else TransactionPhase.PREPARE_ABORT
        decided = attrs.evolve(transaction, phase=phase, updated_at_ms=now_ms)
        return [*write_state([self._put(decided)]), _markers(decided)]

    def _put(self, transaction: Transaction) -> StateRecord:
        self._transactions[transaction.transactional_id] = transaction
        self._set_deadline(transaction)
        return encode_transaction(transaction)

    def _set_deadline(self, transaction: Transaction) -> None:
        """Set the deadline after which the transaction is aborted, or the id is forgotten."""
        if transaction.phase in PREPARED:
            self._deadlines.cancel(transaction.transactional_id)
            return
        deadline_ms = transaction.updated_at_ms + self._settings.transactional_id_expiration_ms
        if transaction.phase is TransactionPhase.ONGOING:
            deadline_ms = transaction.started_at_ms + transaction.transaction_timeout_ms
        self._deadlines.set(transaction.transactional_id, deadline_ms)


def _fence(transaction: Transaction) -> Transaction:
    """Return the transaction with an epoch that fences its producer."""
    return attrs.evolve(transaction, producer_epoch=transaction.producer_epoch + 1, last_producer_epoch=-1)


def _raise_epoch(transaction: Transaction) -> Transaction:
    """Return the transaction with the epoch that its producer has after it."""
    epoch = transaction.producer_epoch
    return attrs.evolve(transaction, producer_epoch=epoch + 1, last_producer_epoch=epoch, has_own_epoch=True)


def _producer_of(transaction: Transaction) -> Producer:
    return Producer(transaction.producer_id, transaction.producer_epoch)


def _done(transaction: Transaction) -> EndResult:
    return EndResult(ErrorCode.NONE, _producer_of(transaction))


def _is_repeated(transaction: Transaction, expected: Producer | None) -> bool:
    return expected is not None and transaction.is_repeated(*expected)


def _markers(transaction: Transaction) -> WriteMarkers:
    return WriteMarkers(
        transaction.transactional_id,
        transaction.producer_id,
        transaction.producer_epoch,
        transaction.phase is TransactionPhase.PREPARE_COMMIT,
        tuple(sorted(transaction.partitions)),
        tuple(sorted(transaction.groups)),
    )
