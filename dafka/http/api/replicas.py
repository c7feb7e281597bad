"""Describes brokers, replicas and leader epochs for the console and for operators' programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from dafka.broker.broker import Broker
from dafka.broker.core.log.log import Log
from dafka.broker.core.metadata.brokers import BrokerRegistration
from dafka.broker.core.replication.records import NO_EPOCH, EpochStart
from dafka.broker.node import BrokerNode


def number_of(node: BrokerNode, address: str) -> int | None:
    """Return the number of a broker; None if the broker is not known."""
    found = node.brokers.find(address)
    return None if found is None else found.number


def numbers_of(node: BrokerNode, addresses: Iterable[str]) -> list[int]:
    """Return the numbers of the known brokers among these."""
    return [number for each in addresses if (number := number_of(node, each)) is not None]


def describe_leadership(node: BrokerNode, log: Log) -> dict[str, Any]:
    """Return the leader and the replicas of a log. Only the leader knows which replicas are in sync."""
    leadership = log.leadership
    return {
        "leader": number_of(node, leadership.leader) if leadership.leader else None,
        "leader_epoch": leadership.epoch,
        "replicas": numbers_of(node, leadership.replicas),
        "in_sync": numbers_of(node, leadership.in_sync) if leadership.is_led else None,
    }


def describe_brokers(broker: Broker) -> list[dict[str, Any]]:
    """Return all brokers of the cluster by number, with how many logs each leads and stores."""
    node = broker.node
    led: Counter[str] = Counter()
    kept: Counter[str] = Counter()
    needed: Counter[str] = Counter()
    usable = {each.address for each in node.brokers.living() if not each.is_draining}
    for log in node.log_table.all_logs():
        leadership = log.leadership
        led[leadership.leader] += 1
        kept.update(leadership.replicas)
        wanted = min(_replica_count(broker, log), len(usable))
        if len(usable.intersection(leadership.replicas)) < wanted:
            needed.update(leadership.replicas)
    return [_describe(node, each, led, kept, needed) for each in node.brokers.all()]


def _describe(
    node: BrokerNode, each: BrokerRegistration, led: Counter[str], kept: Counter[str], needed: Counter[str]
) -> dict[str, Any]:
    address, is_here = each.address, each.address == node.address
    is_drained = each.is_draining and not led[address] and not needed[address]
    return {
        "number": each.number,
        "address": address,
        "is_self": is_here,
        "is_alive": node.brokers.is_alive(address),
        "rack": each.rack,
        "kafka_listener": each.kafka_listener,
        "http_url": each.http_url,
        "free_bytes": each.free_bytes,
        "is_draining": each.is_draining,
        "is_drained": is_drained,
        "logs_led": led[address],
        "replicas": kept[address],
        "under_replicated_logs": len(node.replicator.reassigner.under_replicated()) if is_here else None,
    }


def describe_moves(node: BrokerNode) -> list[dict[str, Any]]:
    """Return the logs that are being moved to other replicas, each with the reason as text."""
    found = []
    for log in node.log_table.all_logs():
        reason = node.replicator.reassigner.explain(log.topic, log.number)
        if reason is not None:
            found.append(
                {
                    "topic": log.topic,
                    "log": log.number,
                    "replicas": numbers_of(node, log.leadership.replicas),
                    "learners": numbers_of(node, log.leadership.learners),
                    "reason": reason.value,
                }
            )
    return found


def _replica_count(broker: Broker, log: Log) -> int:
    topic = broker.node.log_table.topics.get(log.topic)
    return (topic.replica_count if topic is not None else 0) or broker.config.broker.replicas


def count_leaderless(node: BrokerNode) -> int:
    """Return how many logs have no leader at present."""
    return sum(not log.leadership.leader for log in node.log_table.all_logs())


def find_broker_problems(node: BrokerNode) -> Iterator[str]:
    """Yield a sentence for each problem of the cluster's brokers and their logs."""
    for each in node.brokers.all():
        if not node.brokers.is_alive(each.address):
            where = each.http_url or each.kafka_listener
            yield f"broker {each.number}{' at ' * bool(where)}{where} is not heard"
    under_replicated = node.replicator.reassigner.under_replicated()
    if under_replicated:
        first = under_replicated[0]
        yield (
            f"{len(under_replicated)} logs that this broker leads are kept by too few living brokers, such as log "
            f"{first.number} of {first.topic}"
        )
    leaderless = count_leaderless(node)
    if leaderless:
        yield f"{leaderless} logs have no leader at present: nobody can publish to them"
    orphans = node.inventory.orphans()
    if orphans:
        yield (
            f"{len(orphans)} partitions with {sum(orphans.values())} records belong to no topic that this broker "
            f"knows, such as {next(iter(orphans))}: they are kept, and nobody reads them"
        )


def describe_epochs(node: BrokerNode, epoch_starts: Sequence[EpochStart]) -> list[dict[str, Any]]:
    """Return the leader epochs of a log as JSON objects.

    Their flags: `first` has no parent; `fork` has the same parent as another epoch, so both had their own records;
    `latest` is the largest epoch.
    """
    parents = Counter(
        epoch_start.parent.leader_epoch for epoch_start in epoch_starts if epoch_start.parent.leader_epoch != NO_EPOCH
    )
    found = []
    for epoch_start in epoch_starts:
        old = epoch_start.parent.leader_epoch
        flags = []
        if old == NO_EPOCH:
            flags.append("first")
        elif parents[old] > 1:
            flags.append("fork")
        if epoch_start is epoch_starts[-1]:
            flags.append("latest")
        found.append(
            {
                "epoch": epoch_start.leader_epoch.epoch,
                "leader": number_of(node, epoch_start.leader_epoch.leader),
                "leader_address": epoch_start.leader_epoch.leader,
                "old_epoch": None if old == NO_EPOCH else old.epoch,
                "old_leader": None if old == NO_EPOCH else number_of(node, old.leader),
                "old_leader_address": "" if old == NO_EPOCH else old.leader,
                "old_end_offset": epoch_start.parent.end_offset,
                "start_offset": epoch_start.parent.end_offset,
                "replicas": numbers_of(node, epoch_start.replicas),
                "flags": flags,
            }
        )
    return found
