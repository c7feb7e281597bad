"""What an operator's log tells besides events, and how both are named there: a stable name, and fields."""

from __future__ import annotations

import re
from typing import TypeAlias

import attrs

from dafka.endpoints import PeerEndpoint
from dafka.protocol.events import Event, PeerJoined, PeerLeft
from dafka.protocol.trust import AddressConflict
from dafka.records import Partition

Field: TypeAlias = str | int | float | bool | list[str]


@attrs.frozen
class Started:
    """A node listens at `endpoints`, and makes itself known."""

    endpoints: tuple[str, ...]

    def __str__(self) -> str:
        return f"listening at {' and '.join(self.endpoints)}"


@attrs.frozen
class ClusterFound:
    """A node has found the nodes that were there before, and is connected to `peers`."""

    peers: int

    def __str__(self) -> str:
        return f"the cluster is found: connected to {self.peers} nodes"


@attrs.frozen
class StorageOpened:
    """A store has opened its storage, which holds so much."""

    storage: str
    partitions: int
    records: int

    def __str__(self) -> str:
        return f"{self.storage} is open: {self.records} records of {self.partitions} partitions"


@attrs.frozen
class StorageReopening:
    """A storage that was lost is opened again, anew where nothing is left; `reason` is why that fails for now."""

    storage: str
    reason: str

    def __str__(self) -> str:
        if self.reason:
            return f"{self.storage} cannot be opened again, trying on: {self.reason}"
        return f"opening {self.storage} again, and fetching what other nodes hold"


@attrs.frozen
class Following:
    """A consumer has found its cluster, and follows these topics."""

    topics: tuple[str, ...]

    def __str__(self) -> str:
        return f"following {' '.join(self.topics)}"


@attrs.frozen
class CommitSlow:
    """Making records durable took `seconds`, for so many of them."""

    seconds: float
    records: int
    bytes: int

    def __str__(self) -> str:
        return f"the storage took {self.seconds:.1f} s to make {self.records} records durable ({self.bytes} bytes)"


@attrs.frozen
class MessagesDiscarded:
    """`count` messages were thrown away since this was last told, for `reason`; `total` since the node began."""

    reason: str
    count: int
    total: int

    def __str__(self) -> str:
        messages = "1 message" if self.count == 1 else f"{self.count} messages"
        return f"discarded {messages} ({self.reason}); {self.total} in all"


@attrs.frozen
class Stopping:
    """A command was told to end by this signal. Its nodes take nothing more, and finish what they have begun."""

    signal: str

    def __str__(self) -> str:
        return f"{self.signal}: finishing what was begun"


@attrs.frozen
class RecordsUnwritten:
    """A store ends, and has not written what it had received last. None of that was acknowledged.

    Attributes:
        pending_bytes: what it takes in memory.
        reason: what the storage said; empty where it was too slow for the time that the store is given.
    """

    pending_bytes: int
    reason: str

    def __str__(self) -> str:
        return (
            f"what was received last is not written ({self.pending_bytes} bytes), and not acknowledged: "
            f"{self.reason or 'the storage was too slow'}"
        )


@attrs.frozen
class Stopped:
    """A node's sockets are closed."""

    def __str__(self) -> str:
        return "stopped"


@attrs.frozen
class MetricsServed:
    """Metrics and health are served over HTTP."""

    url: str

    def __str__(self) -> str:
        return f"metrics at {self.url}"


@attrs.frozen
class Interrupted:
    """A producing command was ended by a signal: so many records were published, so many lack ACKs."""

    records: int
    unacknowledged: int

    def __str__(self) -> str:
        return f"interrupted: {self.records:,} published, {self.unacknowledged:,} of them not acknowledged"


@attrs.frozen
class Failed:
    """A command ends because of this."""

    reason: str

    def __str__(self) -> str:
        return self.reason


LogEvent: TypeAlias = (
    Started
    | ClusterFound
    | StorageOpened
    | StorageReopening
    | Following
    | CommitSlow
    | MessagesDiscarded
    | Stopping
    | RecordsUnwritten
    | Stopped
    | MetricsServed
    | Interrupted
    | Failed
)

_PEERS = (PeerJoined, PeerLeft, AddressConflict)
"""Whose `address` is another node's."""


def event_name(kind: type) -> str:
    """The name that an event or a notice of this class has in logs: `PeerJoined` is `peer_joined`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower()


def event_fields(notice: Event | LogEvent) -> dict[str, Field]:
    """What it says, by name: its attributes, where a partition is `topic` and `partition`, another node is `peer`."""
    fields: dict[str, Field] = {}
    for attribute in attrs.fields(type(notice)):
        value = getattr(notice, attribute.name)
        if isinstance(value, Partition):
            fields["topic"], fields["partition"] = value.topic, value.address
        elif isinstance(value, PeerEndpoint):
            fields["endpoint"] = value.endpoint
            if value.key:
                fields["key"] = value.key
        elif attribute.name == "address" and isinstance(notice, _PEERS):
            fields["peer"] = value
        else:
            fields[attribute.name] = list(value) if isinstance(value, tuple) else value
    return fields
