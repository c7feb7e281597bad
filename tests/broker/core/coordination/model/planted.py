"""Bugs that the simulations must notice. Each is a change to the code under test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest

from dafka.broker.core.coordination.effects import Action, WriteState
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.coordinator import GroupCoordinator
from dafka.broker.core.groups.group import Group, GroupState
from dafka.broker.core.groups.rebalancing import Rebalancer
from dafka.broker.core.log import producer_batches
from dafka.broker.core.log.open_transactions import OpenTransactions
from dafka.broker.core.log.producer_batches import ProducerBatches
from dafka.broker.core.log.producer_state import ProducerState
from dafka.broker.core.log.sequence_ranges import SEQUENCES
from dafka.broker.core.transactions import coordinator
from dafka.broker.core.transactions.coordinator import TransactionCoordinator
from tests.broker.core.coordination.model.groups import GroupWorld
from tests.broker.core.coordination.model.transactions import TransactionWorld

Patch = pytest.MonkeyPatch


def waiting_sync_is_forgotten(patch: Patch) -> None:
    answer_syncs = Rebalancer.answer_syncs

    def forget(self: Rebalancer, group: Group, now_ms: int, error: ErrorCode = ErrorCode.NONE) -> None:
        if error:
            group.syncing.clear()
        answer_syncs(self, group, now_ms, error)

    patch.setattr(Rebalancer, "answer_syncs", forget)


def former_static_member_is_forgotten(patch: Patch) -> None:
    def forget(_self: Rebalancer, group: Group, member_id: str, _error: ErrorCode) -> None:
        group.joining.pop(member_id, None)
        group.syncing.pop(member_id, None)

    patch.setattr(Rebalancer, "_refuse_waiting", forget)


def begun_generation_is_not_written(patch: Patch) -> None:
    write = Rebalancer.write

    def write_some(self: Rebalancer, group: Group) -> None:
        if group.state is not GroupState.COMPLETING_REBALANCE:
            write(self, group)

    patch.setattr(Rebalancer, "write", write_some)


def generation_is_not_checked(patch: Patch) -> None:
    def check(self: Group, member_id: str, group_instance_id: str | None, _generation_id: int) -> ErrorCode:
        return self.check_member(member_id, group_instance_id)

    patch.setattr(Group, "check_generation", check)


def sessions_do_not_end(patch: Patch) -> None:
    patch.setattr(Rebalancer, "_expire_session", lambda *_: None)


def commit_is_answered_before_it_is_written(patch: Patch) -> None:
    commit = GroupCoordinator.commit_offsets

    def commit_late(self: GroupCoordinator, *arguments: Any) -> list[Action]:
        return commit(self, *arguments)[::-1]

    patch.setattr(GroupCoordinator, "commit_offsets", commit_late)


def repeated_batch_is_not_recognized(patch: Patch) -> None:
    patch.setattr(ProducerState, "find_duplicate", lambda *_: None)


def repeated_batch_is_appended(patch: Patch) -> None:
    patch.setattr(ProducerState, "find_duplicate", lambda *_: None)
    patch.setattr(ProducerState, "check_sequence", lambda *_: ErrorCode.NONE)


def sequences_do_not_wrap(patch: Patch) -> None:
    def is_next(self: ProducerState, base_sequence: int) -> bool:
        return self.last_sequence is None or base_sequence == self.last_sequence + 1

    assert SEQUENCES == 2**31
    patch.setattr(ProducerState, "is_next", is_next)


def rewritten_index_lacks_batches(patch: Patch) -> None:
    patch.setattr(producer_batches, "BATCHES_REMEMBERED", 1)


def rewritten_index_lacks_open_transactions(patch: Patch) -> None:
    entries = ProducerBatches.entries
    patch.setattr(ProducerBatches, "entries", lambda self: [each for each in entries(self) if not each.flags])


def decided_transactions_are_not_completed(patch: Patch) -> None:
    def start(self: TransactionCoordinator) -> list[Action]:
        for transaction in self.list_transactions():
            self._set_deadline(transaction)
        return []

    patch.setattr(TransactionCoordinator, "start", start)


def decision_is_not_written(patch: Patch) -> None:
    prepare = TransactionCoordinator._prepare

    def prepare_only(self: TransactionCoordinator, *arguments: Any, **options: Any) -> list[Action]:
        return [each for each in prepare(self, *arguments, **options) if not isinstance(each, WriteState)]

    patch.setattr(TransactionCoordinator, "_prepare", prepare_only)


def markers_come_before_the_decision(patch: Patch) -> None:
    prepare = TransactionCoordinator._prepare

    def prepare_late(self: TransactionCoordinator, *arguments: Any, **options: Any) -> list[Action]:
        return prepare(self, *arguments, **options)[::-1]

    patch.setattr(TransactionCoordinator, "_prepare", prepare_late)


def slow_producer_is_not_fenced(patch: Patch) -> None:
    patch.setattr(coordinator, "_fence", lambda transaction: transaction)


def restarted_producer_keeps_its_epoch(patch: Patch) -> None:
    put = TransactionCoordinator._put

    def put_epoch(self: TransactionCoordinator, transaction: Any) -> Any:
        return put(self, attrs.evolve(transaction, producer_epoch=0))

    patch.setattr(TransactionCoordinator, "_put", put_epoch)


def offsets_of_open_transactions_count(patch: Patch) -> None:
    def commit(self: GroupCoordinator, token: Any, request: Any, _producer_id: int, now_ms: int) -> list[Action]:
        return self._commit(token, request, None, now_ms)

    patch.setattr(GroupCoordinator, "commit_transaction_offsets", commit)


def offsets_of_aborted_transactions_count(patch: Patch) -> None:
    end = GroupCoordinator.end_transaction

    def end_well(self: GroupCoordinator, group_id: str, producer_id: int, _is_commit: bool) -> list[Action]:
        return end(self, group_id, producer_id, True)

    patch.setattr(GroupCoordinator, "end_transaction", end_well)


def batch_comes_behind_its_transaction(patch: Patch) -> None:
    patch.setattr(TransactionCoordinator, "check_partition", lambda *_: ErrorCode.NONE)


def aborted_records_are_visible(patch: Patch) -> None:
    patch.setattr(OpenTransactions, "aborted_between", lambda *_: [])


def open_transactions_are_visible(patch: Patch) -> None:
    patch.setattr(OpenTransactions, "last_stable_offset", lambda _, high_watermark: high_watermark)


World = type[GroupWorld] | type[TransactionWorld]

PLANTED: list[tuple[World, Callable[[Patch], None]]] = [
    (GroupWorld, waiting_sync_is_forgotten),
    (GroupWorld, former_static_member_is_forgotten),
    (GroupWorld, begun_generation_is_not_written),
    (GroupWorld, generation_is_not_checked),
    (GroupWorld, sessions_do_not_end),
    (GroupWorld, commit_is_answered_before_it_is_written),
    (TransactionWorld, repeated_batch_is_not_recognized),
    (TransactionWorld, repeated_batch_is_appended),
    (TransactionWorld, sequences_do_not_wrap),
    (TransactionWorld, rewritten_index_lacks_batches),
    (TransactionWorld, rewritten_index_lacks_open_transactions),
    (TransactionWorld, decided_transactions_are_not_completed),
    (TransactionWorld, decision_is_not_written),
    (TransactionWorld, markers_come_before_the_decision),
    (TransactionWorld, slow_producer_is_not_fenced),
    (TransactionWorld, restarted_producer_keeps_its_epoch),
    (TransactionWorld, offsets_of_open_transactions_count),
    (TransactionWorld, offsets_of_aborted_transactions_count),
    (TransactionWorld, batch_comes_behind_its_transaction),
    (TransactionWorld, aborted_records_are_visible),
    (TransactionWorld, open_transactions_are_visible),
]
"""The simulation that notices a bug, and the function that plants it."""
