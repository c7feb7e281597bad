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

    def __str__(self) -> str:
        return f"found node {self.address or 'of unknown address'} at {self.endpoint}"


@attrs.frozen
class PeerLeft:
    """A node fell silent and was disconnected."""

    address: str
    endpoint: str

    def __str__(self) -> str:
        return f"lost node {self.address or 'of unknown address'} at {self.endpoint}"


@attrs.frozen
class TowersSilent:
    """No tower has been heard for `seconds`. Known peers stay connected; new ones are not found."""

    seconds: float

    def __str__(self) -> str:
        return f"no tower heard for {self.seconds:.0f} s; known nodes stay connected, new ones are not found"


@attrs.frozen
class TowersHeard:
    """A tower was heard, for the first time or after `TowersSilent`."""

    def __str__(self) -> str:
        return "a tower is heard"


@attrs.frozen
class ForeignDialect:
    """A peer writes the other dialect. It is understood, but it will not understand what this node sends."""

    own: str
    heard: str

    def __str__(self) -> str:
        return (
            f"a peer writes the {self.heard} dialect, and will not understand this node's {self.own}: "
            f"set wire to {self.heard} (--wire {self.heard}), or change the peer"
        )


@attrs.frozen
class PartitionSilent:
    """The producer of a followed partition is connected, but none of its HEADs or RECORDs came for `seconds`."""

    partition: Partition
    seconds: float

    def __str__(self) -> str:
        return f"nothing heard of {self.partition} for {self.seconds:.0f} s, though its producer is connected"


@attrs.frozen
class PartitionHeard:
    """A partition that had been silent is heard again."""

    partition: Partition

    def __str__(self) -> str:
        return f"{self.partition} is heard again"


@attrs.frozen
class FetchUnanswered:
    """Records from `first_sequence` on were asked for `attempts` times in a row, and nobody sent one.

    They are asked for again, ever more rarely, until somebody has them.
    """

    partition: Partition
    first_sequence: int
    attempts: int

    def __str__(self) -> str:
        return (
            f"nobody answers for {self.partition} from sequence {self.first_sequence} on "
            f"(asked {self.attempts} times); asking on"
        )


@attrs.frozen
class StoresSilent:
    """Records are unacknowledged, and no store has acknowledged any for `seconds`."""

    unacknowledged: int
    seconds: float

    def __str__(self) -> str:
        return f"no store has acknowledged anything for {self.seconds:.0f} s; {self.unacknowledged} records wait"


@attrs.frozen
class StoresHeard:
    """A store acknowledges again after `StoresSilent`."""

    def __str__(self) -> str:
        return "a store acknowledges again"


@attrs.frozen
class StorageFailed:
    """The storage refused records (a full disk, say). Nothing is acknowledged until it takes them."""

    reason: str

    def __str__(self) -> str:
        return f"the storage failed, and is tried again: {self.reason}"


@attrs.frozen
class StorageRecovered:
    """The storage takes records again after `StorageFailed`."""

    def __str__(self) -> str:
        return "the storage works again"


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
