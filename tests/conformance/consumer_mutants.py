"""Broken consumers. Each has one small, realistic fault."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import attrs
import pytest

from dafka import wire
from dafka.errors import WireError
from dafka.protocol.actions import Action, Deliver, Publish, Subscribe
from dafka.protocol.machines import consumer
from dafka.protocol.machines.consumer import ConsumerMachine
from dafka.protocol.machines.node import Node
from dafka.protocol.ordering.cursor import Cursor
from dafka.protocol.ordering.fetch_planner import FetchPlanner
from dafka.protocol.ordering.reassembler import Reassembler
from dafka.records import Partition, RecordBatch
from dafka.wire import Command, batch, codec
from dafka.wire.primitives import FrameReader
from tests.conformance.mutants import Mutant, accept_any, accept_trailing, drop_silent_peers
from tests.conformance.wire_faults import take_every_topic

Apply = Callable[[pytest.MonkeyPatch], None]
Actions = list[Action]


def _own(*commands: Command) -> Apply:
    """Subscribe only to these of the messages that are addressed to the consumer."""
    return lambda monkeypatch: monkeypatch.setattr(consumer, "OWN_COMMANDS", commands)


def _of_topic(*commands: Command) -> Apply:
    """Subscribe only to these of the messages for its topic."""
    return lambda monkeypatch: monkeypatch.setattr(consumer, "_TOPIC_COMMANDS", commands)


def _acting(change: Callable[[ConsumerMachine, Action], Iterable[Action]]) -> Apply:
    """Change all actions of the machine."""

    def apply(monkeypatch: pytest.MonkeyPatch) -> None:
        act = Node.act

        def changed(self: Node, actions: Iterable[Action]) -> None:
            machine = self._machine
            if isinstance(machine, ConsumerMachine):
                actions = [each for action in actions for each in change(machine, action)]
            act(self, actions)

        monkeypatch.setattr(Node, "act", changed)

    return apply


def _publishing(kind: type[Any], **changes: Callable[[ConsumerMachine, Any], Any]) -> Apply:
    """Send every message of one kind with other fields."""

    def change(machine: ConsumerMachine, action: Action) -> Iterable[Action]:
        if isinstance(action, Publish) and isinstance(action.message, kind):
            message: Any = action.message
            fields = {name: value(machine, message) for name, value in changes.items()}
            return [Publish(attrs.evolve(message, **fields))]
        return [action]

    return _acting(change)


def _silent_about(kind: type[Any]) -> Apply:
    """Never send a kind of message."""
    return _acting(
        lambda _, action: () if isinstance(action, Publish) and isinstance(action.message, kind) else (action,)
    )


def _deliver_twice(_: ConsumerMachine, action: Action) -> Iterable[Action]:
    if not isinstance(action, Deliver):
        return [action]
    batch = action.batch
    return [Deliver(attrs.evolve(batch, values=[*batch.values, *batch.values], encoded=()))]


def _deliver_backwards(_: ConsumerMachine, action: Action) -> Iterable[Action]:
    """Deliver a run of records in reverse order."""
    if not isinstance(action, Deliver):
        return [action]
    run = action.batch
    return [Deliver(run.between(at, at + 1)) for at in reversed(range(run.first_sequence, run.end_sequence))]


def _drop_empty(_: ConsumerMachine, action: Action) -> Iterable[Action]:
    if not isinstance(action, Deliver):
        return [action]
    run = action.batch
    kept = [at for at in range(run.first_sequence, run.end_sequence) if run.values[at - run.first_sequence]]
    return [Deliver(run.between(at, at + 1)) for at in kept]


def _skip_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deliver every newer record, without filling gaps."""

    def take(self: Cursor, run: RecordBatch, _: int) -> list[RecordBatch]:
        ready = [run.between(max(self.next_sequence, run.first_sequence), run.end_sequence)]
        is_new = run.end_sequence > self.next_sequence
        self.next_sequence = self.known_end = max(self.next_sequence, run.end_sequence)
        return ready if is_new else []

    monkeypatch.setattr(Cursor, "add_batch", take)


