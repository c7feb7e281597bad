"""The events that a node reports. No event needs a reaction; a node continues by itself."""

from __future__ import annotations

from typing import TypeAlias

import attrs

from dafka.endpoints import PeerEndpoint
from dafka.protocol.store_events import StoreEvent, describe_records
from dafka.protocol.trust import TrustEvent
from dafka.records import Partition


@attrs.frozen
class PeerJoined:
    """Discovery found a node, and this node connects to it.

    Attributes:
        address: The node's address; empty if discovery does not know it.
        endpoint: The endpoint at which the node listens.
    """

    address: str
    endpoint: PeerEndpoint

    def __str__(self) -> str:
        return f"Found node {self.address or 'of unknown address'} at {self.endpoint.endpoint}"


@attrs.frozen
class PeerLeft:
    """Discovery lost a node, and this node disconnected from it.

    Attributes:
        address: The node's address; empty if discovery does not know it.
        endpoint: The endpoint at which the node listened.
        is_unwanted: Whether the node has left because no tower lists it in a role that this node connects to.
        is_tower_silent: Whether no tower is heard any more, so that the node may still exist.
    """

    address: str
    endpoint: PeerEndpoint
    is_unwanted: bool = False
    is_tower_silent: bool = False

    def __str__(self) -> str:
        return f"Lost node {self.address or 'of unknown address'} at {self.endpoint.endpoint}"


@attrs.frozen
class TowersSilent:
    """No tower has been heard for a while. Known nodes stay connected; new ones are not found.

    The node keeps trying, and reports this again each minute until a tower is heard.

    Attributes:
        seconds: The time without hearing a tower, in seconds.
        towers: The endpoints at which towers were expected.
    """

    seconds: float
    towers: tuple[str, ...] = ()

    def __str__(self) -> str:
        where = f" at {', '.join(self.towers)}" if self.towers else ""
        return f"No tower heard{where} for {self.seconds:.0f} s; known nodes stay connected, new ones are not found"


@attrs.frozen
class TowersHeard:
    """A tower was heard, for the first time or again after `TowersSilent`."""

    def __str__(self) -> str:
        return "Tower heard"


@attrs.frozen
class TowerHostUnresolved:
    """The host name of a tower cannot be resolved. The node keeps trying.

    Attributes:
        host: The host name.
        reason: The system's reason.
    """

    host: str
    reason: str

    def __str__(self) -> str:
        return f"The tower's host name {self.host!r} cannot be resolved; retrying: {self.reason}"


@attrs.frozen
class ForeignDialect:
    """A peer uses the other dialect. This node understands it, but the peer does not understand this node.

    Attributes:
        own: This node's dialect, `rfc46` or `libdafka`.
        heard: The peer's dialect.
    """

    own: str
    heard: str

    def __str__(self) -> str:
        return f"A peer uses the {self.heard} dialect and does not understand this node's {self.own} messages"


@attrs.frozen
class DialectAdopted:
    """This node sends another dialect from now on, because its setting is `auto`, and peers need it.

    Attributes:
        dialect: The dialect, `rfc46` or `libdafka`.
    """

    dialect: str

    def __str__(self) -> str:
        if self.dialect == "libdafka":
            return "There are nodes of libdafka in this cluster; sending the libdafka dialect from now on"
        return "There are no nodes of libdafka in this cluster; sending the rfc46 dialect again"


@attrs.frozen
class PartitionSilent:
    """The producer of a followed partition is connected, but a HEAD or RECORD of it is overdue.

    Attributes:
        partition: The partition.
        seconds: The time without a HEAD or RECORD, in seconds.
    """

    partition: Partition
    seconds: float

    def __str__(self) -> str:
        return f"Nothing heard of {self.partition} for {self.seconds:.0f} s, although its producer is connected"


@attrs.frozen
class PartitionHeard:
    """A silent partition is heard again.

    Attributes:
        partition: The partition.
    """

    partition: Partition

    def __str__(self) -> str:
        return f"{self.partition} heard again"


