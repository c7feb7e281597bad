"""The state machines of RFC 46: messages and the time go in, actions come out. No sockets, no sleeping, no threads.

Other layers import these names from here. All other names of the package are internal.
"""

from dafka.protocol.actions import ResetPosition, SendToTower, SubscribeAtTower, UnsubscribeAtTower
from dafka.protocol.answering.fetch_responder import FetchResponder, ReadRequest
from dafka.protocol.answering.position_responder import PositionResponder, PositionSearch
from dafka.protocol.events import (
    DialectAdopted,
    Event,
    FetchUnanswered,
    ForeignDialect,
    PartitionReplaced,
    PartitionsAssigned,
    PartitionSilent,
    PartitionsLost,
    PartitionsRevoked,
    PeerJoined,
    PeerLeft,
    RecordsUnrecoverable,
    StoresSilent,
    TowerHostUnresolved,
    TowersHeard,
    TowersSilent,
)
from dafka.protocol.machines.commit_queue import CommitQueue, DeletePartitions, ForgetPartitions
from dafka.protocol.machines.consumer import ConsumerMachine
from dafka.protocol.machines.delivery import DeliveryBuffer
from dafka.protocol.machines.node import Machine, Node, NodeCallbacks
from dafka.protocol.machines.producer import ProducerMachine
from dafka.protocol.machines.reader import ReaderMachine
from dafka.protocol.machines.store import StoreMachine
from dafka.protocol.machines.tower import TowerMachine
from dafka.protocol.observer.cluster_survey import ClusterSurvey, NodeView, PartitionView
from dafka.protocol.observer.survey_machine import SurveyMachine
from dafka.protocol.ordering.buffers import BatchBuffer
from dafka.protocol.ordering.held_end import Incomplete
from dafka.protocol.presence.beacons import BeaconAction, BeaconMachine, DiscoveryEvent, Settled
from dafka.protocol.presence.dialect import DialectChoice
from dafka.protocol.presence.identity import EndpointIdentity, KeyIdentity, PeerIdentity
from dafka.protocol.presence.subscribers import HeadListeners
from dafka.protocol.store_events import (
    PartitionHalted,
    RecordsCompacted,
    RecordsDropped,
    RecordsMissing,
    StorageFailed,
    StorageLost,
    StorageRepaired,
    StoreFull,
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
    "BatchBuffer",
    "BeaconAction",
    "BeaconMachine",
    "ClusterSurvey",
    "CommitQueue",
    "ConsumerMachine",
    "DeletePartitions",
    "DeliveryBuffer",
    "DialectAdopted",
    "DialectChoice",
    "DiscoveryEvent",
    "EndpointIdentity",
    "EndpointsExposed",
    "Event",
    "FetchResponder",
    "FetchUnanswered",
    "ForeignDialect",
    "ForgetPartitions",
    "HeadListeners",
    "Incomplete",
    "IntroducedAtLoopback",
    "KeyIdentity",
    "LoopbackOnly",
    "Machine",
    "Node",
    "NodeCallbacks",
    "NodeView",
    "PartitionHalted",
    "PartitionReplaced",
    "PartitionSilent",
    "PartitionView",
    "PartitionsAssigned",
    "PartitionsLost",
    "PartitionsRevoked",
    "PeerIdentity",
    "PeerJoined",
    "PeerLeft",
    "PeerNotAuthorized",
    "PeerRefused",
    "PositionResponder",
    "PositionSearch",
    "ProducerMachine",
    "ReadRequest",
    "ReaderMachine",
    "RecordsCompacted",
    "RecordsDropped",
    "RecordsMissing",
    "RecordsUnrecoverable",
    "RefusedByPeer",
    "ResetPosition",
    "SendToTower",
    "Settled",
    "StorageFailed",
    "StorageLost",
    "StorageRepaired",
    "StoreFull",
    "StoreMachine",
    "StoresSilent",
    "SubscribeAtTower",
    "SurveyMachine",
    "TowerHostAmbiguous",
    "TowerHostUnresolved",
    "TowerMachine",
    "TowersHeard",
    "TowersSilent",
    "UnsubscribeAtTower",
]
