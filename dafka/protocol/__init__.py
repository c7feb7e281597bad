"""The state machines of RFC 46: messages and the time in, actions out. No sockets, no sleeping, no threads."""

from dafka.protocol.actions import (
    Action,
    Append,
    Deliver,
    Notify,
    Publish,
    Skip,
    Subscribe,
    Unsubscribe,
)
from dafka.protocol.claims import Claims
from dafka.protocol.consumer import ConsumerMachine
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
    RecordsGone,
    StorageFailed,
    StorageRecovered,
    StorageRepaired,
    StoresHeard,
    StoresSilent,
    TowersHeard,
    TowersSilent,
)
from dafka.protocol.machine import Machine
from dafka.protocol.peers import Change, Peers
from dafka.protocol.producer import ProducerMachine
from dafka.protocol.reader import ReaderMachine
from dafka.protocol.replies import Reply, ReplyQueue
from dafka.protocol.store import StoreMachine
from dafka.protocol.trust import (
    AuthorisedKept,
    ClaimRefused,
    Exposed,
    HandshakeRefused,
    NodeBarred,
    StrangerRefused,
    TrustEvent,
    Unreachable,
)

__all__ = [
    "Action",
    "Append",
    "AuthorisedKept",
    "Change",
    "ClaimRefused",
    "Claims",
    "ConsumerMachine",
    "Deliver",
    "Event",
    "Exposed",
    "FetchUnanswered",
    "ForeignDialect",
    "HandshakeRefused",
    "Machine",
    "NodeBarred",
    "Notify",
    "PartitionHalted",
    "PartitionHeard",
    "PartitionSilent",
    "PeerJoined",
    "PeerLeft",
    "Peers",
    "ProducerMachine",
    "Publish",
    "ReaderMachine",
    "RecordsDropped",
    "RecordsGone",
    "Reply",
    "ReplyQueue",
    "Skip",
    "StorageFailed",
    "StorageRecovered",
    "StorageRepaired",
    "StoreMachine",
    "StoresHeard",
    "StoresSilent",
    "StrangerRefused",
    "Subscribe",
    "TowersHeard",
    "TowersSilent",
    "TrustEvent",
    "Unreachable",
    "Unsubscribe",
]
