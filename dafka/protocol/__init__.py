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
from dafka.protocol.machines.commits import Commits, Work
from dafka.protocol.machines.consumer import ConsumerMachine
from dafka.protocol.machines.delivery import Delivery
from dafka.protocol.machines.driver import Driver, Surroundings
from dafka.protocol.machines.machine import Machine
from dafka.protocol.machines.producer import ProducerMachine
from dafka.protocol.machines.reader import ReaderMachine
from dafka.protocol.machines.spooling import SpoolTrim
from dafka.protocol.machines.store import StoreMachine
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
from dafka.protocol.observing.cluster_survey import (
    ClusterSurvey,
    HolderView,
    NodeState,
    NodeView,
    PartitionView,
    Sighting,
    TopicView,
    TowerView,
)
from dafka.protocol.observing.survey_machine import SurveyMachine
from dafka.protocol.ordering.buffers import BatchBuffer
from dafka.protocol.ordering.held_end import Incomplete
from dafka.protocol.presence.beacons import BeaconMachine, DiscoveryEvent, SendBeacon, Settled
from dafka.protocol.presence.claims import KeyIdentity
from dafka.protocol.presence.introductions import BeaconRegistry
from dafka.protocol.presence.links import Links
from dafka.protocol.presence.peer_limits import HOSTILE_REASONS
from dafka.protocol.presence.peers import PeerChange, PeerTable
from dafka.protocol.presence.senders import SenderCheck
from dafka.protocol.trust import (
    AddressConflict,
    AuthorizedKeysUnreadable,
    EndpointsExposed,
    LoopbackOnly,
    PeerNotAuthorized,
    PeerRefused,
    RefusedByPeer,
    TrustEvent,
)

__all__ = [
    "HOSTILE_REASONS",
    "Action",
    "AddressConflict",
    "Answers",
    "Append",
    "AuthorizedKeysUnreadable",
    "BatchBuffer",
    "BeaconMachine",
    "BeaconRegistry",
    "Chunk",
    "ClusterFound",
    "ClusterSurvey",
    "CommitSlow",
    "Commits",
    "ConsumerMachine",
    "Deliver",
    "Delivery",
    "DiscoveryEvent",
    "Driver",
    "EndpointsExposed",
    "Event",
    "Failed",
    "FetchUnanswered",
    "Field",
    "Following",
    "ForeignDialect",
    "HolderView",
    "Incomplete",
    "Interrupted",
    "KeyIdentity",
    "Links",
    "LoopbackOnly",
    "Machine",
    "MessagesDiscarded",
    "MetricsServed",
    "NodeState",
    "NodeView",
    "Notice",
    "Notify",
    "PartitionHalted",
    "PartitionHeard",
    "PartitionSilent",
    "PartitionView",
    "PeerChange",
    "PeerJoined",
    "PeerLeft",
    "PeerNotAuthorized",
    "PeerRefused",
    "PeerTable",
    "ProducerMachine",
    "Publish",
    "ReaderMachine",
    "RecordsDropped",
    "RecordsGone",
    "RecordsUnwritten",
    "RefusedByPeer",
    "Reply",
    "ReplyQueue",
    "SendBeacon",
    "SenderCheck",
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
    "Subscribe",
    "Surroundings",
    "SurveyMachine",
    "TopicView",
    "TowerView",
    "TowersHeard",
    "TowersSilent",
    "TrustEvent",
    "Unsubscribe",
    "Work",
    "notice_fields",
    "notice_name",
]
