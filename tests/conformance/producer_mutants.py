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
from dafka.protocol.actions import Action, Publish, Subscribe
from dafka.protocol.machines.head_intervals import HeadSchedule
from dafka.protocol.ordering.buffers import RetransmitBuffer
from dafka.records import Partition, RecordBatch
from dafka.roles import producer as producer_role
from dafka.wire import Command, batch
from tests.conformance.mutants import Mutant, mutants_of

Patch = pytest.MonkeyPatch
Runs = Callable[[wire.RecordRun, Sequence[Sequence[bytes]]], Sequence[Sequence[bytes]]]

KEPT = 10


# HEAD


def _stop_heads(machine: ProducerMachine) -> None:
    machine._heads = HeadSchedule(float("inf"), float("inf"))


def head_with(sequence: Callable[[ProducerMachine], int], patch: Patch) -> None:
    """Change the sequence of every HEAD."""

    def head(self: ProducerMachine, now: float, *, is_known: bool = False) -> list[Action]:
        self._heads.head_sent(now, is_known=is_known)
        partition = self.partition
        return [Publish(wire.Head(partition.address, partition.topic, max(sequence(self), 0)))]

    patch.setattr(ProducerMachine, "_announce_head", head)


def head_before_first_record(patch: Patch) -> None:
    start = ProducerMachine.start

    def start_with_head(self: ProducerMachine, now: float) -> list[Action]:
        self._heads.start(now)
        return start(self, now)

    patch.setattr(ProducerMachine, "start", start_with_head)
    head_with(lambda self: self._published_end - 1, patch)


def stale_head(patch: Patch) -> None:
    head = ProducerMachine._announce_head

    def first_head(self: ProducerMachine, now: float, *, is_known: bool = False) -> list[Action]:
        actions = head(self, now, is_known=is_known)
        return [
            Publish(attrs.evolve(each.message, sequence=0))
            for each in actions
            if isinstance(each, Publish) and isinstance(each.message, wire.Head)
        ]

    patch.setattr(ProducerMachine, "_announce_head", first_head)


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


def skip_offsets(patch: Patch) -> None:
    send = ProducerMachine._publish_run

    def send_skipping(self: ProducerMachine, run: RecordBatch, now: float) -> list[Action]:
        send(self, run, now)
        return [Publish(wire.RecordRun(RecordBatch(run.partition, 2 * run.first_sequence, run.values)))]

    patch.setattr(ProducerMachine, "_publish_run", send_skipping)


def encode_with(change: Runs, patch: Patch) -> None:
    """Change the messages of every run of RECORDs or DIRECT-RECORDs."""
    encode = batch._encode_run

    def encode_changed(run: wire.RecordRun, dialect: wire.Dialect) -> list[Sequence[bytes]]:
        return list(change(run, list(batch.iter_frames(encode(run, dialect)))))

    patch.setattr(batch, "_encode_run", encode_changed)


def address_in_topic_frame(run: wire.RecordRun, messages: Sequence[Sequence[bytes]]) -> Sequence[Sequence[bytes]]:
    if run.requestor is not None:
        return messages
    topic_frame = b"M" + run.batch.partition.address.encode("ascii")
    return [(topic_frame, *frames[1:]) for frames in messages]


def cut_at_nul(run: wire.RecordRun, messages: Sequence[Sequence[bytes]]) -> Sequence[Sequence[bytes]]:
    return [(*frames[:-1], frames[-1].partition(b"\0")[0]) for frames in messages]


def answer_to_partition(patch: Patch) -> None:
    encode = batch._encode_run

    def encode_to_partition(run: wire.RecordRun, dialect: wire.Dialect) -> list[Sequence[bytes]]:
        if run.requestor is not None:
            run = attrs.evolve(run, requestor=run.batch.partition.address)
        return list(batch.iter_frames(encode(run, dialect)))

    patch.setattr(batch, "_encode_run", encode_to_partition)


def same_address(patch: Patch) -> None:
    patch.setattr(producer_role, "new_address", lambda: "0123456789ABCDEF" * 2)


# What is kept, and what is answered


def forget_subscription(command: Command, patch: Patch) -> None:
    start = ProducerMachine.start

    def start_without(self: ProducerMachine, now: float) -> list[Action]:
        return [
            each
            for each in start(self, now)
            if not (isinstance(each, Subscribe) and each.prefix.startswith(command.value))
        ]

    patch.setattr(ProducerMachine, "start", start_without)


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
    mutant("head-first", "heads-at-intervals", "head.after-first-record", "before the first", head_before_first_record),
    mutant("stale-head", "head-of-last-record", "head.last-offset", "HEAD has the offset 0, expected", stale_head),
    mutant("no-head", "heads-at-intervals", "head.interval", "no first HEAD arrived", no_head),
    mutant("first-offset-1", "records", "sequence.first", "the offset 1, expected 0", first_offset_one),
    mutant("skips-offsets", "records", "sequence.increment", "the offset 6, expected 3", skip_offsets),
    mutant("record-to-address", "records", "topic.RECORD", "topic frame", partial(encode_with, address_in_topic_frame)),
    mutant("cuts-contents", "contents", "record.command", "has the content", partial(encode_with, cut_at_nul)),
    mutant("same-partition", "two", "partition.single-writer", "has the same address", same_address),
    mutant(
        "no-ack-subscription",
        "subscriptions",
        "subscription.producer.ack",
        "no subscription for ACK",
        partial(forget_subscription, Command.ACK),
    ),
    mutant(
        "no-fetch-subscription",
        "subscriptions",
        "subscription.producer.fetch",
        "no subscription for FETCH",
        partial(forget_subscription, Command.FETCH),
    ),
    mutant(
        "no-get-heads-subscription",
        "heads",
        "direct-head.producer",
        "no subscription at C for GET-HEADS",
        partial(forget_subscription, Command.GET_HEADS),
    ),
    mutant("keeps-last-ten", "kept-until-ack", "record.kept-until-ack", "record 0, fetched, was not", keep_last_ten),
    mutant("answers-to-partition", "late-store", "topic.DIRECT-RECORD", "DIRECT-RECORD is P, not", answer_to_partition),
    mutant(
        "takes-foreign-fetches",
        "foreign-fetches",
        "direct-record.checked",
        "a FETCH of another topic was answered",
        partial(receive_with, take_every_fetch),
    ),
]
