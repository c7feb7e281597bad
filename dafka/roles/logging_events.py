"""Log events, which a node or a command logs in addition to its events, and the names and fields of both in a log."""

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
class LogEvent:
    """An event that is only logged. Its attributes are its fields in a log, and `str(event)` is a sentence."""


@attrs.frozen
class Started(LogEvent):
    """A node or a tower has started."""

    endpoints: tuple[str, ...]

    def __str__(self) -> str:
        return f"Listening at {' and '.join(self.endpoints)}"


@attrs.frozen
class ClusterFound(LogEvent):
    """A node has found the nodes that were running before it."""

    peers: int

    def __str__(self) -> str:
        return f"Found the cluster: connected to {self.peers} nodes"


@attrs.frozen
class StorageOpened(LogEvent):
    """A store has opened its storage, a URL."""

    storage: str
    partitions: int
    records: int

    def __str__(self) -> str:
        return f"Opened {self.storage}: {self.records} records of {self.partitions} partitions"


@attrs.frozen
class StorageReopening(LogEvent):
    """A store reopens a lost storage, or creates it if nothing is left. The reason is why the last attempt failed."""

    storage: str
    reason: str

    def __str__(self) -> str:
        if self.reason:
            return f"Cannot open {self.storage} again; retrying: {self.reason}"
        return f"Opening {self.storage} again, and fetching what other nodes hold"


@attrs.frozen
class Following(LogEvent):
    """A consumer has found its cluster, and follows its topics."""

    topics: tuple[str, ...]

    def __str__(self) -> str:
        return f"Following {' '.join(self.topics)}"


@attrs.frozen
class CommitSlow(LogEvent):
    """A transaction of the storage took long. The bytes are those of the contents of its records."""

    seconds: float
    records: int
    bytes: int

    def __str__(self) -> str:
        return f"Slow commit: {self.seconds:.1f} s to write {self.records} records ({self.bytes} bytes)"


@attrs.frozen
class MessagesDiscarded(LogEvent):
    """A node has discarded messages: `count` since this reason was last logged, `total` since the node started."""

    reason: str
    count: int
    total: int

    def __str__(self) -> str:
        messages = "1 message" if self.count == 1 else f"{self.count} messages"
        return f"Discarded {messages} ({self.reason}); {self.total} in total"


@attrs.frozen
class FetchesUnanswered(LogEvent):
    """More partitions, after one that was logged separately, have missing records that no node sends."""

    partitions: int
    example: Partition

    def __str__(self) -> str:
        partitions = "1 more partition" if self.partitions == 1 else f"{self.partitions} more partitions"
        return f"No node sends missing records of {partitions}, such as {self.example}; retrying"


@attrs.frozen
class Stopping(LogEvent):
    """A command received a signal to end. Its nodes finish their work."""

    signal: str

    def __str__(self) -> str:
        return f"{self.signal} received; finishing pending work"


@attrs.frozen
class RecordsUnwritten(LogEvent):
    """A store ends without writing the last received records. None of them was acknowledged.

    The reason is the storage's error; it is empty if the storage was too slow for the grace period.
    """

    pending_bytes: int
    reason: str

    def __str__(self) -> str:
        return (
            f"Stopping without writing the last {self.pending_bytes} bytes received, which were not acknowledged: "
            f"{self.reason or 'the storage was too slow'}"
        )


@attrs.frozen
class Stopped(LogEvent):
    """A node has closed its sockets."""

    def __str__(self) -> str:
        return "Stopped"


@attrs.frozen
class MetricsServed(LogEvent):
    """Metrics and health are served over HTTP."""

    url: str

    def __str__(self) -> str:
        return f"Metrics at {self.url}"


@attrs.frozen
class Interrupted(LogEvent):
    """A signal ended a producing command."""

    records: int
    unacknowledged: int

    def __str__(self) -> str:
        return f"Interrupted: {self.records:,} published, {self.unacknowledged:,} of them not acknowledged"


@attrs.frozen
class ConfigFileUnused(LogEvent):
    """There is a file with the name of a configuration, but no `--config` names it."""

    path: str

    def __str__(self) -> str:
        return f"./{self.path} is not read; to use it, write --config {self.path}"


@attrs.frozen
class Failed(LogEvent):
    """A command ends with an error."""

    reason: str

    def __str__(self) -> str:
        return self.reason


_WITH_PEER_ADDRESS = (PeerJoined, PeerLeft, AddressConflict)
"""Events whose `address` is another node's."""


def event_name(kind: type) -> str:
    """Return the name of this class of events in logs: `peer_joined` for `PeerJoined`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower()


def event_fields(event: Event | LogEvent) -> dict[str, Field]:
    """Return an event's fields in logs: a partition is `topic` and `partition`, another node's address is `peer`."""
    fields: dict[str, Field] = {}
    for attribute in attrs.fields(type(event)):
        value = getattr(event, attribute.name)
        if isinstance(value, Partition):
            fields["topic"], fields["partition"] = value.topic, value.address
        elif isinstance(value, PeerEndpoint):
            fields["endpoint"] = value.endpoint
            if value.key:
                fields["key"] = value.key
        elif attribute.name == "address" and isinstance(event, _WITH_PEER_ADDRESS):
            fields["peer"] = value
        else:
            fields[attribute.name] = list(map(str, value)) if isinstance(value, tuple) else value
    return fields
