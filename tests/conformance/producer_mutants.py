"""Broken producers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import attrs
import pytest

from dafka import wire
from dafka.config import ProducerConfig
from dafka.errors import WireError
from dafka.protocol import ProducerMachine
from dafka.protocol.actions import Action, Publish, Subscribe
from dafka.protocol.answering.fetch_responder import FetchResponder
from dafka.protocol.machines.head_intervals import HeadSchedule
from dafka.protocol.ordering.buffers import RetransmitBuffer
from dafka.records import Partition, RecordBatch
from dafka.roles import producer as producer_role
from dafka.wire import Command, batch, codec
from dafka_conformance.model import Dialect
from tests.conformance.mutants import Mutant, accept_any, accept_trailing, drop_silent_peers

Patch = pytest.MonkeyPatch
Runs = Callable[[wire.RecordRun, Sequence[Sequence[bytes]]], Sequence[Sequence[bytes]]]

KEPT = 10
KEPT_MANY = 10_000
FEW = 3
AHEAD_MAX = 2**32 - 1


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


def one_head(patch: Patch) -> None:
    head = ProducerMachine._announce_head

    def head_once(self: ProducerMachine, now: float, *, is_known: bool = False) -> list[Action]:
        actions = head(self, now, is_known=is_known)
        _stop_heads(self)
        return actions

    patch.setattr(ProducerMachine, "_announce_head", head_once)


def few_heads(patch: Patch) -> None:
    head, counts = ProducerMachine._announce_head, Counter[int]()

    def head_thrice(self: ProducerMachine, now: float, *, is_known: bool = False) -> list[Action]:
        counts[id(self)] += 1
        actions = head(self, now, is_known=is_known)
        if counts[id(self)] >= FEW:
            _stop_heads(self)
        return actions

    patch.setattr(ProducerMachine, "_announce_head", head_thrice)


def no_head_of_acknowledged(patch: Patch) -> None:
    head = ProducerMachine._announce_head

    def head_of_the_rest(self: ProducerMachine, now: float, *, is_known: bool = False) -> list[Action]:
        actions = head(self, now, is_known=is_known)
        return actions if self.unacknowledged else []

    patch.setattr(ProducerMachine, "_announce_head", head_of_the_rest)


def head_when_idle(patch: Patch) -> None:
    send = ProducerMachine._publish_run

    def send_first(self: ProducerMachine, run: RecordBatch, now: float) -> list[Action]:
        actions = send(self, run, now)
        self._heads.start(now + self._config.head_interval_ms / 1000)
        return actions

    patch.setattr(ProducerMachine, "_publish_run", send_first)


def no_head_without_peer(patch: Patch) -> None:
    def left(self: ProducerMachine, _address: str, _now: float) -> list[Action]:
        _stop_heads(self)
        return []

    drop_silent_peers(patch)
    patch.setattr(ProducerMachine, "peer_left", left)


def heads_to_the_first(patch: Patch) -> None:
    direct_head, first = ProducerMachine._direct_head, dict[int, str]()

    def to_the_first(self: ProducerMachine, requestor: str) -> wire.DirectHead:
        return direct_head(self, first.setdefault(id(self), requestor))

    patch.setattr(ProducerMachine, "_direct_head", to_the_first)


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


def descending(run: wire.RecordRun, messages: Sequence[Sequence[bytes]]) -> Sequence[Sequence[bytes]]:
    return messages if run.requestor is None else messages[::-1]


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


def shift_contents(patch: Patch) -> None:
    read = RetransmitBuffer.read

    def read_shifted(self: RetransmitBuffer, first_sequence: int, count: int, bytes_max: int) -> RecordBatch | None:
        run = read(self, first_sequence, count, bytes_max)
        if run is None or not self.first_sequence:
            return run
        return RecordBatch(run.partition, run.first_sequence, [*run.values[1:], run.values[0]])

    patch.setattr(RetransmitBuffer, "read", read_shifted)


def receive_with(
    change: Callable[[ProducerMachine, wire.BatchedMessage], wire.BatchedMessage | None], patch: Patch
) -> None:
    """Change or drop each message before it is decoded."""
    receive = ProducerMachine.receive

    def receive_changed(self: ProducerMachine, messages: Iterable[wire.BatchedMessage], now: float) -> list[Action]:
        changed = [change(self, message) for message in messages]
        return receive(self, [message for message in changed if message is not None], now)

    patch.setattr(ProducerMachine, "receive", receive_changed)


def take_every_ack(self: ProducerMachine, message: wire.BatchedMessage) -> wire.BatchedMessage | None:
    if isinstance(message, wire.Ack):
        return attrs.evolve(message, partition=self.partition.address, subject=self.partition.topic)
    return message


def take_acks_beyond_head(self: ProducerMachine, message: wire.BatchedMessage) -> wire.BatchedMessage | None:
    if isinstance(message, wire.Ack):
        return attrs.evolve(message, sequence=min(message.sequence, self._published_end - 1))
    return message


def take_every_fetch(self: ProducerMachine, message: wire.BatchedMessage) -> wire.BatchedMessage | None:
    if isinstance(message, wire.Fetch):
        return attrs.evolve(message, subject=self.partition.topic)
    return message


def take_every_get_heads(self: ProducerMachine, message: wire.BatchedMessage) -> wire.BatchedMessage | None:
    if isinstance(message, wire.GetHeads):
        return attrs.evolve(message, subject=self.partition.topic)
    return message


def drop_get_heads(_: ProducerMachine, message: wire.BatchedMessage) -> wire.BatchedMessage | None:
    return None if isinstance(message, wire.GetHeads) else message


def narrow(
    kind: type[wire.Fetch] | type[wire.Ack], self: ProducerMachine, message: wire.BatchedMessage
) -> wire.BatchedMessage:
    """Truncate the sequence to 32 bits."""
    if isinstance(message, (wire.Fetch, wire.Ack)) and isinstance(message, kind):
        return attrs.evolve(message, sequence=message.sequence & AHEAD_MAX)
    return message


def no_head_of_one(self: ProducerMachine, message: wire.BatchedMessage) -> wire.BatchedMessage | None:
    return None if isinstance(message, wire.GetHeads) and self.next_sequence == 1 else message


def answer_last_fetch(patch: Patch) -> None:
    """Answer only the last FETCH."""
    offer = FetchResponder.add_fetch

    def offer_alone(self: FetchResponder, fetch: wire.Fetch, **how: bool) -> bool:
        while (request := self.next_read()) is not None:
            self.complete_read(request, None)
        return offer(self, fetch, **how)

    patch.setattr(FetchResponder, "add_fetch", offer_alone)


def ignore_count(patch: Patch) -> None:
    offer = FetchResponder.add_fetch
    patch.setattr(
        FetchResponder, "add_fetch", lambda self, fetch, **how: offer(self, attrs.evolve(fetch, count=AHEAD_MAX), **how)
    )


def leave_unacknowledged(patch: Patch) -> None:
    async def wait_acknowledged(_: producer_role.Producer) -> None:
        return

    patch.setattr(producer_role.Producer, "wait_acknowledged", wait_acknowledged)


# What is discarded


def crash_on_malformed(patch: Patch) -> None:
    decode = codec.decode

    def decode_or_crash(frames: Sequence[bytes]) -> Any:
        try:
            return decode(frames)
        except WireError as error:
            raise RuntimeError(f"malformed: {error}") from error

    patch.setattr(codec, "decode", decode_or_crash)


def mutant(
    name: str, scenario: str, clause: str, message: str, apply: Callable[[Patch], None], dialect: Dialect | None = None
) -> Mutant:
    """Return a mutant of the producer."""
    return Mutant(f"producer-{name}", f"producer.{scenario}", clause, message, apply, dialect or Dialect.RFC46)


MUTANTS: list[Mutant] = [
    mutant(
        "head-first",
        "heads-at-intervals",
        "head.after-first-record",
        "before the first RECORD",
        head_before_first_record,
    ),
    mutant("stale-head", "head-of-last-record", "head.last-offset", "HEAD has the offset 0, expected", stale_head),
    mutant("no-head", "heads-at-intervals", "head.interval", "no first HEAD arrived", no_head),
    mutant("one-head", "heads-at-intervals", "head.interval", "HEAD arrived within", one_head),
    mutant("first-offset-1", "records", "sequence.first", "the offset 1, expected 0", first_offset_one),
    mutant("skips-offsets", "records", "sequence.increment", "the offset 6, expected 3", skip_offsets),
    mutant(
        "record-to-address",
        "records",
        "topic.RECORD",
        "the topic frame of RECORD is P",
        partial(encode_with, address_in_topic_frame),
    ),
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
    mutant(
        "keeps-last-ten", "kept-until-ack", "record.kept-until-ack", "record 0, fetched, was not sent", keep_last_ten
    ),
    mutant(
        "keeps-last-ten-libdafka",
        "late-store",
        "record.kept-until-ack",
        "no DIRECT-RECORD 0 arrived",
        keep_last_ten,
        Dialect.LIBDAFKA,
    ),
    mutant(
        "takes-foreign-acks",
        "foreign-acks",
        "record.kept-until-ack",
        "after an ACK of another partition",
        partial(receive_with, take_every_ack),
    ),
    mutant(
        "takes-acks-beyond-head",
        "foreign-acks",
        "record.kept-until-ack",
        "after an ACK of a record that was never published",
        partial(receive_with, take_acks_beyond_head),
    ),
    mutant(
        "leaves-unacknowledged",
        "input-ended",
        "record.kept-until-ack",
        "the producer ended before all its records were acknowledged",
        leave_unacknowledged,
    ),
    mutant(
        "answers-descending",
        "part-fetched",
        "direct-record.ascending",
        "answers must be in ascending order",
        partial(encode_with, descending),
    ),
    mutant("ignores-count", "part-fetched", "fetch.count", "DIRECT-RECORD 10 was not requested", ignore_count),
    mutant(
        "answers-to-partition",
        "late-store",
        "topic.DIRECT-RECORD",
        "the topic frame of DIRECT-RECORD is P, not the requestor's",
        answer_to_partition,
    ),
    mutant(
        "shifts-contents",
        "resends-after-ack",
        "direct-record.content",
        "DIRECT-RECORD 7 has the content",
        shift_contents,
    ),
    mutant(
        "takes-foreign-fetches",
        "foreign-fetches",
        "direct-record.checked",
        "a FETCH of another topic was answered",
        partial(receive_with, take_every_fetch),
    ),
    mutant(
        "ignores-get-heads",
        "heads",
        "direct-head.producer",
        "no P:DIRECT-HEAD",
        partial(receive_with, drop_get_heads),
    ),
    mutant(
        "answers-every-get-heads",
        "heads-of-other-topics",
        "subject.exact",
        "was answered with a DIRECT-HEAD",
        partial(receive_with, take_every_get_heads),
    ),
    mutant(
        "any-signature",
        "malformed-fetch",
        "signature.discarded",
        "a FETCH with the signature AA A0 was answered",
        partial(accept_any, "signature"),
    ),
    mutant(
        "any-version",
        "malformed-ack",
        "version.discarded",
        "of the version 00 was accepted as an acknowledgment",
        partial(accept_any, "version"),
        Dialect.LIBDAFKA,
    ),
    mutant(
        "trailing-bytes",
        "malformed-fetch",
        "robust.malformed",
        "a FETCH with 1 byte after it was answered",
        accept_trailing,
    ),
    mutant("crashes", "malformed-fetch", "robust.malformed", "the producer ended by itself", crash_on_malformed),
    mutant("three-heads", "heads-at-intervals", "head.interval", "HEAD arrived within", few_heads),
    mutant(
        "no-head-of-acknowledged",
        "head-of-acknowledged",
        "head.interval",
        "after the ACK of all published records",
        no_head_of_acknowledged,
    ),
    mutant(
        "head-of-acknowledged",
        "head-of-acknowledged",
        "head.last-offset",
        "HEAD has the offset 2, expected 4, the last published record's",
        partial(head_with, lambda self: (self.acknowledged_end or self._published_end) - 1),
    ),
    mutant(
        "head-when-idle", "head-while-publishing", "head.interval", "while a record was published each", head_when_idle
    ),
    mutant(
        "no-head-without-peer", "peer-expires", "head.interval", "after a silent peer was dropped", no_head_without_peer
    ),
    mutant("heads-to-the-first", "heads", "direct-head.producer", "no P:DIRECT-HEAD 5 topic=S", heads_to_the_first),
    mutant(
        "no-head-of-one-record",
        "heads-of-one-record",
        "direct-head.producer",
        "no P:DIRECT-HEAD 0",
        partial(receive_with, no_head_of_one),
    ),
    mutant(
        "keeps-last-10000",
        "kept-however-many",
        "record.kept-until-ack",
        "record 0, fetched, was not sent",
        partial(keep_last_ten, kept=KEPT_MANY),
    ),
    mutant(
        "fetches-of-32-bits",
        "beyond-head",
        "fetch.count",
        "DIRECT-RECORD 0 was not requested",
        partial(receive_with, partial(narrow, wire.Fetch)),
    ),
    mutant(
        "acks-of-32-bits",
        "foreign-acks",
        "record.kept-until-ack",
        "differs above its 32nd bit, was not sent",
        partial(receive_with, partial(narrow, wire.Ack)),
    ),
    mutant("answers-last-fetch", "fetches-in-a-row", "direct-record.sent", "fetched, was not sent", answer_last_fetch),
]
