"""What an embedding program may want to know besides its records. Nothing stalls without one of these."""

from __future__ import annotations

from typing import TypeAlias

import attrs

from dafka.records import Partition


@attrs.frozen
class PeerJoined:
    """A node was discovered, and its publisher is being connected to."""

    address: str
    endpoint: str


@attrs.frozen
class PeerLeft:
    """A node fell silent and was disconnected."""

    address: str
    endpoint: str


@attrs.frozen
class TowersSilent:
    """No tower has been heard for `seconds`. Known peers stay connected; new ones are not found."""

    seconds: float


@attrs.frozen
class TowersHeard:
    """A tower was heard, for the first time or after `TowersSilent`."""


@attrs.frozen
class ForeignDialect:
    """A peer writes the other dialect. It is understood, but it will not understand what this node sends."""

    own: str
    heard: str


@attrs.frozen
class PartitionSilent:
    """The producer of a followed partition is connected, but none of its HEADs or RECORDs came for `seconds`."""

    partition: Partition
    seconds: float


@attrs.frozen
class PartitionHeard:
    """A partition that had been silent is heard again."""

    partition: Partition


@attrs.frozen
class FetchUnanswered:
    """Records from `first_sequence` on were asked for `attempts` times in a row, and nobody sent one.

    They are asked for again, ever more rarely, until somebody has them.
    """

    partition: Partition
    first_sequence: int
    attempts: int


@attrs.frozen
class StoresSilent:
    """Records are unacknowledged, and no store has acknowledged any for `seconds`."""

    unacknowledged: int
    seconds: float


@attrs.frozen
class StoresHeard:
    """A store acknowledges again after `StoresSilent`."""


@attrs.frozen
class StorageFailed:
    """The storage refused records (a full disk, say). Nothing is acknowledged until it takes them."""

    reason: str


@attrs.frozen
class StorageRecovered:
    """The storage takes records again after `StorageFailed`."""


Event: TypeAlias = (
    PeerJoined
    | PeerLeft
    | TowersSilent
    | TowersHeard
    | ForeignDialect
    | PartitionSilent
    | PartitionHeard
    | FetchUnanswered
    | StoresSilent
    | StoresHeard
    | StorageFailed
    | StorageRecovered
)
