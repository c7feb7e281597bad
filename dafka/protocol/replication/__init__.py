"""Replicated logs: which broker leads a log, on which brokers it is kept, and how its branches are related."""

from dafka.protocol.rendezvous import rank_nodes
from dafka.protocol.replication.actions import (
    Acknowledge,
    Lead,
    MoveHighWatermark,
    ReplicaAction,
    StepDown,
    WriteControl,
)
from dafka.protocol.replication.balancing import Balancer, BalancerSettings, PlacedLog, Reason, ReplicaChange
from dafka.protocol.replication.branch_table import BranchTable
from dafka.protocol.replication.brokers import (
    BROKERS_TOPIC,
    BrokerDescription,
    Brokers,
    decode_broker,
    encode_broker,
)
from dafka.protocol.replication.placement import BrokerSpace, choose_replicas
from dafka.protocol.replication.records import (
    BRANCHES_TOPIC,
    EPOCH_STEP,
    NO_BRANCH,
    NO_TIP,
    Branch,
    BranchRow,
    Claim,
    ControlRecord,
    Promise,
    Tip,
    decode_control,
    encode_control,
    next_epoch,
)
from dafka.protocol.replication.replica import Replica
from dafka.protocol.replication.settings import Availability, ReplicaSettings

__all__ = [
    "BRANCHES_TOPIC",
    "BROKERS_TOPIC",
    "EPOCH_STEP",
    "NO_BRANCH",
    "NO_TIP",
    "Acknowledge",
    "Availability",
    "Balancer",
    "BalancerSettings",
    "Branch",
    "BranchRow",
    "BranchTable",
    "BrokerDescription",
    "BrokerSpace",
    "Brokers",
    "Claim",
    "ControlRecord",
    "Lead",
    "MoveHighWatermark",
    "PlacedLog",
    "Promise",
    "Reason",
    "Replica",
    "ReplicaAction",
    "ReplicaChange",
    "ReplicaSettings",
    "StepDown",
    "Tip",
    "WriteControl",
    "choose_replicas",
    "decode_broker",
    "decode_control",
    "encode_broker",
    "encode_control",
    "next_epoch",
    "rank_nodes",
]