def _take_duplicates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deliver duplicates."""
    take = Cursor.add_batch

    def taken(self: Cursor, run: RecordBatch, ahead_bytes_left: int) -> list[RecordBatch]:
        return [run] if run.end_sequence <= self.next_sequence else take(self, run, ahead_bytes_left)

    monkeypatch.setattr(Cursor, "add_batch", taken)


def _match_prefixes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accept every message that matches a subscription."""

    def follow(self: ConsumerMachine, partition: Partition, _: int, __: float, *, is_live: bool) -> bool:
        if not any(partition.topic.startswith(topic) for topic in self.topics):
            return False
        if partition not in self.reassembler.cursors:
            self.reassembler.follow_partition(partition, 0)
        return True

    monkeypatch.setattr(ConsumerMachine, "_follow_partition", follow)


def _subscribe_to_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Subscribe to everything instead of the topic, and take all that arrives for the topic's."""
    subscribe = ConsumerMachine.subscribe

    def subscribe_to_everything(self: ConsumerMachine, topic: str, now: float) -> Actions:
        actions = subscribe(self, topic, now)
        return [Subscribe(b""), *(action for action in actions if not isinstance(action, Subscribe))]

    monkeypatch.setattr(ConsumerMachine, "subscribe", subscribe_to_everything)
    take_every_topic(monkeypatch)


def _believe_topic_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the topic from the topic frame instead of the subject."""
    decode = codec.decode

    def decoded(frames: Sequence[bytes]) -> tuple[Any, wire.Dialect]:
        try:
            return decode(frames)
        except WireError as error:
            if error.field != "subject":
                raise
            message, dialect = decode([frames[0] + b"2", *frames[1:]])
            changed: Any = message
            return attrs.evolve(changed, subject=frames[0][1:].decode("ascii")), dialect

    monkeypatch.setattr(codec, "decode", decoded)


def _take_others_records(monkeypatch: pytest.MonkeyPatch) -> None:
    receive = ConsumerMachine._receive_run

    def received(self: ConsumerMachine, run: wire.RecordRun, now: float) -> Actions:
        return receive(self, run if run.requestor is None else attrs.evolve(run, requestor=self.address), now)

    monkeypatch.setattr(ConsumerMachine, "_receive_run", received)


def _take_others_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    receive = ConsumerMachine._receive_head

    def received(self: ConsumerMachine, head: wire.Head | wire.DirectHead, now: float) -> Actions:
        mine = attrs.evolve(head, requestor=self.address) if isinstance(head, wire.DirectHead) else head
        return receive(self, mine, now)

    monkeypatch.setattr(ConsumerMachine, "_receive_head", received)


def _never_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send each FETCH only once."""
    monkeypatch.setattr(FetchPlanner, "expire_pages", lambda _self, _now: [])
    monkeypatch.setattr(FetchPlanner, "deadline", lambda _self: float("inf"))


