"""The messages between the brokers that take part in a transaction."""

from __future__ import annotations

from typing import NamedTuple

import attrs

from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.log.producer_state import Producer
from dafka.broker.interbroker.messenger import Message


class TransactionParticipant(NamedTuple):
    """A log or group that takes part in a transaction: the topic and number of a log, or the name of a group."""

    topic: str = ""
    name: str = ""
    number: int = -1


@attrs.frozen
class _OfCoordinator(Message):
    """A message from the coordinator of a transaction to the leader of a participant.

    It names the coordinator's shard, and the leader epochs of the logs of the shard and of the participant.
    """

    shard: int
    shard_epoch: int
    producer: Producer
    participant: TransactionParticipant
    participant_epoch: int


@attrs.frozen
class Begin(_OfCoordinator):
    """Confirms that the participant takes part in the transaction."""

    KIND = "begin"


@attrs.frozen
class Refuse(_OfCoordinator):
    """Denies that the participant takes part in the transaction."""

    KIND = "refuse"
    error: ErrorCode


@attrs.frozen
class End(_OfCoordinator):
    """Ends the transaction; the answer is `Ended`."""

    KIND = "end"
    is_commit: bool
    request: int


@attrs.frozen
class Ended(Message):
    """Confirms that the transaction has ended at a participant."""

    KIND = "ended"
    request: int


@attrs.frozen
class Ask(Message):
    """Asks the coordinator whether a participant takes part in a transaction; the answer is `Begin` or `Refuse`."""

    KIND = "ask"
    transactional_id: str
    producer: Producer
    participant: TransactionParticipant
    participant_epoch: int


@attrs.frozen
class Join(Message):
    """Asks the coordinator whether participants take part in a transaction; with `adds`, to add them first.

    The answer is `Joined`.
    """

    KIND = "join"
    transactional_id: str
    producer: Producer
    participants: tuple[TransactionParticipant, ...]
    adds: bool
    request: int


@attrs.frozen
class Joined(Message):
    """Answers `Join` with an error code for each participant, NONE if it takes part.

    It names the coordinator's shard, and the leader epoch of the log of the shard.
    """

    KIND = "joined"
    shard: int
    shard_epoch: int
    errors: tuple[ErrorCode, ...]
    request: int
