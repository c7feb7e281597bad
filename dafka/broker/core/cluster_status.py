"""The state of a cluster, as an administrator sees it at one broker."""

from __future__ import annotations

import shlex
from math import isfinite

import attrs

from dafka.broker.core.log.log import Log
from dafka.broker.core.metadata.brokers import Brokers
from dafka.broker.core.metadata.cluster_state import METADATA_TOPIC
from dafka.broker.core.metadata.leader_and_isr import LeaderAndIsr
from dafka.broker.core.metadata.registered_brokers import RegisteredBroker
from dafka.broker.core.partition_address import name_log
from dafka.broker.core.positions import FIRST_OFFSET, Offset
from dafka.broker.core.tables import BrokerTables


@attrs.frozen
class MetadataQuorum:
    """The brokers that vote on metadata, and how far one broker has applied the log of metadata.

    Attributes:
        controller: The address of the controller; empty if none is heard.
        voters: Whether each voter is heard, by address.
        committed: The offset up to which the log is known to be committed.
        applied: The offset up to which its commands are applied at this broker.
    """

    controller: str = ""
    voters: dict[str, bool] = attrs.field(factory=dict)
    committed: Offset = FIRST_OFFSET
    applied: Offset = FIRST_OFFSET

    @property
    def heard(self) -> int:
        """How many voters are heard."""
        return sum(self.voters.values())

    @property
    def needed(self) -> int:
        """How many voters a change of the cluster needs."""
        return len(self.voters) // 2 + 1

    @property
    def outdated_reason(self) -> str:
        """Why the broker may not know the latest changes of its cluster; empty if it does, or belongs to none yet."""
        if not self.voters or self.heard >= self.needed:
            return ""
        return f"this broker may not know the latest changes of the cluster ({self}): nothing is changed; try again"

    def __str__(self) -> str:
        return (
            f"{self.heard} of the {len(self.voters)} brokers that vote on metadata are heard, {self.needed} are needed"
        )


def describe_quorum(tables: BrokerTables, now: float) -> MetadataQuorum | None:
    """Return the quorum of metadata at a time of the brokers' clock; None if this broker belongs to no cluster yet."""
    replicated, log = tables.find_metadata(), tables.log_table.find_log(METADATA_TOPIC, 0)
    if replicated is None or log is None:
        return None
    brokers, leader = tables.brokers, log.leadership.leader
    return MetadataQuorum(
        leader if brokers.is_heard(leader, now) else "",
        {each: brokers.is_heard(each, now) for each in replicated.replica.latest.voters},
        log.high_watermark,
        tables.state.applied,
    )


@attrs.frozen
class MetadataReplica:
    """A broker that has the log of metadata, as far as another broker knows. Unknown numbers are -1.

    Attributes:
        address: Its address.
        number: Its number.
        is_voter: Whether it votes on metadata.
        end_offset: The offset up to which it stores the log.
        silent_ms: For how long it has not been heard.
        behind_ms: For how long it has not had all of the log.
    """

    address: str
    number: int
    is_voter: bool
    end_offset: int
    silent_ms: int
    behind_ms: int


def describe_metadata_replicas(tables: BrokerTables, now: float) -> list[MetadataReplica]:
    """Return the registered brokers, by number, at a time of the brokers' clock; none without a log of metadata."""
    replicated, log = tables.find_metadata(), tables.log_table.find_log(METADATA_TOPIC, 0)
    if replicated is None or log is None:
        return []
    replica, brokers, found = replicated.replica, tables.brokers, []
    for address, each in tables.state.brokers.items():
        is_own, is_leader = address == brokers.own.address, address == log.leadership.leader
        end = log.index.end_offset if is_own else replica.acknowledged_end(address)
        found.append(
            MetadataReplica(
                address,
                each.number,
                address in replica.latest.voters,
                end,
                0 if is_own else _milliseconds(brokers.silent_s(address, now)),
                0 if is_leader or end >= log.index.end_offset else _milliseconds(replica.behind_s(address)),
            )
        )
    return sorted(found, key=lambda each: each.number)


def _milliseconds(seconds: float) -> int:
    return round(1000 * max(seconds, 0.0)) if isfinite(seconds) else -1


def explain_leaderless(log: Log, tables: BrokerTables) -> str:
    """Return why a log has no leader, and the command that continues it if an administrator has to decide.

    If all brokers that have stored the log are forgotten, it can only continue without records.
    """
    registered, brokers = tables.state.brokers, tables.brokers
    voters = log.leadership.voters
    silent = sorted(registered[each].number for each in voters if each in registered and not brokers.is_alive(each))
    forgotten = sum(each not in registered for each in voters)
    reasons = [f"broker {each} is not heard" for each in silent]
    if forgotten:
        reasons.append(f"{forgotten} of its {len(voters)} voters {'has' if forgotten == 1 else 'have'} been forgotten")
    if 2 * forgotten >= len(voters) > 0:
        holders, present = find_holders(log, tables), set(log.leadership.replicas)
        usable = [each for each in holders or registered.values() if brokers.is_alive(each.store_id)]
        # A former replica can be without the latest records.
        usable.sort(key=lambda each: (present.isdisjoint((each.store_id, *each.former_ids)), each.number))
        if usable:
            command = f"dafka topic recover {shlex.quote(log.topic)} --log {log.number} --from {usable[0].number}"
            reasons.append(f"`{command}` continues it {'with what that broker has' if holders else 'without records'}")
    return ", ".join(reasons) or "its replicas elect one"


def find_holders(log: Log, tables: BrokerTables) -> list[RegisteredBroker]:
    """Return the brokers that store a log, or have stored it, and are not forgotten."""
    replicated = tables.logs.find(name_log(tables.log_table.topics[log.topic].topic_id, log.number))
    if replicated is None:
        return []
    has_replica = replicated.replica.epoch_tree.has_replica
    return [each for each in tables.state.brokers.values() if any(map(has_replica, (each.store_id, *each.former_ids)))]


def explain_under_replication(name: str, log: LeaderAndIsr, wanted: int, brokers: Brokers) -> str:
    """Return why the log with a name has fewer living replicas in sync than wanted, as its leader knows."""
    reasons = [
        f"broker {each.number} has damaged records of it" for each in brokers.living() if name in each.damaged_logs
    ]
    for each in log.replicas:
        found = brokers.find(each)
        if found is None:
            reasons.append("a forgotten broker is not replaced yet")
            continue
        named = f"broker {found.number}"
        if not brokers.is_alive(each):
            reasons.append(f"{named} is not heard")
        elif each in log.learners:
            reasons.append(f"{named} still copies it")
        elif each not in log.in_sync:
            reasons.append(f"{named} is catching up")
    if len(log.replicas) < wanted:
        reasons.append(f"it has {len(log.replicas)} of {wanted} replicas")
    return ", ".join(reasons)
