"""How routes and sessions use queues, whichever brokers lead the logs.

A queue is a share group (KIP-932) and a topic. Clients of HTTP and WebSocket are no members of the group: they lock
records of any log, beside the members that Kafka's clients are. A receipt stands for a member there: it names what was
locked for one request or subscription, and is needed to acknowledge it. A receipt is random, so that nobody guesses it.

Three classes have the interface `QueueAccess`, as for logs: see `dafka.http.logs.log_access`.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Annotated, NamedTuple, Protocol, TypeAlias

import attrs
from msgspec import Meta

from dafka.broker.core.groups.share.settings import ShareSettings
from dafka.broker.core.groups.share.share_partition import Acknowledgement, AcknowledgeType, AcquiredRange
from dafka.broker.core.log.log import Log
from dafka.http.logs.log_access import ReadRecords
from dafka.http.logs.records import TIMESTAMP_MAX
from dafka.http.server.documents import Count, Document, doc
from dafka.http.server.errors import WebError, log_not_found
from dafka.storage.plugin_helpers import now_ms

RECORDS_MAX = 10_000
"""The maximum number of records that are locked at once: as many as a log can have in flight."""

BYTES_MAX = 2**24
"""The maximum size of the records that are locked at once."""

RECEIVE_BYTES = 2**20
"""How many bytes of records are locked at once unless the client says otherwise."""

RECEIPT_CHARACTERS_MAX = 100

KINDS = {each.name.lower(): each for each in AcknowledgeType if each is not AcknowledgeType.GAP}
"""What a client can say of a record."""

Number: TypeAlias = Annotated[int, Meta(ge=0, le=TIMESTAMP_MAX)]
Receipt: TypeAlias = Annotated[
    str, Meta(min_length=1, max_length=RECEIPT_CHARACTERS_MAX), doc("The receipt of the records.")
]
Kind: TypeAlias = Annotated[
    str,
    doc(
        "`accept` (it is done), `release` (it is delivered again), `reject` (it is not delivered again) or `renew` "
        "(the lock begins anew).",
        enum=KINDS,
    ),
]


class AcknowledgedRecords(Document):
    """What a client says of a record, or of several in a row."""

    log: Annotated[Number, doc("The number of the log.")]
    offset: Annotated[Number, doc("The offset of the record.")]
    type: Kind
    last: Annotated[Number | None, doc("The offset of the last record, if there are several.")] = None


class RefusedRecords(Document):
    """Records that were not acknowledged."""

    log: Annotated[Count, doc("The number of the log.")]
    offset: Annotated[Count, doc("The offset of the first record.")]
    last: Annotated[Count, doc("The offset of the last record.")]
    code: Annotated[
        str,
        doc(
            "`lock_lost` if the receipt does not lock them any more. After any other code it is not known whether they "
            "were acknowledged."
        ),
    ]
    message: Annotated[str, doc("What is wrong, for people.")]


@attrs.frozen
class Queue:
    """A queue: the name of its share group, and its topic."""

    name: str
    topic: str


@attrs.frozen
class QueueState:
    """A queue in one log: the first record that is not finished, and how many are available and locked."""

    start_offset: int
    available_count: int
    locked_count: int


@attrs.frozen
class LockedRecords:
    """Records of a log that were locked at `locked_at_ms` or later.

    `read` has their batches, which can contain others; `ranges` has the offsets of those that are locked.
    """

    log: int
    read: ReadRecords
    ranges: Sequence[AcquiredRange]
    locked_at_ms: int = attrs.field(factory=now_ms)

    @property
    def record_count(self) -> int:
        """The number of records that are locked."""
        return sum(each.end - each.first for each in self.ranges)


class ReceiveLimits(NamedTuple):
    """How many records a client takes, and how many bytes of keys and values; the last record can exceed these."""

    records_max: int
    bytes_max: int

    def without(self, found: Iterable[LockedRecords]) -> ReceiveLimits:
        """Return what is left beside records."""
        records, size = self
        for each in found:
            records -= each.record_count
            size -= each.read.unpacked_bytes_max
        return ReceiveLimits(records, size)

    @property
    def are_reached(self) -> bool:
        """Whether nothing else is taken."""
        return self.records_max <= 0 or self.bytes_max <= 0


@attrs.frozen
class Acknowledgements:
    """What a client says of records in the logs of a queue, and of all others that its receipt locks.

    The ranges of a log do not overlap. The client says nothing of other records if `others` is None.
    """

    receipt: str
    ranges: Mapping[int, Sequence[Acknowledgement]]
    others: AcknowledgeType | None = None

    def of_logs(self, numbers: Iterable[int]) -> Acknowledgements:
        """Return what is said of records in some logs."""
        return attrs.evolve(self, ranges={each: self.ranges[each] for each in numbers if each in self.ranges})

    def documents(self) -> list[AcknowledgedRecords]:
        """Return the ranges as documents."""
        return [
            AcknowledgedRecords(log, first, kind.name.lower(), end - 1)
            for log, ranges in self.ranges.items()
            for first, end, kind in ranges
        ]

    def refuse(self, error: WebError) -> list[RefusedRecords]:
        """Return the refusal of all ranges."""
        return [
            RefusedRecords(log, first, end - 1, error.code, error.message)
            for log, ranges in self.ranges.items()
            for first, end, _ in ranges
        ]


def parse_acknowledgements(
    queue: Queue,
    log_count: int,
    settings: ShareSettings,
    receipt: str,
    given: Iterable[AcknowledgedRecords],
    others: str | None,
) -> Acknowledgements:
    """Return what a client says of records.

    Raises `WebError` if a log does not exist, ranges overlap, or the group does not permit to renew locks.
    """
    found: dict[int, list[Acknowledgement]] = {}
    said = Acknowledgements(receipt, found, None if others is None else _parse_kind(others))
    for each in given:
        if each.log >= log_count:
            raise log_not_found(queue.topic, each.log, log_count)
        last = each.offset if each.last is None else each.last
        if last < each.offset:
            raise WebError("bad_request", f"acknowledgements: expected last from {each.offset} on, not {last}")
        found.setdefault(each.log, []).append(Acknowledgement(each.offset, last + 1, _parse_kind(each.type)))
    for log, ranges in found.items():
        ranges.sort()
        for before, after in pairwise(ranges):
            if after.first < before.end:
                problem = f"expected offset {after.first} of log {log} once"
                raise WebError("bad_request", f"acknowledgements: {problem}")
    kinds = {said.others, *(each.kind for ranges in found.values() for each in ranges)}
    if AcknowledgeType.RENEW in kinds and not settings.may_renew:
        setting = "share.renew.acknowledge.enable"
        raise WebError("conflict", f"the group {queue.name!r} does not permit to renew locks ({setting})")
    return said


def _parse_kind(text: str) -> AcknowledgeType:
    if text not in KINDS:
        raise WebError("bad_request", f"type: expected {', '.join(KINDS)}, not {text[:100]!r}")
    return KINDS[text]


def group_by_leader(logs: Iterable[Log]) -> list[Sequence[Log]]:
    """Return the logs of each leader, in the order of their first ones."""
    found: dict[str, list[Log]] = {}
    for log in logs:
        found.setdefault(log.leadership.leader, []).append(log)
    return list(found.values())


def create_receipt() -> str:
    """Return a new receipt."""
    return secrets.token_urlsafe(16)


class QueueAccess(Protocol):
    """Access to queues.

    All methods raise `WebError` if there is no such share group, the topic was deleted, the storage fails, or the
    leader or the coordinator cannot be reached in time; and `LeaderMovedError` for a log that is not led where this
    access reaches it.
    """

    async def known_states(self, queue: Queue, logs: Sequence[Log]) -> dict[Log, QueueState]:
        """Return the states of logs, without those whose leaders do not answer promptly."""

    async def wait_available(self, queue: Queue, logs: Sequence[Log]) -> None:
        """Wait until one of these logs has available records, or possibly has."""

    async def lock(
        self, queue: Queue, logs: Sequence[Log], receipt: str, limits: ReceiveLimits, source: str
    ) -> list[LockedRecords]:
        """Lock available records for a receipt. Return nothing if there are none at present.

        The records are read for `source`: see `Broker.reads_of`.
        """

    async def acknowledge(
        self, queue: Queue, logs: Sequence[Log], acknowledgements: Acknowledgements
    ) -> list[RefusedRecords]:
        """Acknowledge records of these logs durably. Return what is refused.

        Raises `WebError` if it is not known whether records that are not named were acknowledged.
        """

    def release(self, queue: Queue, logs: Sequence[Log], receipt: str) -> None:
        """Begin to release all records that a receipt locks. If that fails, their locks expire."""
