"""Broken stores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import attrs
import pytest

from dafka import wire
from dafka.protocol import StoreMachine
from dafka.protocol.actions import Action, Publish, Subscribe
from dafka.protocol.machines.head_exchange import HeadExchange
from dafka.protocol.machines.store_answers import StoreAnswers
from dafka.protocol.ordering.cursor import Cursor
from dafka.protocol.ordering.fetch_planner import FetchPlanner
from dafka.records import Partition, RecordBatch
from dafka.storage.sqlite import SqliteStorage
from dafka.wire import Command, batch, codec
from dafka_conformance.model import Dialect
from tests.conformance.mutant_process import process_target
from tests.conformance.mutants import (
    Mutant,
    accept_any,
    change_start,
    drop_silent_peers,
    forget_subscription,
    lacking_subscriptions,
    mutants_of,
)

STALLS_AT = 100_000

Patch = pytest.MonkeyPatch


def acknowledge_one_more(patch: Patch) -> None:
    def ack(self: StoreMachine, partition: Partition) -> list[Action]:
        end = self.stored.durable_end(partition)
        return [Publish(wire.Ack(partition.address, partition.topic, end, self.address))] if end else []

    patch.setattr(StoreMachine, "_acknowledge", ack)


def answer_without_last(patch: Patch) -> None:
    encode = batch._encode_run

    def encode_some(run: wire.RecordRun, dialect: Any) -> list[Any]:
        messages = list(batch.iter_frames(encode(run, dialect)))
        return messages if run.requestor is None else messages[:-1]

    patch.setattr(batch, "_encode_run", encode_some)


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


def plan_with(change: Callable[[Partition, tuple[int, int]], tuple[int, int] | None]) -> Callable[[Patch], None]:
    """Plan other requests for pages."""

    def apply(patch: Patch) -> None:
        plan = FetchPlanner.plan_fetch

        def plan_changed(
            self: FetchPlanner, partition: Partition, cursor: Cursor, now: float
        ) -> tuple[int, int] | None:
            planned = plan(self, partition, cursor, now)
            return planned and change(partition, planned)

        patch.setattr(FetchPlanner, "plan_fetch", plan_changed)

    return apply


def ask_for_one_gap(patch: Patch) -> None:
    asked: dict[Partition, int] = {}
    plan_with(lambda partition, page: page if asked.setdefault(partition, page[0]) == page[0] else None)(patch)


def take_others_answers(patch: Patch) -> None:
    receive = StoreMachine._receive_run

    def receive_all(self: StoreMachine, run: wire.RecordRun, now: float) -> list[Action]:
        return receive(self, attrs.evolve(run, requestor=run.requestor and self.address), now)

    everything = Subscribe(wire.subscription_prefix(Command.DIRECT_RECORD))
    change_start(StoreMachine, lambda actions: [*actions, everything])(patch)
    patch.setattr(StoreMachine, "_receive_run", receive_all)


def ask_once(patch: Patch) -> None:
    patch.setattr(FetchPlanner, "expire_pages", lambda self, now: [])
    patch.setattr(FetchPlanner, "deadline", lambda self: float("inf"))
    patch.setattr(FetchPlanner, "allow_refetch", lambda self, partition, cursor: None)


def send_no_hello(patch: Patch) -> None:
    subscribed = StoreMachine.receive_subscriptions

    def subscribed_silently(self: StoreMachine, subscriptions: Iterable[wire.Subscription], now: float) -> list[Action]:
        return subscribed(self, [each for each in subscriptions if each.command is not Command.STORE_HELLO], now)

    patch.setattr(StoreMachine, "receive_subscriptions", subscribed_silently)


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


def drop_further_frames(frames: Sequence[bytes]) -> Sequence[bytes]:
    return frames[:3] if frames[0][:1] == b"M" else frames


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


STALL = plan_with(lambda _, page: page if page[0] < STALLS_AT else None)
ASK_FOR_NEXT = plan_with(lambda _, page: (page[0] + 1, page[1]))
mutant = mutants_of("store")

MUTANTS: list[Mutant] = [
    mutant(
        "acks-before-durable",
        "durable",
        "ack.durable",
        "were acknowledged, but after a kill and a restart the store has",
        nothing,
        target=partial(process_target, "acks-before-durable"),
    ),
    mutant("acks-one-too-high", "acknowledges", "ack.no-gap", "10, but only", acknowledge_one_more),
    *lacking_subscriptions(
        "store",
        partial(forget_subscription, StoreMachine),
        *(Command.HEAD, Command.GET_HEADS, Command.FETCH, Command.CONSUMER_HELLO),
    ),
    mutant("answers-without-last", "answers", "direct-record.sent", "no DIRECT-RECORD 5 arrived", answer_without_last),
    mutant("answers-any-subject", "other-subject", "subject.exact", "should not have", answer_any_subject),
    mutant(
        "accepts-bad-signature",
        "wrong-signature",
        "signature.discarded",
        "RECORD with the signature AA A0 was stored",
        partial(accept_any, "signature"),
    ),
    mutant("accepts-other-version", "wrong-version", "version.discarded", "version 00", partial(accept_any, "version")),
    mutant("tells-one-head", "heads", "direct-head.store", "no S:DIRECT-HEAD 1 topic=C", tell_one_head),
    mutant("tells-head-beyond-gap", "gap", "direct-head.last-offset", "DIRECT-HEAD", tell_head_beyond_gap),
    mutant("overwrites", "duplicates", "nodes.duplicate-record", "record 0 was overwritten by", overwrite),
    mutant("asks-once", "fetch-repeated", "fetch.repeated", "was sent 1 times, then no more", ask_once),
    mutant("stalls", "catch-up", "fetch.pages", "were fetched and acknowledged, then no", STALL),
    mutant("asks-for-next", "gap", "fetch.sequence", "with 4, expected 3, the first", ASK_FOR_NEXT),
    mutant("takes-others-answers", "others-answers", "direct-record.requestor", "another store,", take_others_answers),
    mutant("closes-one-gap", "gaps", "fetch.sent", "ACK of 19 for P1, after 0..2, 5..6", ask_for_one_gap),
    mutant("starts-anew", "resumes", "ack.sent", "3 for P1, which continued after the store's", start_anew),
    mutant("forgets-silent-producer", "silent-peer", "robust.vanished-peer", "4 arrived for a", forget_silent_producer),
    mutant("drops-equal-contents", "any-content", "record.any-size", "of 11 arrived", drop_equal_contents),
    mutant("sends-no-hello", "hello-again", "store-hello.sent", "STORE-HELLO to C2 arrived", send_no_hello),
    mutant("crashes", "malformed-requests", "robust.malformed", "the store ended", crash, Dialect.LIBDAFKA),
    mutant(
        "takes-first-of-frames",
        "record-frames",
        "robust.multi-frame",
        "RECORD with an additional frame was stored",
        partial(decode_with, drop_further_frames),
    ),
    mutant("limits-topics", "many-topics", "topics.unlimited", "no ACK of the record of", limit_partitions),
]
