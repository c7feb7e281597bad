"""What an embedding program may want to know besides its records. Nothing stalls without one of these."""

from __future__ import annotations

from typing import TypeAlias

import attrs

from dafka.endpoints import PeerEndpoint
from dafka.protocol.trust import TrustEvent
from dafka.records import Partition


@attrs.frozen
class PeerJoined:
    """A node was discovered, and its publisher is being connected to."""

    address: str
    endpoint: PeerEndpoint

    def __str__(self) -> str:
        return f"found node {self.address or 'of unknown address'} at {self.endpoint.endpoint}"


@attrs.frozen
class PeerLeft:
    """A node fell silent and was disconnected."""

    address: str
    endpoint: PeerEndpoint

    def __str__(self) -> str:
        return f"lost node {self.address or 'of unknown address'} at {self.endpoint.endpoint}"


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
        return f"a peer writes the {self.heard} dialect, and does not understand this node's {self.own} dialect"


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
class RecordsGone:
    """Nobody holds these records any more (retention has dropped them): the partition goes on at `end_sequence`."""

    partition: Partition
    first_sequence: int
    end_sequence: int

    def __str__(self) -> str:
        which = _records(self.first_sequence, self.end_sequence, self.partition)
        return f"{which} gone: nobody holds them any more; going on after them"


@attrs.frozen
class PartitionHalted:
    """A store lacks these records, nobody holds them any more, and it keeps those before: it can store no further ones.

    A partition has no gaps. A store with retention gives up the older records in such a case; one without never drops
    a record by itself. `dafka storage trim` does, while the store is stopped.
    """

    partition: Partition
    first_sequence: int
    end_sequence: int

    def __str__(self) -> str:
        which = _records(self.first_sequence, self.end_sequence, self.partition)
        return (
            f"{which} gone, and this store, which has no retention, keeps those before: "
            "it stores no more of this partition until they are trimmed"
        )


@attrs.frozen
class RecordsDropped:
    """A store's retention has dropped so many records of so many partitions."""

    records: int
    partitions: int

    def __str__(self) -> str:
        partitions = "1 partition" if self.partitions == 1 else f"{self.partitions} partitions"
        return f"retention dropped {self.records} records of {partitions}"


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
class StorageRepaired:
    """Opening the storage found damage, and cut it away or left it aside."""

    damage: str

    def __str__(self) -> str:
        return f"the storage was damaged: {self.damage}"


@attrs.frozen
class StorageFailed:
    """The storage refused records (a full disk, say). Nothing is acknowledged until it takes them."""

    reason: str

    def __str__(self) -> str:
        return f"the storage failed, and is tried again: {self.reason}"


@attrs.frozen
class StorageLost:
    """The storage was removed, moved or replaced while it was open: this store ends, and acknowledges nothing more."""

    reason: str

    def __str__(self) -> str:
        return f"the storage is lost, nothing more is acknowledged: {self.reason}"


@attrs.frozen
class StorageRecovered:
    """The storage takes records again after `StorageFailed`."""

    def __str__(self) -> str:
        return "the storage works again"


def _records(first_sequence: int, end_sequence: int, partition: Partition) -> str:
    if end_sequence - first_sequence == 1:
        return f"record {first_sequence} of {partition} is"
    return f"records {first_sequence} to {end_sequence - 1} of {partition} are"


Event: TypeAlias = (
    PeerJoined
    | PeerLeft
    | TowersSilent
    | TowersHeard
    | ForeignDialect
    | PartitionSilent
    | PartitionHeard
    | FetchUnanswered
    | RecordsGone
    | PartitionHalted
    | RecordsDropped
    | StoresSilent
    | StoresHeard
    | StorageRepaired
    | StorageFailed
    | StorageLost
    | StorageRecovered
    | TrustEvent
)
