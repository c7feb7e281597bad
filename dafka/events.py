"""The classes of the events that a node reports by its `events` and writes to its log.

Every event is a frozen attrs class, and `str(event)` is a sentence. No event needs a reaction: a node continues by
itself.
"""

from dafka.protocol.events import (
    Event,
    FetchUnanswered,
    ForeignDialect,
    PartitionHalted,
    PartitionHeard,
    PartitionSilent,
    PeerJoined,
    PeerLeft,
    RecordsDropped,
    RecordsUnrecoverable,
    StorageFailed,
    StorageLost,
    StorageRecovered,
    StorageRepaired,
    StoresHeard,
    StoresSilent,
    TowerHostUnresolved,
    TowersHeard,
    TowersSilent,
)
from dafka.protocol.trust import (
    AddressConflict,
    AuthorizedKeysUnreadable,
    EndpointsExposed,
    IntroducedAtLoopback,
    LoopbackOnly,
    PeerNotAuthorized,
    PeerRefused,
    RefusedByPeer,
    TowerHostAmbiguous,
)

__all__ = [
    "AddressConflict",
    "AuthorizedKeysUnreadable",
    "EndpointsExposed",
    "Event",
    "FetchUnanswered",
    "ForeignDialect",
    "IntroducedAtLoopback",
    "LoopbackOnly",
    "PartitionHalted",
    "PartitionHeard",
    "PartitionSilent",
    "PeerJoined",
    "PeerLeft",
    "PeerNotAuthorized",
    "PeerRefused",
    "RecordsDropped",
    "RecordsUnrecoverable",
    "RefusedByPeer",
    "StorageFailed",
    "StorageLost",
    "StorageRecovered",
    "StorageRepaired",
    "StoresHeard",
    "StoresSilent",
    "TowerHostAmbiguous",
    "TowerHostUnresolved",
    "TowersHeard",
    "TowersSilent",
]
