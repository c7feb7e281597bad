"""Broken stores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import attrs
import pytest

from dafka import wire
from dafka.protocol import StoreMachine
from dafka.protocol.actions import Action, Publish, Subscribe, Unsubscribe
from dafka.protocol.answering.fetch_responder import FetchResponder
from dafka.protocol.machines.head_exchange import HeadExchange
from dafka.protocol.machines.store_answers import StoreAnswers
from dafka.protocol.ordering.cursor import Cursor
from dafka.protocol.ordering.fetch_planner import FetchPlanner
from dafka.records import Partition, RecordBatch
from dafka.storage.sqlite import SqliteStorage
from dafka.wire import Command, batch, codec
from dafka.wire.fields import FieldType
from dafka.wire.primitives import FrameReader
from dafka_conformance.model import Dialect
from tests.conformance.mutant_process import process_target
from tests.conformance.mutants import Mutant, accept_any, drop_silent_peers

STALLS_AT = 100_000

Patch = pytest.MonkeyPatch


def acknowledge_with(make: Callable[[StoreMachine, Partition, int], wire.Ack], patch: Patch) -> None:
    """Make every ACK with this function of the partition and the sequence."""

    def ack(self: StoreMachine, partition: Partition) -> list[Action]:
        end = self.stored.durable_end(partition)
        return [Publish(make(self, partition, end - 1))] if end else []

    patch.setattr(StoreMachine, "_acknowledge", ack)


def acknowledge_beyond_gap(patch: Patch) -> None:
    receive = StoreMachine._receive_run

    def receive_and_ack(self: StoreMachine, run: wire.RecordRun, now: float) -> list[Action]:
        found = run.batch.partition
        ack = wire.Ack(found.address, found.topic, run.batch.end_sequence - 1, self.address)
        return [*receive(self, run, now), Publish(ack)]

    patch.setattr(StoreMachine, "_receive_run", receive_and_ack)


def forget_subscription(command: Command, patch: Patch) -> None:
    start = StoreMachine.start

    def start_without(self: StoreMachine, now: float) -> list[Action]:
        actions = start(self, now)
        return [
            each
            for each in actions
            if not (isinstance(each, Subscribe) and each.prefix.startswith(wire.subscription_prefix(command)))
        ]

    patch.setattr(StoreMachine, "start", start_without)


def encode_answers(change: Callable[[list[Any]], list[Any]], patch: Patch) -> None:
    """Change the messages of every run of DIRECT-RECORDs."""
    encode = batch._encode_run

    def encode_changed(run: wire.RecordRun, dialect: Any) -> list[Any]:
        messages = list(batch.iter_frames(encode(run, dialect)))
        return messages if run.requestor is None else change(messages)

    patch.setattr(batch, "_encode_run", encode_changed)


def swap_contents(messages: list[Any]) -> list[Any]:
    contents = [message[-1] for message in messages]
    return [(*message[:-1], content) for message, content in zip(messages, reversed(contents), strict=True)]


def answer_one_more(patch: Patch) -> None:
    offer = FetchResponder.add_fetch
    patch.setattr(
        FetchResponder,
        "add_fetch",
        lambda self, fetch, **how: offer(self, attrs.evolve(fetch, count=fetch.count + 1), **how),
    )


def match_prefixes(patch: Patch) -> None:
    def direct_heads(self: HeadExchange, topic: str, requestor: str, *_: int) -> list[Action]:
        return [
            Publish(wire.DirectHead(requestor, address, known, end - 1))
            for known, ends in self._stored.durable.items()
            if known.startswith(topic)
            for address, end in ends.items()
        ]

    patch.setattr(HeadExchange, "_direct_heads", direct_heads)


def tell_one_head(patch: Patch) -> None:
    direct_heads = HeadExchange._direct_heads
    patch.setattr(
        HeadExchange, "_direct_heads", lambda self, topic, requestor, *_: direct_heads(self, topic, requestor, 0, 1)
    )


def tell_head_beyond_gap(patch: Patch) -> None:
    def direct_heads(self: HeadExchange, topic: str, requestor: str, *_: int) -> list[Action]:
        return [
            Publish(wire.DirectHead(requestor, partition.address, topic, cursor.known_end - 1))
            for partition, cursor in self._followed.items()
            if partition.topic == topic and cursor.known_end
        ]

    patch.setattr(HeadExchange, "_direct_heads", direct_heads)


def overwrite(patch: Patch) -> None:
    last: dict[tuple[Partition, int], bytes | None] = {}
    receive, read = StoreMachine._receive_run, SqliteStorage.read

    def receive_last(self: StoreMachine, run: wire.RecordRun, now: float) -> list[Action]:
        last.update({(record.partition, record.sequence): record.value for record in run.batch})
        return receive(self, run, now)

    async def read_last(self: SqliteStorage, *arguments: Any, **options: Any) -> RecordBatch | None:
        found = await read(self, *arguments, **options)
        return found and attrs.evolve(found, values=[last[each.partition, each.sequence] for each in found], encoded=())

    patch.setattr(StoreMachine, "_receive_run", receive_last)
    patch.setattr(SqliteStorage, "read", read_last)


def ask_once(patch: Patch) -> None:
    patch.setattr(FetchPlanner, "expire_pages", lambda self, now: [])
    patch.setattr(FetchPlanner, "deadline", lambda self: float("inf"))
    patch.setattr(FetchPlanner, "allow_refetch", lambda self, partition, cursor: None)


def stall(patch: Patch) -> None:
    plan = FetchPlanner.plan_fetch

    def plan_some(self: FetchPlanner, partition: Partition, cursor: Cursor, now: float) -> tuple[int, int] | None:
        planned = plan(self, partition, cursor, now)
        return None if planned is None or planned[0] >= STALLS_AT else planned

    patch.setattr(FetchPlanner, "plan_fetch", plan_some)


def ask_for_next(patch: Patch) -> None:
    plan = FetchPlanner.plan_fetch

    def plan_next(self: FetchPlanner, partition: Partition, cursor: Cursor, now: float) -> tuple[int, int] | None:
        planned = plan(self, partition, cursor, now)
        return planned and (planned[0] + 1, planned[1])

    patch.setattr(FetchPlanner, "plan_fetch", plan_next)


def take_others_answers(patch: Patch) -> None:
    start, receive = StoreMachine.start, StoreMachine._receive_run

    def start_with_all(self: StoreMachine, now: float) -> list[Action]:
        return [*start(self, now), Subscribe(wire.subscription_prefix(Command.DIRECT_RECORD))]

    def receive_all(self: StoreMachine, run: wire.RecordRun, now: float) -> list[Action]:
        return receive(self, attrs.evolve(run, requestor=run.requestor and self.address), now)

    patch.setattr(StoreMachine, "start", start_with_all)
    patch.setattr(StoreMachine, "_receive_run", receive_all)


def send_no_hello(patch: Patch) -> None:
    subscribed = StoreMachine.receive_subscriptions

    def subscribed_silently(self: StoreMachine, subscriptions: Iterable[wire.Subscription], now: float) -> list[Action]:
        return subscribed(self, [each for each in subscriptions if each.command is not Command.STORE_HELLO], now)

    patch.setattr(StoreMachine, "receive_subscriptions", subscribed_silently)


def ignore_hellos(patch: Patch) -> None:
    receive = StoreMachine.receive

    def receive_others(self: StoreMachine, messages: Iterable[wire.BatchedMessage], now: float) -> list[Action]:
        return receive(self, [each for each in messages if not isinstance(each, wire.ConsumerHello)], now)

    patch.setattr(StoreMachine, "receive", receive_others)


def crash(patch: Patch) -> None:
    def decode(self: batch.BatchDecoder, frames: Sequence[bytes], inbound: list[Any]) -> None:
        inbound.append(codec.decode(frames)[0])

    patch.setattr(batch.BatchDecoder, "_decode_other", decode)


def decode_with(change: Callable[[Sequence[bytes]], Sequence[bytes]], patch: Patch) -> None:
    """Change every message before it is decoded; drop it if no frames are left."""
    decode = batch.BatchDecoder.decode_in_parts

    def decode_changed(
        self: batch.BatchDecoder, messages: Iterable[Sequence[bytes]]
    ) -> Iterator[list[wire.BatchedMessage]]:
        return decode(self, [changed for changed in map(change, batch.iter_frames(messages)) if changed])

    patch.setattr(batch.BatchDecoder, "decode_in_parts", decode_changed)


def drop_empty(frames: Sequence[bytes]) -> Sequence[bytes]:
    return [] if frames[0][:1] == b"M" and not frames[-1] else frames


def drop_further_frames(frames: Sequence[bytes]) -> Sequence[bytes]:
    return frames[:3] if frames[0][:1] == b"M" else frames


def drop_trailing_bytes(frames: Sequence[bytes]) -> Sequence[bytes]:
    """Ignore bytes after the fields of a FETCH."""
    if frames[0][:1] != b"F" or len(frames) < 2:
        return frames
    fields = frames[1]
    subject = 5 + fields[4] if len(fields) > 4 else 0
    end = subject + 1 + fields[subject] + 12 if 0 < subject < len(fields) else len(fields)
    return [frames[0], fields[:end]]


def limit_partitions(patch: Patch) -> None:
    follow = StoreMachine._follow_partition

    def follow_some(self: StoreMachine, partition: Partition, now: float, *, is_live: bool) -> bool:
        is_room = partition in self.reassembler.cursors or len(self.reassembler.cursors) < 256
        return is_room and follow(self, partition, now, is_live=is_live)

    patch.setattr(StoreMachine, "_follow_partition", follow_some)


def answer_any_subject(patch: Patch) -> None:
    receive = StoreAnswers.receive_fetch

    def receive_corrected(self: StoreAnswers, fetch: wire.Fetch, now: float) -> list[Action]:
        topics = [topic for topic, ends in self._stored.durable.items() if fetch.partition in ends]
        return receive(self, attrs.evolve(fetch, subject=topics[0]) if topics else fetch, now)

    patch.setattr(StoreAnswers, "receive_fetch", receive_corrected)


def tell_heads_with(change: Callable[[HeadExchange, str, str, list[Action]], list[Action]], patch: Patch) -> None:
    """Change the answers to GET-HEADS."""
    direct_heads = HeadExchange._direct_heads
    patch.setattr(
        HeadExchange,
        "_direct_heads",
        lambda self, topic, requestor, *place: change(
            self, topic, requestor, direct_heads(self, topic, requestor, *place)
        ),
    )


def tell_once(patch: Patch) -> None:
    answered: set[tuple[str, str]] = set()

    def change(_: HeadExchange, topic: str, requestor: str, actions: list[Action]) -> list[Action]:
        is_new = (topic, requestor) not in answered
        answered.add((topic, requestor))
        return actions if is_new else []

    tell_heads_with(change, patch)


def tell_first_head(patch: Patch) -> None:
    first: dict[str, list[Action]] = {}
    tell_heads_with(lambda _, topic, __, actions: first.setdefault(topic, actions), patch)


def offer_with(change: Callable[[FetchResponder, wire.Fetch], wire.Fetch | None], patch: Patch) -> None:
    """Change or drop each FETCH before it is answered."""
    offer = FetchResponder.add_fetch

    def offer_changed(self: FetchResponder, fetch: wire.Fetch, **how: bool) -> bool:
        changed = change(self, fetch)
        return changed is None or offer(self, changed, **how)

    patch.setattr(FetchResponder, "add_fetch", offer_changed)


def answer_once(patch: Patch) -> None:
    seen: list[wire.Fetch] = []

    def change(_: FetchResponder, fetch: wire.Fetch) -> wire.Fetch | None:
        is_known = fetch in seen
        seen.append(fetch)
        return None if is_known else fetch

    offer_with(change, patch)


def _drop_while_busy(queue: FetchResponder, fetch: wire.Fetch) -> wire.Fetch | None:
    return None if any(found.address == fetch.partition for _, found in queue.pending_ranges()) else fetch


def _drop_overlap(queue: FetchResponder, fetch: wire.Fetch) -> wire.Fetch | None:
    ranges = queue.pending_ranges().get((fetch.address, Partition(fetch.subject, fetch.partition)), [])
    end = fetch.sequence + fetch.count
    is_overlap = any(each.start < end and fetch.sequence < each.stop for each in ranges)
    return None if is_overlap else fetch


def ask_for_one_gap(patch: Patch) -> None:
    plan = FetchPlanner.plan_fetch
    asked: dict[Partition, int] = {}

    def plan_first(self: FetchPlanner, partition: Partition, cursor: Cursor, now: float) -> tuple[int, int] | None:
        planned = plan(self, partition, cursor, now)
        return planned if planned and asked.setdefault(partition, planned[0]) == planned[0] else None

    patch.setattr(FetchPlanner, "plan_fetch", plan_first)


def start_with(change: Callable[[dict[Partition, int]], dict[Partition, int]], patch: Patch) -> None:
    """Change the partitions that a store knows when it starts."""
    begin = StoreMachine.__init__

    def begin_changed(self: StoreMachine, address: str, config: Any, ends: dict[Partition, int], *rest: Any) -> None:
        begin(self, address, config, change(ends), *rest)

    patch.setattr(StoreMachine, "__init__", begin_changed)


def start_anew(patch: Patch) -> None:
    begin = StoreMachine.__init__

    def begin_anew(self: StoreMachine, address: str, config: Any, ends: dict[Partition, int], *rest: Any) -> None:
        begin(self, address, config, ends, *rest)
        for partition in ends:
            self.reassembler.follow_partition(partition, 0)

    patch.setattr(StoreMachine, "__init__", begin_anew)


def forget_silent_producer(patch: Patch) -> None:
    def peer_left(self: StoreMachine, address: str, now: float) -> list[Action]:
        for topic in list(self.stored.topics_of(address)):
            self.stored.remove(Partition(topic, address))
        return []

    drop_silent_peers(patch)
    patch.setattr(StoreMachine, "peer_left", peer_left)


def deaf_after_silent_peer(patch: Patch) -> None:
    def peer_left(self: StoreMachine, address: str, now: float) -> list[Action]:
        return [Unsubscribe(wire.subscription_prefix(Command.HEAD))]

    drop_silent_peers(patch)
    patch.setattr(StoreMachine, "peer_left", peer_left)


def no_long_topics(patch: Patch) -> None:
    """Read the four-byte length of a string as one signed byte."""
    strings = FrameReader.read_strings

    def short_strings(self: FrameReader, field: str) -> tuple[str, ...]:
        found = strings(self, field)
        return tuple(text if len(text.encode("utf-8", "surrogateescape")) <= 127 else "" for text in found)

    patch.setitem(codec._READ, FieldType.STRINGS, short_strings)


def read_32_bits(patch: Patch) -> None:
    def number_8(self: FrameReader, field: str) -> int:
        return int.from_bytes(self.read_bytes(8, field)[4:], "big")

    patch.setattr(FrameReader, "read_number_8", number_8)
    patch.setitem(codec._READ, FieldType.NUMBER_8, number_8)


def drop_equal_contents(patch: Patch) -> None:
    last: dict[Partition, bytes | None] = {}
    receive = StoreMachine._receive_run

    def receive_new(self: StoreMachine, run: wire.RecordRun, now: float) -> list[Action]:
        values = run.batch.values
        is_known = len(values) == 1 and last.get(run.batch.partition) == values[0]
        last[run.batch.partition] = values[-1]
        return [] if is_known else receive(self, run, now)

    patch.setattr(StoreMachine, "_receive_run", receive_new)


def nothing(patch: Patch) -> None:
    """Change nothing: the target itself is broken."""


def _ack_own_topic(store: StoreMachine, found: Partition, last: int) -> wire.Ack:
    return wire.Ack(store.address, found.topic, last, store.address)


def _ack_other_subject(store: StoreMachine, found: Partition, last: int) -> wire.Ack:
    return wire.Ack(found.address, f"{found.topic}!", last, store.address)


def _ack_too_high(store: StoreMachine, found: Partition, last: int) -> wire.Ack:
    return wire.Ack(found.address, found.topic, last + 1, store.address)


def _ack_partition(store: StoreMachine, found: Partition, last: int) -> wire.Ack:
    return wire.Ack(found.address, found.topic, last, found.address)


MUTANTS: list[Mutant] = [
    Mutant(
        "store-acks-before-durable",
        "store.durable",
        "ack.durable",
        "were acknowledged, but after a kill and a restart the store has",
        nothing,
        target=partial(process_target, "acks-before-durable"),
    ),
    Mutant(
        "store-acks-to-itself",
        "store.acknowledges",
        "topic.ACK",
        "the topic frame of ACK is S",
        partial(acknowledge_with, _ack_own_topic),
    ),
    Mutant(
        "store-acks-other-subject",
        "store.acknowledges",
        "subject.sent",
        "the subject of ACK is",
        partial(acknowledge_with, _ack_other_subject),
        Dialect.LIBDAFKA,
    ),
    Mutant(
        "store-acks-one-too-high",
        "store.acknowledges",
        "ack.no-gap",
        "ACK of 10, but only 0..9 were sent",
        partial(acknowledge_with, _ack_too_high),
    ),
    Mutant(
        "store-acks-as-producer",
        "store.acknowledges",
        "ack.address",
        "not that of the store that sent it",
        partial(acknowledge_with, _ack_partition),
    ),
    Mutant("store-acks-beyond-gap", "store.gap", "ack.no-gap", "but only 0..2 were sent", acknowledge_beyond_gap),
    *[
        Mutant(
            f"store-forgets-{command.name.lower().replace('_', '-')}-subscription",
            "store.subscriptions",
            f"subscription.store.{command.name.lower().replace('_', '-')}",
            f"the store has no subscription for {command.name.replace('_', '-')}",
            partial(forget_subscription, command),
        )
        for command in (Command.HEAD, Command.GET_HEADS, Command.FETCH, Command.CONSUMER_HELLO)
    ],
    Mutant(
        "store-answers-descending",
        "store.answers",
        "direct-record.ascending",
        "DIRECT-RECORD 4 was sent after 5: answers must be in ascending order",
        partial(encode_answers, lambda messages: messages[::-1]),
    ),
    Mutant(
        "store-answers-swapped-contents",
        "store.answers",
        "direct-record.content",
        "DIRECT-RECORD 2 has the content",
        partial(encode_answers, swap_contents),
    ),
    Mutant(
        "store-answers-without-last",
        "store.answers",
        "direct-record.sent",
        "no DIRECT-RECORD 5 arrived",
        partial(encode_answers, lambda messages: messages[:-1]),
    ),
    Mutant(
        "store-answers-one-more",
        "store.answers",
        "fetch.count",
        "DIRECT-RECORD 6 was not requested: the FETCHes were for 2..5",
        answer_one_more,
    ),
    Mutant(
        "store-answers-any-subject",
        "store.other-subject",
        "subject.exact",
        "DIRECT-RECORD should not have been sent: topic=C address=P",
        answer_any_subject,
    ),
    Mutant(
        "store-accepts-bad-signature",
        "store.wrong-signature",
        "signature.discarded",
        "RECORD with the signature AA A0 was stored",
        partial(accept_any, "signature"),
    ),
    Mutant(
        "store-accepts-other-version",
        "store.wrong-version",
        "version.discarded",
        "RECORD with the version 00 was stored",
        partial(accept_any, "version"),
    ),
    Mutant(
        "store-matches-prefixes",
        "store.prefix-topic",
        "subject.exact",
        "DIRECT-HEAD should not have been sent: topic=C address=P2 subject=hello2",
        match_prefixes,
    ),
    Mutant("store-tells-one-head", "store.heads", "direct-head.store", "no S:DIRECT-HEAD 1 topic=C", tell_one_head),
    Mutant(
        "store-tells-head-beyond-gap",
        "store.gap",
        "direct-head.last-offset",
        "DIRECT-HEAD has the offset 9, but the partition's head is 2",
        tell_head_beyond_gap,
    ),
    Mutant(
        "store-overwrites",
        "store.duplicates",
        "nodes.duplicate-record",
        "record 0 was overwritten by a second one",
        overwrite,
    ),
    Mutant("store-asks-once", "store.fetch-repeated", "fetch.repeated", "was sent 1 times, then no more", ask_once),
    Mutant("store-stalls", "store.catch-up", "fetch.pages", "were fetched and acknowledged, then no more", stall),
    Mutant(
        "store-asks-for-next",
        "store.gap",
        "fetch.sequence",
        "FETCH begins with 4, expected 3, the first missing record",
        ask_for_next,
    ),
    Mutant(
        "store-takes-others-answers",
        "store.others-answers",
        "direct-record.requestor",
        "DIRECT-RECORD 1, which was addressed to another store, was stored",
        take_others_answers,
    ),
    Mutant(
        "store-tells-once", "store.heads-again", "direct-head.store", "GET-HEADS, C was sent 0 DIRECT-HEADs", tell_once
    ),
    Mutant(
        "store-tells-twice",
        "store.heads-again",
        "direct-head.store",
        "C was sent 2 DIRECT-HEADs for one partition",
        partial(tell_heads_with, lambda _, __, ___, actions: actions * 2),
    ),
    Mutant(
        "store-tells-first-head",
        "store.heads-again",
        "direct-head.last-offset",
        "DIRECT-HEAD has the offset 1, although 3 was acknowledged before the GET-HEADS",
        tell_first_head,
    ),
    Mutant(
        "store-answers-once",
        "store.fetched-again",
        "direct-record.sent",
        "requested with a FETCH for the second time, 5 did not arrive",
        answer_once,
    ),
    Mutant(
        "store-answers-one-consumer",
        "store.fetches-at-once",
        "direct-record.sent",
        "were not sent to C2, while 2 others also fetched them",
        partial(offer_with, _drop_while_busy),
    ),
    Mutant(
        "store-drops-overlap",
        "store.overlapping-fetches",
        "direct-record.sent",
        "overlapping FETCHes requested (10..19, 15..24,",
        partial(offer_with, _drop_overlap),
    ),
    Mutant(
        "store-closes-one-gap", "store.gaps", "fetch.sent", "no ACK of 19 for P1, after 0..2, 5..6", ask_for_one_gap
    ),
    Mutant(
        "store-knows-one-partition",
        "store.resumes",
        "ack.durable",
        "were acknowledged, but after a kill and a restart the store sends no head",
        partial(start_with, lambda ends: dict(sorted(ends.items(), key=lambda item: item[1])[:1])),
    ),
    Mutant(
        "store-starts-anew",
        "store.resumes",
        "ack.sent",
        "no ACK of 3 for P1, which continued after the store's restart,",
        start_anew,
    ),
    Mutant(
        "store-forgets-silent-producer",
        "store.silent-peer",
        "robust.vanished-peer",
        "no DIRECT-HEAD of 4 arrived for a partition whose producer had become silent",
        forget_silent_producer,
    ),
    Mutant(
        "store-deaf-after-silent-peer",
        "store.silent-peer",
        "subscription.store.head",
        "has no subscription at P2 for HEAD",
        deaf_after_silent_peer,
    ),
    Mutant(
        "store-takes-no-long-topics",
        "store.hello",
        "direct-head.store",
        "no DIRECT-HEAD of 2 arrived",
        no_long_topics,
    ),
    Mutant(
        "store-reads-32-bits",
        "store.answers-nothing",
        "fetch.count",
        "DIRECT-RECORD 2 was not requested: the FETCHes were for 65537..65537",
        read_32_bits,
    ),
    Mutant(
        "store-drops-equal-contents",
        "store.any-content",
        "record.any-size",
        "no ACK of 11 arrived",
        drop_equal_contents,
    ),
    Mutant(
        "store-sends-no-hello", "store.hello-again", "store-hello.sent", "no STORE-HELLO to C2 arrived", send_no_hello
    ),
    Mutant("store-ignores-hellos", "store.hello", "direct-head.store", "no DIRECT-HEAD of 0 arrived", ignore_hellos),
    Mutant(
        "store-crashes",
        "store.malformed-requests",
        "robust.malformed",
        "the store ended by itself after FETCH without its last 1 byte",
        crash,
        Dialect.LIBDAFKA,
    ),
    Mutant(
        "store-reads-on",
        "store.malformed-requests",
        "robust.malformed",
        "FETCH with 1 byte after its fields was answered",
        partial(decode_with, drop_trailing_bytes),
    ),
    Mutant(
        "store-takes-first-of-frames",
        "store.record-frames",
        "robust.multi-frame",
        "RECORD with an additional frame was stored",
        partial(decode_with, drop_further_frames),
    ),
    Mutant(
        "store-loses-empty",
        "store.any-content",
        "record.any-size",
        "no ACK of 10 arrived",
        partial(decode_with, drop_empty),
    ),
    Mutant(
        "store-limits-topics",
        "store.many-topics",
        "topics.unlimited",
        "no ACK of the record of the topic",
        limit_partitions,
    ),
]
