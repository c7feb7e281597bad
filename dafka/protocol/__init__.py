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
from dafka.protocol.admission import HOSTILE
from dafka.protocol.answers import Answers, Chunk
from dafka.protocol.beacons import Beacons, Report, SendBeacon, Settled
from dafka.protocol.buffer import RunBuffer
from dafka.protocol.census import CensusMachine
from dafka.protocol.claims import Claims
from dafka.protocol.commits import Commits, Work
from dafka.protocol.consumer import ConsumerMachine
from dafka.protocol.delivery import Delivery
from dafka.protocol.driver import Driver, Surroundings
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
from dafka.protocol.inquiry import Lacking
from dafka.protocol.introductions import Introductions
from dafka.protocol.links import Links
from dafka.protocol.machine import Machine
from dafka.protocol.notices import (
    ClusterFound,
    CommitSlow,
    Failed,
    Field,
    Following,
    Interrupted,
    MessagesDiscarded,
    MetricsServed,
    Notice,
    RecordsUnwritten,
    Started,
    Stopped,
    Stopping,
    StorageOpened,
    StorageReopening,
    notice_fields,
    notice_name,
)
from dafka.protocol.peers import Change, Peers
from dafka.protocol.producer import ProducerMachine
from dafka.protocol.reader import ReaderMachine
from dafka.protocol.replies import Reply, ReplyQueue
from dafka.protocol.senders import Senders
from dafka.protocol.spooling import SpoolTrim
from dafka.protocol.store import StoreMachine
from dafka.protocol.survey import (
    HolderView,
    NodeState,
    NodeView,
    PartitionView,
    Sighting,
    Survey,
    TopicView,
    TowerView,
)
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
    "HOSTILE",
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
    "ClusterFound",
    "CommitSlow",
    "Commits",
    "ConsumerMachine",
    "Deliver",
    "Delivery",
    "Driver",
    "Event",
    "Exposed",
    "Failed",
    "FetchUnanswered",
    "Field",
    "Following",
    "ForeignDialect",
    "HandshakeRefused",
    "HolderView",
    "Interrupted",
    "Introductions",
    "Lacking",
    "Links",
    "Machine",
    "MessagesDiscarded",
    "MetricsServed",
    "NodeBarred",
    "NodeState",
    "NodeView",
    "Notice",
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
    "RecordsUnwritten",
    "Reply",
    "ReplyQueue",
    "Report",
    "RunBuffer",
    "SendBeacon",
    "Senders",
    "Settled",
    "Sighting",
    "Skip",
    "SpoolTrim",
    "Started",
    "Stopped",
    "Stopping",
    "StorageFailed",
    "StorageLost",
    "StorageOpened",
    "StorageRecovered",
    "StorageReopening",
    "StorageRepaired",
    "StoreMachine",
    "StoresHeard",
    "StoresSilent",
    "StrangerRefused",
    "Subscribe",
    "Surroundings",
    "Survey",
    "TopicView",
    "TowerView",
    "TowersHeard",
    "TowersSilent",
    "TrustEvent",
    "Unreachable",
    "Unsubscribe",
    "Work",
    "notice_fields",
    "notice_name",
]
