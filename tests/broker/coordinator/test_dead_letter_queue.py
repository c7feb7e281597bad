"""Each record that is given up has one letter, or its letter is refused, whatever the log for letters answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any, Literal

import attrs
import pytest
import trio
from trio.testing import MockClock

from dafka.batches import decode_records, encode_batch, encode_marker, read_header
from dafka.batches.header import with_base_offset
from dafka.broker.coordinator import dead_letters
from dafka.broker.coordinator.dead_letter_appends import LettersRefused
from dafka.broker.coordinator.dead_letters import DeadLetterQueue, StoredLetters
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.share.runs import RecordState, Run
from dafka.broker.core.groups.share.settings import ShareSettings
from dafka.broker.core.log.log import Log
from dafka.broker.core.log.log_table import LogTable
from dafka.broker.core.log.producer_state import Producer
from dafka.broker.core.metadata.topic_settings import DEAD_LETTERS
from dafka.broker.core.metadata.topics import Topic
from dafka.broker.core.transactions.coordinator import InitProducerResult
from dafka.config import Config
from dafka.errors import NoControllerError, RefusedChangeError
from dafka.records import Partition

END, LETTERS = 40, "dlq.orders"
SETTINGS = ShareSettings(dead_letter_topic=LETTERS)
TEMPORARY = [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR]
UNKNOWN = [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID]


class World:
    """A log with records, of which `unacceptable` ones have refused letters, and the log for letters."""

    def __init__(self, seed: int, *, auto_create: Literal["on", "off"] = "off") -> None:
        self.draw = Random(seed)
        self.creation: Exception | None = None
        self.is_calm = False
        self.log: Any = SimpleNamespace(topic="dlq.own", number=4, index=SimpleNamespace(start_offset=0))
        self.batches: list[tuple[int, int, bytes]] = []
        self.values: dict[int, bytes | None] = {}
        self.unacceptable = {each for each in range(END) if self.draw.random() < 0.1}
        self.stored = Counter[int]()
        self.copies: dict[int, bytes | None] = {}
        self.taken: dict[Producer, list[list[int]]] = {}
        self.given_up: set[Producer] = set()
        self.uncertain: dict[Producer, list[int]] = {}
        self.latest = Producer(-1, 0)
        self.table = LogTable("here")
        self.table.add_topic(Topic(LETTERS, "L", 3, {DEAD_LETTERS: "true"}))
        self.settings = attrs.evolve(SETTINGS, copies_record=self.draw.random() < 0.5)
        part: Any = self
        self.bytes_max = self.draw.choice([700, 2**20])
        rules = SimpleNamespace(bytes_max=self.bytes_max)
        appender: Any = SimpleNamespace(rules_of=lambda _log: rules)
        config = Config().with_kafka(auto_create_dead_letters=auto_create).kafka
        self.queue = DeadLetterQueue(self.table, part, appender, part, part, self.create_topic, config, lambda: 7)
        self._write()

    def _write(self) -> None:
        """Write records, markers, gaps and damaged batches; the first ones are deleted."""
        offset = 0
        while offset < END:
            kind, count = self.draw.choice(["records", "records", "marker", "gap", "damaged"]), self.draw.randint(1, 5)
            values = [b"v%d" % each for each in range(offset, offset + count)]
            data = encode_batch(offset, values, timestamps=0)
            if kind == "marker":
                count, data = 1, with_base_offset(encode_marker(7, 0, 0, is_commit=True), offset)
            if kind == "damaged":
                data = data[:-1] + bytes([data[-1] ^ 1])
            if kind != "gap":
                self.batches.append((offset, offset + count, data))
            if kind == "records":
                self.values |= dict(zip(range(offset, offset + count), values, strict=True))
            if kind == "damaged":
                self.values |= dict.fromkeys(range(offset, offset + count))
            offset += count
        start = self.log.index.start_offset = self.draw.choice([0, 0, 7])
        self.batches = [each for each in self.batches if each[1] > start]
        self.values = dict.fromkeys(range(start)) | {key: each for key, each in self.values.items() if key >= start}

    async def create_topic(self, name: str, *, settings: Mapping[str, str]) -> None:
        await trio.lowlevel.checkpoint()
        if self.creation is not None:
            raise self.creation
        self.table.add_topic(Topic(name, "L", 3, settings))

    async def read(self, _log: object, start: int, end: int, _bytes: int) -> list[bytes]:
        await trio.lowlevel.checkpoint()
        found = [data for first, last, data in self.batches if last > start and first < end]
        return found[: self.draw.randint(1, 3)]

    async def init_producer_id(self, _name: None) -> InitProducerResult:
        await trio.lowlevel.checkpoint()
        if not self.is_calm and self.draw.random() < 0.1:
            return InitProducerResult(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self.latest = Producer(self.latest.producer_id + 1, 0)
        return InitProducerResult(ErrorCode.NONE, self.latest)

    async def append(self, topic_id: str, log: Log, batch: bytes) -> None:
        """Take a batch as a log does: each of a producer once, in order. The answer can be lost."""
        await trio.lowlevel.checkpoint()
        assert (topic_id, log) == ("L", self.table.logs(LETTERS)[4 % 3])
        header = read_header(batch)
        records = decode_records(Partition("", ""), batch)
        offsets = [self._check(dict(each.headers), each.value) for each in records]
        assert len(batch) <= self.bytes_max or len(records) == 1
        producer = Producer(header.producer_id, header.producer_epoch)
        assert producer not in self.given_up
        assert self.uncertain.pop(producer, offsets) == offsets, "the log could take it for the one before"
        taken = self.taken.setdefault(producer, [])
        known = {sum(map(len, taken[:number])): each for number, each in enumerate(taken)}
        if header.base_sequence in known:
            assert known[header.base_sequence] == offsets, "another batch would be taken for the former one"
            raise LettersRefused(ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
        assert header.base_sequence == sum(map(len, taken))
        chance = 1.0 if self.is_calm else self.draw.random()
        if chance < 0.1:
            self.given_up.add(producer)
            raise LettersRefused(self.draw.choice(UNKNOWN))
        if self.unacceptable.intersection(offsets):
            raise LettersRefused(ErrorCode.INVALID_RECORD, "unacceptable")
        if chance < 0.15:
            raise LettersRefused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        is_lost = not self.is_calm and self.draw.random() < 0.3
        if not is_lost or self.draw.random() < 0.5:
            taken.append(offsets)
            self.stored.update(offsets)
        if is_lost:
            self.uncertain[producer] = offsets
            raise LettersRefused(self.draw.choice(TEMPORARY))

    def _check(self, headers: dict[str, bytes | None], value: bytes | None) -> int:
        offset = int(headers["__dlq.errors.offset"] or b"")
        named = [headers[f"__dlq.errors.{each}"] for each in ("topic", "partition", "group", "delivery.count")]
        assert named == [self.log.topic.encode(), b"4", b"g", b"3"]
        assert headers["__dlq.errors.message"] == b"a member rejected the record", "it could be delivered more often"
        assert value == (self.values[offset] if self.settings.copies_record else None)
        return offset

    async def store_all(self, run: Run) -> None:
        """Store the letters of a run, at times only for a while."""
        total = StoredLetters(run.first)
        expected = {each for each in self.values if run.first <= each < run.end}
        while total.end < run.end:
            ends_at, left = trio.current_time() + self.draw.choice([1.2, 99, 99]), attrs.evolve(run, first=total.end)
            found = await self.queue.store(self.log, "g", left, self.settings, partial(is_before, ends_at))
            assert total.end <= found.end <= run.end
            assert {each for each in expected - self.unacceptable if each < found.end} <= self.stored.keys()
            total = StoredLetters(found.end, total.stored + found.stored, total.refused + found.refused)
        assert expected.intersection(self.stored) == expected - self.unacceptable
        assert total == (run.end, len(expected - self.unacceptable), len(expected & self.unacceptable))


def is_before(time: float) -> bool:
    return trio.current_time() < time


@pytest.mark.parametrize("seed", range(60))
async def test_each_record_has_one_letter_or_its_letter_is_refused(autojump_clock: MockClock, seed: int) -> None:
    world = World(seed)
    first, middle, end = (world.draw.randrange(*each) for each in ((10,), (15, 20), (30, END)))
    async with trio.open_nursery() as nursery:
        for each in ((first, middle), (middle, end)):
            nursery.start_soon(world.store_all, Run(*each, RecordState.ARCHIVING, 3))
    assert first <= min(world.stored) <= max(world.stored) < end


@pytest.mark.parametrize(
    ("name", "auto_create", "topic", "creation", "outcome"),
    [
        (LETTERS, "off", {DEAD_LETTERS: "true"}, None, "stored"),
        (LETTERS, "off", {DEAD_LETTERS: "false"}, None, "does not have the setting"),
        (LETTERS, "on", {}, None, "does not have the setting"),
        ("", "on", None, None, "the group has no topic"),
        ("letters", "on", None, None, "does not begin with 'dlq.'"),
        ("dlq.own", "on", None, None, "would go to their own topic"),
        (LETTERS, "off", None, None, "auto_create_dead_letters is off"),
        (LETTERS, "on", None, None, "stored"),
        (LETTERS, "on", None, NoControllerError("none"), "later"),
        (LETTERS, "on", None, RefusedChangeError("exists", ErrorCode.TOPIC_ALREADY_EXISTS), "later"),
        (LETTERS, "on", None, RefusedChangeError("too many", ErrorCode.POLICY_VIOLATION), "too many"),
    ],
)
async def test_letters_without_a_topic_for_them_wait_or_are_refused_and_that_is_reported_now_and_then(
    name: str,
    auto_create: Literal["on", "off"],
    topic: dict[str, str] | None,
    creation: Exception | None,
    outcome: str,
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(0, auto_create=auto_create)
    world.creation, world.unacceptable, world.is_calm = creation, set(), True
    world.table.remove_topic(LETTERS)
    if topic is not None:
        world.table.add_topic(Topic(LETTERS, "L", 3, topic))
    run = Run(3, END, RecordState.ARCHIVING, 3)
    settings = attrs.evolve(world.settings, dead_letter_topic=name)
    for reports in (1, 1, 2):
        found = await world.queue.store(world.log, "g", run, settings, lambda: True)
        if outcome in {"stored", "later"}:
            assert (found.end > 3) is (outcome == "stored")
            assert (found.refused, caplog.messages) == (0, [])
        else:
            assert found == StoredLetters(END, refused=END - 3)
            assert [outcome in each for each in caplog.messages] == [True] * reports
        await trio.sleep(dead_letters.REPORT_S * reports / 2)