@attrs.frozen
class FetchUnanswered:
    """Several FETCHes in a row for missing records went unanswered.

    They are repeated at growing intervals until a node answers.

    Attributes:
        partition: The partition.
        first_sequence: The first missing record.
        attempts: FETCHes without an answer so far.
    """

    partition: Partition
    first_sequence: int
    attempts: int

    def __str__(self) -> str:
        return (
            f"No node sends the records of {self.partition} from sequence {self.first_sequence} on "
            f"({self.attempts} attempts); retrying"
        )


@attrs.frozen
class RecordsUnrecoverable:
    """No node holds these records any more, since retention dropped them. The partition continues after them.

    Attributes:
        partition: The partition.
        first_sequence: The first record that is unrecoverable.
        end_sequence: The sequence after the last record that is unrecoverable.
    """

    partition: Partition
    first_sequence: int
    end_sequence: int

    def __str__(self) -> str:
        which = describe_records(self.first_sequence, self.end_sequence, self.partition)
        return f"{which} unrecoverable: no node holds them any more; continuing after them"


@attrs.frozen
class StoresSilent:
    """No store has acknowledged records for a while, although some are unacknowledged.

    Attributes:
        unacknowledged: The number of unacknowledged records.
        seconds: The time without an ACK, in seconds.
    """

    unacknowledged: int
    seconds: float

    def __str__(self) -> str:
        return f"No store has acknowledged records for {self.seconds:.0f} s; {self.unacknowledged} are unacknowledged"


@attrs.frozen
class PartitionReplaced:
    """A producer has begun a new partition, because no store could continue the previous one.

    The stores had lost records that they had acknowledged, for example because their only file was deleted.

    Attributes:
        partition: The previous partition.
        replacement: The address of the new partition, of the same topic.
        records: The number of unacknowledged records that the new partition begins with.
    """

    partition: Partition
    replacement: str
    records: int

    def __str__(self) -> str:
        return (
            f"No store has the earlier records of {self.partition} any more; continuing as the new partition "
            f"{self.replacement}, with {self.records} unacknowledged records"
        )


@attrs.frozen
class StoresHeard:
    """A store acknowledged records again after `StoresSilent`."""

    def __str__(self) -> str:
        return "A store acknowledges records again"


@attrs.frozen
class PartitionsAssigned:
    """A member of a group handles additional partitions from now on.

    Attributes:
        partitions: The partitions.
    """

    partitions: tuple[Partition, ...]

    def __str__(self) -> str:
        return f"Handling {_count_partitions(self.partitions)} from now on"


@attrs.frozen
class PartitionsRevoked:
    """Another member of the group takes over partitions. Their records are no longer returned.

    They are handed over when the program has saved its positions, or after `[consumer] group_handover_ms`.

    Attributes:
        partitions: The partitions.
    """

    partitions: tuple[Partition, ...]

    def __str__(self) -> str:
        return f"Handing {_count_partitions(self.partitions)} over to other members of the group"


@attrs.frozen
class PartitionsLost:
    """A member of a group was out of touch with the stores for too long. Others may handle its partitions now.

    Attributes:
        partitions: The partitions. Records after the last saved position are handled again.
    """

    partitions: tuple[Partition, ...]

    def __str__(self) -> str:
        return f"Lost {_count_partitions(self.partitions)}: the stores did not confirm for the time of the lease"


def _count_partitions(partitions: tuple[Partition, ...]) -> str:
    [*others, last] = partitions
    return f"{last}" if not others else f"{len(partitions)} partitions"


Event: TypeAlias = (
    PeerJoined
    | PeerLeft
    | TowersSilent
    | TowersHeard
    | TowerHostUnresolved
    | ForeignDialect
    | DialectAdopted
    | PartitionSilent
    | PartitionHeard
    | FetchUnanswered
    | RecordsUnrecoverable
    | PartitionsAssigned
    | PartitionsRevoked
    | PartitionsLost
    | PartitionReplaced
    | StoresSilent
    | StoresHeard
    | StoreEvent
    | TrustEvent
)