def _stop_paging(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fetch up to the next multiple of 100,000 only, as libdafka does."""
    plan = FetchPlanner.plan_fetch

    def planned(self: FetchPlanner, partition: Partition, cursor: Cursor, now: float) -> tuple[int, int] | None:
        asked = plan(self, partition, cursor, now)
        if asked is None or asked[0] >= 100_000:
            return None
        return asked[0], min(asked[1], 100_000 - asked[0])

    monkeypatch.setattr(FetchPlanner, "plan_fetch", planned)


def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send a hundred FETCHes per second."""
    monkeypatch.setattr(FetchPlanner, "_wait", lambda _self, _attempts: 0.01)


def _hear_heads_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Detect gaps by records only."""
    monkeypatch.setattr(ConsumerMachine, "_receive_head", lambda _self, _head, _now: [])


def _accept_truncated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read missing bytes at the end of a number as zeros."""
    read_bytes = FrameReader.read_bytes

    def read(self: FrameReader, count: int, field: str) -> bytes:
        try:
            return read_bytes(self, count, field)
        except WireError:
            if field != "sequence":
                raise
            return read_bytes(self, len(self._data) - self.offset, field).ljust(count, b"\0")

    monkeypatch.setattr(FrameReader, "read_bytes", read)


def _take_first_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the first of several content frames."""
    decode = wire.BatchDecoder.decode_in_parts

    def decoded(self: wire.BatchDecoder, messages: Iterable[Sequence[bytes]]) -> Iterator[list[Any]]:
        return decode(self, [frames[:3] for frames in batch.iter_frames(messages)])

    monkeypatch.setattr(wire.BatchDecoder, "decode_in_parts", decoded)


def _crash(monkeypatch: pytest.MonkeyPatch) -> None:
    """End at a message that cannot be decoded."""

    def decode_other(self: wire.BatchDecoder, frames: Sequence[bytes], inbound: list[Any]) -> None:
        inbound.append(codec.decode(frames)[0])

    monkeypatch.setattr(wire.BatchDecoder, "_decode_other", decode_other)


def _begin_at_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start at the earliest record despite `latest`."""

    def joined(self: ConsumerMachine, address: str, _: float) -> Actions:
        self._newer_peers[address] = None
        return []

    monkeypatch.setattr(ConsumerMachine, "peer_joined", joined)


def _ask_heads_at_earliest_alone(machine: ConsumerMachine, action: Action) -> Iterable[Action]:
    is_question = isinstance(action, Publish) and isinstance(action.message, wire.GetHeads)
    return () if is_question and machine._config.consumer.offset_reset == "latest" else (action,)


def _own_address(machine: ConsumerMachine, _: Any) -> str:
    return machine.address


def _forget_the_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drop a partition's state with its producer."""
    left = ConsumerMachine.peer_left

    def forget(self: ConsumerMachine, address: str, now: float) -> Actions:
        actions = left(self, address, now)
        for partition in [partition for partition in self.reassembler.cursors if partition.address == address]:
            self.reassembler.forget_partition(partition)
        return actions

    drop_silent_peers(monkeypatch)
    monkeypatch.setattr(ConsumerMachine, "peer_left", forget)


def _believe_lower_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the last received head instead of the highest."""

    def learn(self: Cursor, end_sequence: int) -> None:
        self.known_end = max(end_sequence, self.next_sequence)

    monkeypatch.setattr(Cursor, "record_known_end", learn)


def _one_direct_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accept only one DIRECT-HEAD per partition."""
    receive, known = ConsumerMachine._receive_head, set[str]()

    def first(self: ConsumerMachine, head: wire.Head | wire.DirectHead, now: float) -> Actions:
        if isinstance(head, wire.DirectHead):
            if head.address in known:
                return []
            known.add(head.address)
        return receive(self, head, now)

    monkeypatch.setattr(ConsumerMachine, "_receive_head", first)


def _one_gap_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fetch only one partition at a time."""
    plan = FetchPlanner.plan_fetch

    def one(self: FetchPlanner, partition: Partition, cursor: Cursor, now: float) -> tuple[int, int] | None:
        is_busy = any(each != partition for each in self.active_partitions())
        return None if is_busy else plan(self, partition, cursor, now)

    monkeypatch.setattr(FetchPlanner, "plan_fetch", one)


def _hold_all_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deliver nothing while a partition has a gap."""
    take = Reassembler.add_batch
    held: list[RecordBatch] = []

    def take_all(self: Reassembler, batch: RecordBatch) -> list[RecordBatch]:
        held.extend(take(self, batch))
        if any(cursor.ahead_bytes for cursor in self.cursors.values()):
            return []
        ready = held.copy()
        held.clear()
        return ready

    monkeypatch.setattr(Reassembler, "add_batch", take_all)


def _after_a_gap_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drop the later gaps when a gap is filled."""
    take = Cursor.add_batch

    def forget(self: Cursor, batch: RecordBatch, ahead_bytes_left: int) -> list[RecordBatch]:
        ready = take(self, batch, ahead_bytes_left)
        if len(ready) > 1:
            self.known_end = self.next_sequence
        return ready

    monkeypatch.setattr(Cursor, "add_batch", forget)


def _narrow_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Truncate the sequences of records to 32 bits."""
    receive = ConsumerMachine._receive_run

    def narrow(self: ConsumerMachine, run: wire.RecordRun, now: float) -> Actions:
        batch = attrs.evolve(run.batch, first_sequence=run.batch.first_sequence & BITS_32)
        return receive(self, attrs.evolve(run, batch=batch), now)

    monkeypatch.setattr(ConsumerMachine, "_receive_run", narrow)


def _narrow_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Truncate the sequences of heads to 32 bits."""
    receive = ConsumerMachine._receive_head

    def narrow(self: ConsumerMachine, head: wire.Head | wire.DirectHead, now: float) -> Actions:
        return receive(self, attrs.evolve(head, sequence=head.sequence & BITS_32), now)

    monkeypatch.setattr(ConsumerMachine, "_receive_head", narrow)


def _narrow_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fetch everything at once, with the count truncated to 32 bits."""
    plan = FetchPlanner.plan_fetch

    def narrow(self: FetchPlanner, partition: Partition, cursor: Cursor, now: float) -> tuple[int, int] | None:
        planned = plan(self, partition, cursor, now)
        return planned and (planned[0], (cursor.known_end - planned[0]) & BITS_32)

    monkeypatch.setattr(FetchPlanner, "plan_fetch", narrow)


def _accept_version_in_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accept the digit 1 as the version."""
    literal = FrameReader.expect_bytes

    def read(self: FrameReader, expected: bytes, name: str) -> None:
        if name == "version" and self._data[self.offset : self.offset + 1] == b"1":
            self.read_bytes(1, name)
        else:
            literal(self, expected, name)

    monkeypatch.setattr(FrameReader, "expect_bytes", read)


BITS_32 = 2**32 - 1
ALL_OWN = (Command.DIRECT_RECORD, Command.DIRECT_HEAD, Command.STORE_HELLO)
MUTANTS: list[Mutant] = [
    *(
        Mutant(
            f"consumer-lacks-subscription-{command.name.lower()}",
            "consumer.subscriptions",
            f"subscription.consumer.{name.lower()}",
            f"no subscription for {name}",
            _own(*(each for each in ALL_OWN if each is not command)),
        )
        for command, name in zip(ALL_OWN, ("DIRECT-RECORD", "DIRECT-HEAD", "STORE-HELLO"), strict=True)
    ),
    Mutant(
        "consumer-lacks-subscription-record",
        "consumer.subscriptions",
        "subscription.consumer.record",
        "no subscription for RECORD",
        _of_topic(Command.HEAD),
    ),
    Mutant(
        "consumer-lacks-subscription-head",
        "consumer.subscriptions",
        "subscription.consumer.head",
        "no subscription for HEAD",
        _of_topic(Command.RECORD),
    ),
    Mutant(
        "consumer-asks-for-no-heads",
        "consumer.get-heads",
        "get-heads.sent",
        "no GET-HEADS arrived",
        _silent_about(wire.GetHeads),
    ),
    Mutant(
        "consumer-asks-for-no-heads-at-latest",
        "consumer.get-heads-latest",
        "get-heads.sent",
        "no GET-HEADS arrived",
        _acting(_ask_heads_at_earliest_alone),
    ),
    Mutant(
        "consumer-asks-for-heads-of-itself",
        "consumer.get-heads",
        "topic.GET-HEADS",
        "the topic frame of GET-HEADS is C, not the topic",
        _publishing(wire.GetHeads, subject=_own_address),
    ),
    Mutant(
        "consumer-sends-no-hello",
        "consumer.grammar.join-consumer.39",
        "consumer-hello.sent",
        "no CONSUMER-HELLO arrived",
        _silent_about(wire.ConsumerHello),
    ),
    Mutant(
        "consumer-hello-without-topics",
        "consumer.hello",
        "consumer-hello.not-empty",
        "CONSUMER-HELLO has no topic",
        _publishing(wire.ConsumerHello, subjects=lambda _machine, _message: ()),
    ),
    Mutant(
        "consumer-hello-with-another-topic",
        "consumer.hello",
        "consumer-hello.subjects",
        "CONSUMER-HELLO has elsewhere, but",
        _publishing(wire.ConsumerHello, subjects=lambda _machine, _message: ("elsewhere",)),
    ),
    Mutant(
        "consumer-fetches-under-its-own-address",
        "consumer.gap",
        "topic.FETCH",
        "the topic frame of FETCH is C, which is not a partition's address",
        _publishing(wire.Fetch, partition=_own_address),
    ),
    Mutant(
        "consumer-fetches-in-the-partition's-name",
        "consumer.gap",
        "fetch.address",
        "the address of FETCH is P, not the sender's own",
        _publishing(wire.Fetch, address=lambda _, message: message.partition),
    ),
    Mutant(
        "consumer-fetches-one-too-far",
        "consumer.gap",
        "fetch.sequence",
        "the last FETCH was",
        _publishing(wire.Fetch, sequence=lambda _, message: message.sequence + 1),
    ),
    Mutant(
        "consumer-fetches-from-the-beginning",
        "consumer.head",
        "fetch.sequence",
        "the last FETCH was",
        _publishing(wire.Fetch, sequence=lambda _machine, _message: 0),
    ),
    Mutant(
        "consumer-fetches-nothing",
        "consumer.fetch-repeated",
        "fetch.sent",
        "a FETCH has the count 0",
        _publishing(wire.Fetch, count=lambda _machine, _message: 0),
    ),
    Mutant(
        "consumer-ignores-direct-heads",
        "consumer.direct-head",
        "fetch.sent",
        "no C:FETCH topic=P arrived",
        _hear_heads_not,
    ),
    Mutant(
        "consumer-ignores-heads",
        "consumer.head",
        "fetch.sent",
        "no C:FETCH topic=P arrived",
        _hear_heads_not,
    ),
    Mutant(
        "consumer-fetches-once",
        "consumer.fetch-repeated",
        "fetch.repeated",
        "no FETCH (the first one had no answer",
        _never_again,
    ),
    Mutant(
        "consumer-fetches-in-a-storm",
        "consumer.fetch-repeated",
        "fetch.repeated",
        "while no node answered and 200 records arrived",
        _impatient,
    ),
    Mutant(
        "consumer-stops-paging",
        "consumer.catch-up",
        "fetch.pages",
        "100,000 of 250,000 records were delivered, then none",
        _stop_paging,
    ),
    Mutant(
        "consumer-delivers-twice",
        "consumer.live",
        "delivery.once",
        "were delivered more than once",
        _acting(_deliver_twice),
    ),
    Mutant(
        "consumer-delivers-duplicates",
        "consumer.duplicate-records",
        "delivery.once",
        "were delivered more than once",
        _take_duplicates,
    ),
    Mutant(
        "consumer-delivers-backwards",
        "consumer.live",
        "delivery.in-order",
        "was delivered, expected",
        _acting(_deliver_backwards),
    ),
    Mutant(
        "consumer-skips-gaps",
        "consumer.gap-filled-by-store",
        "fetch.sent",
        "no C:FETCH topic=P arrived",
        _skip_gaps,
    ),
    Mutant(
        "consumer-drops-out-of-order-records",
        "consumer.out-of-order",
        "delivery.complete",
        "2 of 3 records were not delivered",
        _skip_gaps,
    ),
    Mutant(
        "consumer-matches-prefixes",
        "consumer.prefix-topic",
        "subject.exact",
        "was delivered to a consumer of",
        _match_prefixes,
    ),
    Mutant(
        "consumer-requests-every-topic",
        "consumer.prefix-topic",
        "subject.exact",
        "requested records of",
        _subscribe_to_everything,
    ),
    Mutant(
        "consumer-subscribes-to-everything",
        "consumer.subscriptions",
        "subscription.consumer.record",
        "it subscribes to everything instead",
        _subscribe_to_everything,
    ),
    Mutant(
        "consumer-trusts-topic-frames",
        "consumer.foreign-subject",
        "subject.exact",
        "requested records of",
        _believe_topic_frame,
    ),
    Mutant(
        "consumer-takes-records-for-others",
        "consumer.longer-address",
        "direct-record.requestor",
        "a DIRECT-RECORD that is addressed to another node was delivered",
        _take_others_records,
    ),
    Mutant(
        "consumer-takes-heads-for-others",
        "consumer.longer-address",
        "direct-record.requestor",
        "a DIRECT-HEAD that is addressed to another node caused a FETCH",
        _take_others_heads,
    ),
    Mutant(
        "consumer-accepts-signatures",
        "consumer.signature",
        "signature.discarded",
        "a RECORD with the signature AAA0 was not discarded",
        partial(accept_any, "signature"),
    ),
    Mutant(
        "consumer-accepts-versions",
        "consumer.version",
        "version.discarded",
        "a RECORD with the version 00 was not discarded",
        partial(accept_any, "version"),
    ),
    Mutant(
        "consumer-accepts-unknown-commands",
        "consumer.unknown-command",
        "robust.unknown-command",
        "a STORE-HELLO with the id b'Z' was not discarded: it caused a CONSUMER-HELLO",
        partial(accept_any, "command"),
    ),
    Mutant(
        "consumer-accepts-trailing-bytes",
        "consumer.trailing-bytes",
        "robust.malformed",
        "a HEAD with 1 bytes after its last field was not discarded: it caused a FETCH",
        accept_trailing,
    ),
    Mutant(
        "consumer-accepts-truncated-fields",
        "consumer.truncated",
        "robust.malformed",
        "bytes missing at the end of its fields was not discarded",
        _accept_truncated,
    ),
    Mutant(
        "consumer-takes-first-frame",
        "consumer.additional-frames",
        "robust.multi-frame",
        "a RECORD with 2 frames of content was not discarded: its content was delivered",
        _take_first_frame,
    ),
    Mutant(
        "consumer-ends-at-garbage",
        "consumer.garbage",
        "robust.malformed",
        "the consumer ended by itself",
        _crash,
    ),
    Mutant(
        "consumer-begins-at-zero-at-latest",
        "consumer.latest",
        "latest.new-only",
        "10 records that were published before the consumer started at the latest one were delivered",
        _begin_at_zero,
    ),
    Mutant(
        "consumer-drops-empty-contents",
        "consumer.contents",
        "record.any-size",
        'was delivered, expected ""',
        _acting(_drop_empty),
    ),
    Mutant(
        "consumer-forgets-silent-producers",
        "consumer.producer-returns",
        "delivery.once",
        "were delivered more than once",
        _forget_the_silent,
    ),
    Mutant(
        "consumer-trusts-lower-heads",
        "consumer.lower-head",
        "delivery.complete",
        "of 5,000 records were not delivered",
        _believe_lower_heads,
    ),
    Mutant(
        "consumer-takes-one-direct-head",
        "consumer.direct-head-again",
        "fetch.sent",
        "no FETCH of record 5 arrived",
        _one_direct_head,
    ),
    Mutant(
        "consumer-fetches-one-partition",
        "consumer.gap-of-another",
        "fetch.sent",
        "no C:FETCH topic=P2 arrived",
        _one_gap_at_a_time,
    ),
    Mutant(
        "consumer-blocks-all-partitions-at-a-gap",
        "consumer.gap-of-another",
        "delivery.complete",
        "5 of 5 records were not delivered",
        _hold_all_up,
    ),
    Mutant(
        "consumer-forgets-further-gaps",
        "consumer.every-other-record",
        "delivery.complete",
        "of 10,000 records were not delivered",
        _after_a_gap_nothing,
    ),
    Mutant(
        "consumer-has-records-of-32-bits",
        "consumer.large-sequences",
        "delivery.complete",
        "records were not delivered",
        _narrow_records,
    ),
    Mutant(
        "consumer-has-heads-of-32-bits",
        "consumer.large-sequences",
        "delivery.complete",
        "the first is",
        _narrow_heads,
    ),
    Mutant(
        "consumer-has-counts-of-32-bits",
        "consumer.large-head",
        "fetch.sent",
        "after a HEAD of 4,294,967,295",
        _narrow_counts,
    ),
    Mutant(
        "consumer-accepts-version-in-text",
        "consumer.version",
        "version.discarded",
        "a RECORD with the version 31 was not discarded",
        _accept_version_in_text,
    ),
]
