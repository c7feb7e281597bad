"""Appends batches of dead letters to the logs that this broker leads, and has other leaders append theirs.

A batch for another leader goes in pieces, because it can be larger than messages between brokers.
"""

from __future__ import annotations

import base64
from binascii import Error as Base64Error

import attrs
import trio

from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.log.log import Log
from dafka.broker.core.log.log_table import LogTable
from dafka.broker.interbroker.messenger import BrokerMessenger, Message
from dafka.broker.interbroker.pending_answers import Answer, PendingAnswers
from dafka.broker.log.appending import AppendRefusedError, ClientAppender, read_batches
from dafka.broker.log.durable_waits import DurableWaits
from dafka.errors import NotLeaderError, OutcomeUnknownError, StorageError, TopicDeletedError
from dafka.records import BATCH_BYTES_LIMIT

ANSWER_S = 10.0
"""How long to wait for the answer of another leader."""

PIECE_BYTES = 2**18
"""The size of a piece of a batch in a message to another leader."""

SOURCE = "dead letters"
"""The source that limits on decompressing records count."""


class LettersRefused(Exception):  # noqa: N818 (an outcome)
    """A batch of dead letters was not appended, or possibly not: `error_code` says which."""

    def __init__(self, error_code: ErrorCode, text: str = "") -> None:
        super().__init__(text or error_code.name)
        self.error_code = error_code


@attrs.frozen
class AppendLetters(Message):
    """A piece of a batch of dead letters for a log, from `begin` on, in base64; the batch has `size` bytes."""

    KIND = "append-letters"
    request: int
    topic_id: str
    number: int
    size: int
    begin: int
    piece: str


@attrs.frozen
class LettersAppended(Answer):
    """Answers `AppendLetters` when the whole batch is committed or refused."""

    KIND = "letters-appended"
    error_code: ErrorCode
    text: str


@attrs.define(eq=False, slots=False)
class DeadLetterAppends:
    """The appends of dead letters, by and for other brokers."""

    _log_table: LogTable
    _appender: ClientAppender
    _waits: DurableWaits
    _messenger: BrokerMessenger
    _answers: PendingAnswers[LettersAppended] = attrs.field(init=False)
    _received: dict[str, tuple[int, bytearray]] = attrs.field(init=False, factory=dict)
    _nursery: trio.Nursery = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._answers = PendingAnswers(self._messenger, LettersAppended, ANSWER_S)
        self._messenger.on(AppendLetters, self._on_append)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Append batches for other brokers until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            await trio.sleep_forever()

    async def append(self, topic_id: str, log: Log, batch: bytes) -> None:
        """Append a batch, and wait until it is committed. Raise `LettersRefused`."""
        leader = log.leadership.leader
        if log.leadership.is_led:
            await self._append_here(log, batch)
            return
        if not leader:
            raise LettersRefused(ErrorCode.LEADER_NOT_AVAILABLE)
        number = self._answers.next_number()
        pieces = (
            AppendLetters(
                number,
                topic_id,
                log.number,
                len(batch),
                begin,
                base64.b64encode(batch[begin : begin + PIECE_BYTES]).decode(),
            )
            for begin in range(0, len(batch), PIECE_BYTES)
        )
        answer = await self._answers.ask(leader, number, pieces)
        if answer is None:
            raise LettersRefused(ErrorCode.REQUEST_TIMED_OUT)
        if answer.error_code:
            raise LettersRefused(answer.error_code, answer.text)

    async def _append_here(self, log: Log, batch: bytes) -> None:
        try:
            batches = read_batches(batch)
            self._appender.check_size(log, len(batch))
            async with self._appender.unpacked(log, batches, SOURCE) as (adapted, records):
                appended = self._appender.append(log, adapted, records=records)
            with self._waits.bounded(ANSWER_S):
                await appended.wait_offset()
        except AppendRefusedError as refused:
            raise LettersRefused(refused.error_code, refused.message or "") from None
        except NotLeaderError:
            raise LettersRefused(ErrorCode.NOT_LEADER_OR_FOLLOWER) from None
        except TopicDeletedError:
            raise LettersRefused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) from None
        except (OutcomeUnknownError, StorageError) as error:
            raise LettersRefused(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from None

    def _on_append(self, sender: str, message: AppendLetters) -> None:
        """Receive a piece of a batch, and begin to append the batch with its last piece.

        A broker sends all pieces of a batch before the next batch.
        """
        if message.begin == 0 and 0 < message.size <= BATCH_BYTES_LIMIT:
            self._received[sender] = message.request, bytearray()
        request, batch = self._received.get(sender, (None, bytearray()))
        if request != message.request:
            return
        try:
            piece = base64.b64decode(message.piece, validate=True)
        except (Base64Error, ValueError):
            piece = b""
        batch += piece
        if not piece or len(batch) != min(message.begin + len(piece), message.size):
            del self._received[sender]  # a message was lost with its connection
        elif len(batch) == message.size:
            del self._received[sender]
            self._nursery.start_soon(self._answer, sender, message, bytes(batch))

    async def _answer(self, sender: str, message: AppendLetters, batch: bytes) -> None:
        topic = self._log_table.find_client_topic_by_id(message.topic_id)
        log = None if topic is None else self._log_table.find_client_log(topic.name, message.number)
        error, text = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ""
        if log is not None:
            try:
                await self._append_here(log, batch)
                error = ErrorCode.NONE
            except LettersRefused as refused:
                error, text = refused.error_code, str(refused)
        self._messenger.send(sender, LettersAppended(message.request, error, text))
