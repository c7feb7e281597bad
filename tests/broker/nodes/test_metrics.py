"""Every metric of a broker counts what its name says, in random clusters."""

from __future__ import annotations

from collections import Counter
from random import Random
from types import SimpleNamespace
from typing import Any

from dafka.broker.core.cluster_status import MetadataQuorum
from dafka.broker.core.metadata.leader_and_isr import LeaderAndIsr
from dafka.broker.core.positions import Offset
from dafka.broker.metrics import COUNTERS, GAUGES, BrokerMetrics
from tests.seeds import each_seed


def read(metrics: BrokerMetrics) -> dict[tuple[str, ...], float]:
    """Return the values by the name, without its prefix, and the values of labels."""
    unused: Any = None
    samples = [each for family in metrics.read(unused) for each in family.samples]
    return {(each.name.removeprefix("dafka_broker_"), *each.labels.values()): each.value for each in samples}


@each_seed(50)
def test_every_metric_counts_what_its_name_says(seed: int) -> None:
    draw, now_ms, changed_ms, elections = Random(seed), 0, 0, 0
    epochs: dict[str, list[list[tuple[int, str]]]] = {"orders": [[], []], "visits": [[]]}
    seen: dict[tuple[str, int], int] = {}
    broker: Any = SimpleNamespace(
        address="a",
        epoch_starts=lambda name: [
            [SimpleNamespace(leader_epoch=SimpleNamespace(epoch=epoch, leader=leader)) for epoch, leader in starts]
            for starts in epochs[name]
        ],
    )
    memory: Any = SimpleNamespace()
    metrics = BrokerMetrics(broker, memory, lambda: now_ms)
    for _ in range(12):
        now_ms += 1234
        starts = draw.choice([each for named in epochs.values() for each in named])
        if draw.random() < 0.2:
            starts.clear()  # the topic is deleted
        elif draw.random() < 0.7:
            starts.append((starts[-1][0] + draw.randint(1, 3) if starts else 0, draw.choice("ab")))
        expected = draw_cluster(draw, broker, memory)
        found = read(metrics)
        for name, named in epochs.items():
            for number, each in enumerate(named):
                latest = each[-1][0] if each else 0
                if latest > seen.get((name, number), latest):
                    changed_ms = now_ms
                seen[name, number] = latest
        led = [epoch for named in epochs.values() for each in named for epoch, leader in each if leader == "a"]
        elections = max(elections, len([epoch for epoch in led if epoch > 0]))
        expected["leader_elections_total",] = elections
        expected["last_election_timestamp_seconds",] = changed_ms / 1000
        assert found == expected
    names = {f"dafka_broker_{name}".removesuffix("_total") for name, *_ in found}
    assert names == {*COUNTERS, *GAUGES}


def draw_cluster(draw: Random, broker: Any, memory: Any) -> dict[tuple[str, ...], float]:
    """Give a broker a random cluster, and return its metrics."""
    alive, brokers = set(draw.sample("abcd", draw.randint(1, 4))), draw.sample("abcd", draw.randint(1, 4))
    logs = [SimpleNamespace(topic=name) for name in ("orders", "orders", "visits")]
    for log in logs:
        leader = draw.choice(["a", "b", ""])
        log.leadership = LeaderAndIsr(leader, is_led=leader == "a", replicas=tuple(draw.sample("abc", 2)))
    voters = {each: draw.random() < 0.5 for each in draw.sample("abcd", draw.randint(0, 4))}
    committed, applied, controller = draw.randrange(9), draw.randrange(9), draw.choice(["", "b"])
    sizes = [draw.randrange(9) for _ in range(8)]
    is_active, is_draining = draw.random() < 0.5, draw.random() < 0.5
    vars(broker).update(
        brokers=SimpleNamespace(
            alive=alive,
            own=SimpleNamespace(is_draining=is_draining),
            all=lambda: [SimpleNamespace(address=each) for each in brokers],
        ),
        all_logs=lambda: logs,
        quorum=MetadataQuorum(controller, voters, Offset(committed), Offset(applied)),
        replicator=SimpleNamespace(reassigner=SimpleNamespace(under_replicated=lambda: range(sizes[0]))),
        damaged=SimpleNamespace(names=range(sizes[1])),
        inventory=SimpleNamespace(orphans=lambda: range(sizes[2])),
        controller=SimpleNamespace(is_active=is_active),
        messenger=SimpleNamespace(refused=Counter(MALFORMED=sizes[3])),
    )
    vars(memory).update(used_bytes=sizes[4], bytes_max=sizes[5], waiting=sizes[6], ended_holders=sizes[7])
    heard = [each for each, is_heard in voters.items() if is_heard]
    return {
        ("refused_messages_total", "MALFORMED"): sizes[3],
        ("memory_disconnected_clients_total",): sizes[7],
        ("brokers", "alive"): len(alive),
        ("brokers", "dead"): len({*brokers} - alive),
        ("logs_led",): len([log for log in logs if log.leadership.leader == "a"]),
        ("replicas",): len([log for log in logs if "a" in log.leadership.replicas]),
        ("under_replicated_logs",): sizes[0],
        ("leaderless_logs",): len([log for log in logs if log.leadership.leader == ""]),
        ("damaged_logs",): sizes[1],
        ("orphaned_partitions",): sizes[2],
        ("active_controller",): is_active,
        ("has_controller",): controller == "b",
        ("voters", "heard"): len(heard),
        ("voters", "silent"): len(voters.keys() - heard),
        ("metadata_lag",): committed - applied if committed > applied else 0,
        ("draining",): is_draining,
        ("memory_used_bytes",): sizes[4],
        ("memory_limit_bytes",): sizes[5],
        ("memory_waiting",): sizes[6],
    }
