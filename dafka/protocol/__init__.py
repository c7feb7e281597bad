"""The state machines of RFC 46: messages and the time in, actions out. No sockets, no sleeping, no threads."""

from dafka.protocol.actions import (
    Action,
    Append,
    Deliver,
    Notify,
    Publish,
    ResetPosition,
    Subscribe,
    Unsubscribe,
)
from dafka.protocol.answering.answers import Answers, Chunk
from dafka.protocol.answering.replies import Reply, ReplyQueue
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
    StorageLost,
    StorageRecovered,
    StorageRepaired,
    StoresHeard,
    StoresSilent,
    TowersHeard,
    TowersSilent,
)
from dafka.protocol.machines.commits import CommitQueue, StorageWork
from dafka.protocol.machines.consumer import ConsumerMachine
from dafka.protocol.machines.delivery import DeliveryBuffer
from dafka.protocol.machines.node import Machine, Node, NodeCallbacks, NodeIO
from dafka.protocol.machines.producer import ProducerMachine
from dafka.protocol.machines.reader import ReaderMachine
from dafka.protocol.machines.store import StoreMachine
from dafka.protocol.observing.census import CensusMachine
from dafka.protocol.observing.survey import (
    HolderView,
    NodeState,
    NodeView,
    PartitionView,
    Sighting,
    Survey,
    TopicView,
    TowerView,
)
from dafka.protocol.ordering.buffer import RunBuffer
from dafka.protocol.ordering.inquiry import Lacking
from dafka.protocol.presence.beacons import Beacons, Report, SendBeacon, Settled
from dafka.protocol.presence.claims import Claims
from dafka.protocol.presence.connections import ConnectionManager
from dafka.protocol.presence.introductions import Introductions
from dafka.protocol.presence.peers import Change, Peers
from dafka.protocol.presence.senders import Senders
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
    "Answers",
    "Append",
    "AuthorisedKept",
    "Beacons",
    "CensusMachine",
    "Change",
    "Chunk",
    "ClaimRefused",
    "Claims",
    "CommitQueue",
    "ConnectionManager",
    "ConsumerMachine",
    "Deliver",
    "DeliveryBuffer",
    "Event",
    "Exposed",
    "FetchUnanswered",
    "ForeignDialect",
    "HandshakeRefused",
    "HolderView",
    "Introductions",
    "Lacking",
    "Machine",
    "Node",
    "NodeBarred",
    "NodeCallbacks",
    "NodeIO",
    "NodeState",
    "NodeView",
    "Notify",
    "PartitionHalted",
    "PartitionHeard",
    "PartitionSilent",
    "PartitionView",
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
    "Report",
    "ResetPosition",
    "RunBuffer",
    "SendBeacon",
    "Senders",
    "Settled",
    "Sighting",
    "StorageFailed",
    "StorageLost",
    "StorageRecovered",
    "StorageRepaired",
    "StorageWork",
    "StoreMachine",
    "StoresHeard",
    "StoresSilent",
    "StrangerRefused",
    "Subscribe",
    "Survey",
    "TopicView",
    "TowerView",
    "TowersHeard",
    "TowersSilent",
    "TrustEvent",
    "Unreachable",
    "Unsubscribe",
]
