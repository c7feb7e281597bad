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
from dafka.protocol.answering.fetch_responder import FetchResponder, ReadRequest
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
from dafka.protocol.presence.connections import ConnectionManager
from dafka.protocol.presence.introductions import BeaconRegistry
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
    "Action",
    "AddressConflict",
    "Append",
    "AuthorizedKeysUnreadable",
    "BatchBuffer",
    "BeaconMachine",
    "BeaconRegistry",
    "ClusterSurvey",
    "CommitQueue",
    "ConnectionManager",
    "ConsumerMachine",
    "Deliver",
    "DeliveryBuffer",
    "DiscoveryEvent",
    "EndpointsExposed",
    "Event",
    "FetchResponder",
    "FetchUnanswered",
    "ForeignDialect",
    "HolderView",
    "Incomplete",
    "KeyIdentity",
    "LoopbackOnly",
    "Machine",
    "Node",
    "NodeCallbacks",
    "NodeIO",
    "NodeState",
    "NodeView",
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
    "ReadRequest",
    "ReaderMachine",
    "RecordsDropped",
    "RecordsGone",
    "RefusedByPeer",
    "ResetPosition",
    "SendBeacon",
    "SenderCheck",
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
    "Subscribe",
    "SurveyMachine",
    "TopicView",
    "TowerView",
    "TowersHeard",
    "TowersSilent",
    "TrustEvent",
    "Unsubscribe",
]
