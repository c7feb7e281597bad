"""Stores the dead letters of the share partitions that this broker serves (KIP-1191).

A letter that can be stored later is repeated until it is, also by the next leader of the share partition, so that no
letter is missing. It is there twice if that leader does not learn that it was stored. A letter that its topic refuses
is lost: the group goes on without it, as it does without a topic.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import NamedTuple, Protocol
from weakref import WeakKeyDictionary

import attrs
import trio

from dafka.batches import decode_records, read_header
from dafka.broker.coordinator.dead_letter_appends import DeadLetterAppends, LettersRefused
from dafka.broker.coordinator.transactions import TransactionCoordinators
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.share.dead_letters import (
    DeadLetter,
    LetterSource,
    encode_letters,
    take_letters,
    write_letter,
)
from dafka.broker.core.groups.share.runs import Run
from dafka.broker.core.groups.share.settings import ShareSettings
from dafka.broker.core.log.log import Log
from dafka.broker.core.log.log_table import LogTable
from dafka.broker.core.log.producer_state import Producer
from dafka.broker.core.metadata.topic_settings import DEAD_LETTERS, accepts_dead_letters
from dafka.broker.core.metadata.topics import Topic
from dafka.broker.core.positions import Offset
from dafka.broker.log.appending import ClientAppender
from dafka.broker.log.reader import LogReader
from dafka.config import KafkaConfig
from dafka.errors import BatchError, ConfigError, NoControllerError, RefusedChangeError
from dafka.records import Partition, Record

_LOGGER = logging.getLogger("dafka.broker")

READ_BYTES = 2**20
"""The size of the records that are read, and of the letters that are sent, at a time, unless one is larger."""

RETRY_S = 0.5
"""The time before a batch of letters is sent again."""

REPORT_S = 60.0
"""How long the same refusal is not logged again."""

REPORTED_MAX = 1000
"""The number of refusals that are remembered for that."""

_TEMPORARY = frozenset(
    (
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.KAFKA_STORAGE_ERROR,
    )
)
"""The errors after which the same batch is sent again."""

_LATER = _TEMPORARY | {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
"""The errors after which letters wait, because they can be stored later, or the topic was deleted."""

_UNKNOWN_PRODUCER = frozenset(
    (
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    )
)
"""The errors after which the batch is sent again under another producer id."""


class StoredLetters(NamedTuple):
    """What was done with the first records of a run, up to `end`: how many letters were stored, and refused."""

    end: int
    stored: int = 0
    refused: int = 0


class CreateTopic(Protocol):
    """Creates a topic, and waits until this broker has it."""

    def __call__(self, name: str, *, settings: Mapping[str, str]) -> Awaitable[None]:
        """Create a topic. Raise `ConfigError` if it is refused, and `NoControllerError` if it can be created later."""


@attrs.define(eq=False)
class _LetterLog:
    """A log with dead letters, as this broker writes to it: one batch at a time, under a producer id."""

    lock: trio.Lock = attrs.field(factory=trio.Lock)
    producer: Producer | None = None
    sequence: int = 0


@attrs.define(eq=False, slots=False)
class DeadLetterQueue:
    """Stores dead letters.

    `create_topic` creates a topic with a name and settings, as `ClusterAdmin.create_topic` does. `time_ms` returns the
    time in milliseconds since 1970.
    """

    _log_table: LogTable
    _reader: LogReader
    _appender: ClientAppender
    _appends: DeadLetterAppends
    _transactions: TransactionCoordinators
    _create_topic: CreateTopic
    _config: KafkaConfig
    _time_ms: Callable[[], int]
    _logs: WeakKeyDictionary[Log, _LetterLog] = attrs.field(init=False, factory=WeakKeyDictionary)
    _reported: dict[tuple[str, str], float] = attrs.field(init=False, factory=dict)

    async def store(
        self, log: Log, group_id: str, run: Run, settings: ShareSettings, is_wanted: Callable[[], bool]
    ) -> StoredLetters:
        """Store the letters of the first records of a run of a log, while it `is_wanted`.

        Raise `StorageError` if the records cannot be read.
        """
        try:
            topic = await self._find_topic(log, settings)
        except ConfigError as problem:
            self._report(group_id, str(problem))
            return StoredLetters(run.end, refused=run.end - run.first)
        if topic is None:
            return StoredLetters(run.first)
        letters, end = await self._write(log, group_id, run, settings)
        stored = refused = 0
        while letters:
            taken = take_letters(letters, self._bytes_max(topic))
            error, text = await self._send(topic, log.number, taken, is_wanted)
            while error and error not in _LATER and len(taken) > 1:  # others can be accepted
                taken = taken[: len(taken) // 2]
                error, text = await self._send(topic, log.number, taken, is_wanted)
            if error in _LATER:
                return StoredLetters(letters[0].offset, stored, refused)
            if error:
                self._report(group_id, f"the topic {topic.name!r} refuses them: {text}")
                refused += len(taken)
            else:
                stored += len(taken)
            letters = letters[len(taken) :]
        return StoredLetters(end, stored, refused)

    def _report(self, group_id: str, reason: str) -> None:
        now = trio.current_time()
        if now - self._reported.get((group_id, reason), float("-inf")) < REPORT_S:
            return
        if len(self._reported) >= REPORTED_MAX:
            self._reported.clear()
        self._reported[group_id, reason] = now
        _LOGGER.warning("records of the share group %r are given up without dead letters: %s", group_id, reason)

    async def _find_topic(self, log: Log, settings: ShareSettings) -> Topic | None:
        """Return the topic for letters; None if it can be there soon. Raise `ConfigError` if letters are refused."""
        name, prefix = settings.dead_letter_topic, self._config.dead_letter_prefix
        topic = self._log_table.find_client_topic(name)
        problems = (
            (not name, "the group has no topic for them any more"),
            (not name.startswith(prefix), f"the name of the topic {name!r} does not begin with {prefix!r}"),
            (name == log.topic, f"they would go to their own topic {name!r}"),
            (
                topic is None and self._config.auto_create_dead_letters == "off",
                f"there is no topic {name!r}, and [kafka] auto_create_dead_letters is off",
            ),
            (
                topic is not None and not accepts_dead_letters(topic),
                f"the topic {name!r} does not have the setting {DEAD_LETTERS}=true",
            ),
        )
        problem = next((problem for is_wrong, problem in problems if is_wrong), "")
        if problem:
            raise ConfigError(problem)
        if topic is None:
            with suppress(NoControllerError):
                try:
                    await self._create_topic(name, settings={DEAD_LETTERS: "true"})
                except RefusedChangeError as refused:
                    if refused.error_code != ErrorCode.TOPIC_ALREADY_EXISTS:  # for the letters of another log
                        raise
        return self._log_table.find_client_topic(name)

    async def _write(self, log: Log, group_id: str, run: Run, settings: ShareSettings) -> tuple[list[DeadLetter], int]:
        """Return the letters of the first records of a run, and the offset up to which these are all.

        There are none for offsets without records. The letters of deleted and of damaged records copy nothing.
        """
        start = max(log.index.start_offset, run.first)
        found: dict[int, Record | None] = dict.fromkeys(range(run.first, min(start, run.end)))
        end = run.end
        if start < run.end:
            batches = await self._reader.read(log, Offset(start), Offset(run.end), READ_BYTES)
            end = read_header(batches[-1]).end_offset if batches else run.end
            for data in batches:
                header = read_header(data)
                try:
                    records = () if header.is_control else decode_records(Partition(log.topic, ""), data)
                    found |= {each.sequence: each for each in records if each.sequence >= start}
                except BatchError:
                    found |= dict.fromkeys(range(header.base_offset, header.end_offset))
        source, limit = LetterSource(log.topic, log.number, group_id), settings.limits.delivery_count_max
        copied = found if settings.copies_record else dict.fromkeys(found)
        letters = [
            write_letter(source, offset, run, limit, record)
            for offset, record in copied.items()
            if run.first <= offset < run.end
        ]
        return letters, min(end, run.end)

    def _bytes_max(self, topic: Topic) -> int:
        log = self._log_table.find_log(topic.name, 0)
        return READ_BYTES if log is None else self._appender.rules_of(log).bytes_max

    async def _send(
        self, topic: Topic, source_number: int, letters: list[DeadLetter], is_wanted: Callable[[], bool]
    ) -> tuple[ErrorCode, str]:
        """Append letters to a log, and return the error with its text.

        The same batch is sent again after a temporary error, as its outcome can be unknown. The producer id is not
        used again if that ends too early: the log could take the next batch for this one.
        """
        log = self._log_table.find_client_log(topic.name, source_number % topic.log_count, topic.topic_id)
        if log is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ""
        known = self._logs.setdefault(log, _LetterLog())
        async with known.lock:
            batch, error, text = b"", ErrorCode.REQUEST_TIMED_OUT, ""
            while is_wanted():
                if known.producer is None:
                    result = await self._transactions.init_producer_id(None)
                    if result.error_code:
                        return ErrorCode.REQUEST_TIMED_OUT, ""
                    known.producer, known.sequence, batch = result.producer, 0, b""
                batch = batch or encode_letters(letters, self._time_ms(), known.producer, known.sequence)
                try:
                    error, text = await self._append(topic.topic_id, log, batch)
                except BaseException:
                    known.producer = None
                    raise
                if error in _UNKNOWN_PRODUCER:
                    known.producer, error = None, ErrorCode.REQUEST_TIMED_OUT
                elif error not in _TEMPORARY:
                    break
                await trio.sleep(RETRY_S)
            if error in _TEMPORARY:
                known.producer = None
            elif not error:
                known.sequence = (known.sequence + len(letters)) % 2**31
            return error, text

    async def _append(self, topic_id: str, log: Log, batch: bytes) -> tuple[ErrorCode, str]:
        if log.is_gone:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ""
        try:
            await self._appends.append(topic_id, log, batch)
        except LettersRefused as refused:
            is_stored = refused.error_code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER
            return ErrorCode.NONE if is_stored else refused.error_code, str(refused)
        return ErrorCode.NONE, ""
