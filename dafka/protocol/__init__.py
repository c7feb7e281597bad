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
from dafka.protocol.peers import Change, Peers
from dafka.protocol.producer import ProducerMachine
from dafka.protocol.reader import ReaderMachine
from dafka.protocol.replies import Reply, ReplyQueue
from dafka.protocol.senders import Senders
from dafka.protocol.spooling import SpoolTrim
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
    "HOSTILE",
    "Action",
    "Answers",
    "Append",
    "AuthorisedKept",
    "Beacons",
    "Change",
    "Chunk",
    "ClaimRefused",
    "Claims",
    "Commits",
    "ConsumerMachine",
    "Deliver",
    "Delivery",
    "Driver",
    "Event",
    "Exposed",
    "FetchUnanswered",
    "ForeignDialect",
    "HandshakeRefused",
    "Introductions",
    "Lacking",
    "Links",
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
    "Report",
    "RunBuffer",
    "SendBeacon",
    "Senders",
    "Settled",
    "Skip",
    "SpoolTrim",
    "StorageFailed",
    "StorageRecovered",
    "StorageRepaired",
    "StoreMachine",
    "StoresHeard",
    "StoresSilent",
    "StrangerRefused",
    "Subscribe",
    "Surroundings",
    "TowersHeard",
    "TowersSilent",
    "TrustEvent",
    "Unreachable",
    "Unsubscribe",
    "Work",
]
