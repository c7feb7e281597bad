"""The messages between the leader of a log and the coordinator of a share group that reads it."""

from __future__ import annotations

import attrs

from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.share.state import SharePartitionKey, ShareState
from dafka.broker.interbroker.messenger import Message


@attrs.frozen
class LoadShareState(Message):
    """Asks the coordinator for the state of a share partition, for the leader of its log in an epoch."""

    KIND = "load-share-state"
    request: int
    key: SharePartitionKey
    leader_epoch: int


@attrs.frozen
class WriteShareState(Message):
    """Asks the coordinator to store the state of a share partition."""

    KIND = "write-share-state"
    request: int
    key: SharePartitionKey
    state: ShareState


@attrs.frozen
class ShareStateAnswer(Message):
    """The coordinator's answer to both. The state is that of a partition that was loaded."""

    KIND = "share-state-answer"
    request: int
    error_code: ErrorCode
    state: ShareState
