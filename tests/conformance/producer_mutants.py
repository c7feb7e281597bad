"""Broken producers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import attrs
import pytest

from dafka import wire
from dafka.config import ProducerConfig
from dafka.protocol import ProducerMachine
from dafka.protocol.actions import Action
from dafka.protocol.machines.head_intervals import HeadSchedule
from dafka.protocol.ordering.buffers import RetransmitBuffer
from dafka.records import Partition, RecordBatch
from dafka.roles import producer as producer_role
from dafka.wire import Command, batch
from tests.conformance.mutants import Mutant, forget_subscription, lacking_subscriptions, mutants_of

Patch = pytest.MonkeyPatch
Runs = Callable[[wire.RecordRun, Sequence[Sequence[bytes]]], Sequence[Sequence[bytes]]]

KEPT = 10


# HEAD


def _stop_heads(machine: ProducerMachine) -> None:
    machine._heads = HeadSchedule(float("inf"), float("inf"))


def no_head(patch: Patch) -> None:
    def head(self: ProducerMachine, _now: float, **_: bool) -> list[Action]:
        _stop_heads(self)
        return []

    patch.setattr(ProducerMachine, "_announce_head", head)


# RECORD


def first_offset_one(patch: Patch) -> None:
    begin = ProducerMachine.__init__

    def begin_at_one(
        self: ProducerMachine, partition: Partition, config: ProducerConfig, replies_max: int, **_: Any
    ) -> None:
        begin(self, partition, config, replies_max, next_sequence=1, acknowledged_end=1)

    patch.setattr(ProducerMachine, "__init__", begin_at_one)


def encode_with(change: Runs, patch: Patch) -> None:
    """Change the messages of every run of RECORDs or DIRECT-RECORDs."""
    encode = batch._encode_run

    def encode_changed(run: wire.RecordRun, dialect: wire.Dialect) -> list[Sequence[bytes]]:
        return list(change(run, list(batch.iter_frames(encode(run, dialect)))))

    patch.setattr(batch, "_encode_run", encode_changed)


def cut_at_nul(run: wire.RecordRun, messages: Sequence[Sequence[bytes]]) -> Sequence[Sequence[bytes]]:
    return [(*frames[:-1], frames[-1].partition(b"\0")[0]) for frames in messages]


def same_address(patch: Patch) -> None:
    patch.setattr(producer_role, "new_address", lambda: "0123456789ABCDEF" * 2)


# What is kept, and what is answered


def keep_last_ten(patch: Patch, kept: int = KEPT) -> None:
    push = RetransmitBuffer.push

    def push_and_release(self: RetransmitBuffer, batch: RecordBatch) -> None:
        push(self, batch)
        self.release(self.end_sequence - kept)

    patch.setattr(RetransmitBuffer, "push", push_and_release)


def receive_with(
    change: Callable[[ProducerMachine, wire.BatchedMessage], wire.BatchedMessage | None], patch: Patch
) -> None:
    """Change or drop each message before it is decoded."""
    receive = ProducerMachine.receive

    def receive_changed(self: ProducerMachine, messages: Iterable[wire.BatchedMessage], now: float) -> list[Action]:
        changed = [change(self, message) for message in messages]
        return receive(self, [message for message in changed if message is not None], now)

    patch.setattr(ProducerMachine, "receive", receive_changed)


def take_every_fetch(self: ProducerMachine, message: wire.BatchedMessage) -> wire.BatchedMessage | None:
    if isinstance(message, wire.Fetch):
        return attrs.evolve(message, subject=self.partition.topic)
    return message


# What is discarded


mutant = mutants_of("producer")

MUTANTS: list[Mutant] = [
    mutant("no-head", "heads-at-intervals", "head.interval", "no first HEAD arrived", no_head),
    mutant("first-offset-1", "records", "sequence.first", "the offset 1, expected 0", first_offset_one),
    mutant("cuts-contents", "contents", "record.command", "has the content", partial(encode_with, cut_at_nul)),
    mutant("same-partition", "two", "partition.single-writer", "has the same address", same_address),
    *lacking_subscriptions("producer", partial(forget_subscription, ProducerMachine), Command.ACK, Command.FETCH),
    mutant(
        "no-get-heads-subscription",
        "heads",
        "direct-head.producer",
        "no subscription at C for GET-HEADS",
        forget_subscription(ProducerMachine, Command.GET_HEADS),
    ),
    mutant("keeps-last-ten", "kept-until-ack", "record.kept-until-ack", "record 0, fetched, was not", keep_last_ten),
    mutant(
        "takes-foreign-fetches",
        "foreign-fetches",
        "direct-record.checked",
        "a FETCH of another topic was answered",
        partial(receive_with, take_every_fetch),
    ),
]
