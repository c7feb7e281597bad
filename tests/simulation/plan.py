"""The plan of one simulation: its nodes, their settings, and the faults. A seed determines the plan.

A plan is data. Shrinking removes parts of it, and printing it shows the history.
"""

from __future__ import annotations

import random

import attrs

from dafka.config import Config

TOPICS = ("orders", "orders2")
"""One topic is a prefix of the other, so that ZeroMQ delivers both to a subscriber of the first."""

FORGET_AFTER_MS = 15_000
"""How long stores wait before they forget a partition, in plans in which they do: longer than any fault."""


REPEATED_S = 36.0
"""Seconds after which nodes have repeated everything that they tell each other when they connect."""


@attrs.frozen
class Member:
    """A node of the plan.

    It starts at `joins`. The other options depend on its role: a producer with a `spool` keeps its partition after a
    restart, and a consumer may save its positions (`saves`) and begin at a time (`since`). `lag` and `pace` are the
    seconds that a node takes for messages, and a consumer's program for a batch.
    """

    name: str
    role: str
    joins: float = 0.0
    topics: tuple[str, ...] = ()
    spool: bool = False
    earliest: bool = True
    saves: bool = False
    since: float | None = None
    fixed_port: bool = False
    lag: float = 0.0
    pace: float = 0.0
    queue_max: int = 1_000_000

    def __str__(self) -> str:
        words = [f"{self.role} {self.name}"]
        words += [f"joins at {self.joins:.2f} s"] if self.joins else []
        words += [f"topic {', '.join(self.topics)}"] if self.topics else []
        words += ["spool"] if self.spool else []
        words += [("earliest" if self.earliest else "latest")] if self.role == "consumer" else []
        words += [f"since {self.since:.3f} s"] if self.since is not None else []
        words += ["saves positions"] if self.saves else []
        words += ["same port after a restart"] if self.fixed_port else []
        words += [f"looks every {self.lag:.3f} s"] if self.lag else []
        words += [f"program takes {self.pace:.3f} s a run"] if self.pace else []
        words += [f"queues {self.queue_max} messages a peer"] if self.queue_max < 1_000_000 else []
        return ", ".join(words)


@attrs.frozen
class Step:
    """A fault or an action, with its time, its nodes and its duration."""

    time: float
    kind: str
    who: tuple[str, ...] = ()
    seconds: float = 0.0
    amount: float = 0.0

    def __str__(self) -> str:
        words = [f"{self.time:7.3f} s", self.kind, " ".join(self.who)]
        words += [f"for {self.seconds:.3f} s"] if self.seconds else []
        words += [f"({self.amount:g})"] if self.amount else []
        return " ".join(word for word in words if word)


@attrs.frozen
class Plan:
    """One simulation. `draw_seed` determines what the plan leaves open: delays, and which messages are lost."""

    draw_seed: int
    config: Config
    members: tuple[Member, ...]
    steps: tuple[Step, ...]
    chunk_records_max: int
    disk_s: float
    second_network: bool = False

    @property
    def names(self) -> list[str]:
        return [member.name for member in self.members]

    @property
    def producers(self) -> list[str]:
        return [member.name for member in self.members if member.role == "producer"]

    @property
    def is_calm(self) -> bool:
        return all(step.kind in ("publish", "save positions") for step in self.steps)

    @property
    def forgets(self) -> bool:
        """Whether partitions that have ended are forgotten within the simulated time."""
        return self.config.store.forget_empty_after_ms == FORGET_AFTER_MS

    @property
    def ends(self) -> float:
        ends = [step.time + step.seconds for step in self.steps] + [member.joins for member in self.members]
        return max(ends, default=0.0)

    def __str__(self) -> str:
        lines = [str(member) for member in self.members] + [str(step) for step in self.steps]
        return "\n".join(lines)


def make_plan(seed: int) -> Plan:
    """Return the plan of a seed. It is the same on every machine and in every process."""
    draw = random.Random(seed)
    members = _make_members(draw)
    duration = draw.choice((1.0, 2.0, 4.0, 6.0))
    steps = _make_work(draw, members, duration)
    if draw.random() < 0.9:
        steps += _make_faults(draw, members, duration)
    if draw.random() < 0.3:
        steps += _make_misfortune(draw, members)
    # Drawn from numbers of their own, so that the other parts of a seed's plan do not depend on these faults.
    rare = random.Random(f"unseen producer {seed}")
    if rare.random() < 0.1:
        steps += _make_unseen_producer(rare, members)
    members = _begin_at_times(random.Random(f"since {seed}"), members, duration)
    stores = sum(member.role == "store" for member in members)
    return Plan(
        draw_seed=draw.getrandbits(48),
        config=_make_config(draw, stores, forgets=random.Random(seed + 1).random() < 0.7),
        members=tuple(members),
        steps=tuple(sorted(steps, key=lambda step: step.time)),
        chunk_records_max=draw.choice((3, 20, 200)),
        disk_s=draw.choice((0.001, 0.005, 0.05)),
        second_network=draw.random() < 0.2,
    )


def _make_members(draw: random.Random) -> list[Member]:
    members = [Member(f"T{number}", "tower") for number in range(1, draw.choice((1, 1, 2)) + 1)]
    for number in range(1, draw.choice((1, 1, 2, 3)) + 1):
        topic = TOPICS[0] if draw.random() < 0.7 else TOPICS[1]
        members.append(_member(draw, f"P{number}", "producer", topics=(topic,), spool=draw.random() < 0.4))
    stores = draw.choice((0, 1, 1, 1, 2, 2, 3))
    members.extend(_member(draw, f"S{number}", "store") for number in range(1, stores + 1))
    for number in range(1, draw.choice((0, 1, 1, 2)) + 1):
        topics = draw.choice((TOPICS[:1], TOPICS[:1], TOPICS[1:], TOPICS))
        is_slow = draw.random() < 0.2
        members.append(
            _member(
                draw,
                f"C{number}",
                "consumer",
                topics=topics,
                earliest=draw.random() < 0.7,
                saves=draw.random() < 0.4,
                pace=draw.choice((0.02, 0.1)) if is_slow else 0.0,
            )
        )
    return members


def _member(draw: random.Random, name: str, role: str, **options: object) -> Member:
    return Member(
        name,
        role,
        joins=round(draw.uniform(0.0, 3.0), 3) if draw.random() < 0.4 else 0.0,
        fixed_port=draw.random() < 0.5,
        lag=draw.choice((0.01, 0.05)) if draw.random() < 0.15 else 0.0,
        queue_max=draw.choice((20, 100)) if draw.random() < 0.1 else 1_000_000,
        **options,  # type: ignore[arg-type]
    )


def _make_work(draw: random.Random, members: list[Member], duration: float) -> list[Step]:
    steps = []
    for member in members:
        if member.role == "producer":
            for _ in range(draw.choice((1, 2, 4))):
                time = member.joins + (0.0 if draw.random() < 0.3 else draw.uniform(0, duration))
                steps.append(Step(round(time, 3), "publish", (member.name,), amount=draw.choice((1, 3, 20, 80))))
        if member.role == "consumer" and member.saves:
            times = [round(member.joins + draw.uniform(0, duration), 3) for _ in range(2)]
            steps += [Step(time, "save positions", (member.name,)) for time in times]
    return steps


_FAULTS = {
    "crash": ("producer", "store", "consumer"),
    "stop": ("producer", "store", "consumer"),
    "pause": ("producer", "store", "consumer"),
    "die": ("producer", "consumer"),
    "cut": ("producer", "store", "consumer", "tower"),
    "stall": ("producer", "store", "consumer", "tower"),
    "reset": ("producer", "store", "consumer"),
    "tower down": ("tower",),
    "disk full": ("store",),
    "disk slow": ("store",),
    "clock jump": ("store",),
    "cut link": ("producer", "store", "consumer", "tower"),
    "stall link": ("producer", "store", "consumer"),
    "loss": (),
    "repeat": (),
    "slow network": (),
    "unsubscribe": ("consumer",),
}


_OF_TWO = ("reset", "cut link", "stall link")
"""Faults between two nodes."""

_AMOUNTS = {"loss": (0.02, 0.2, 0.6), "repeat": (0.02, 0.2, 0.6), "slow network": (10, 50)}
"""By fault, the share of messages that is lost or repeated, or the factor by which everything is slower."""


def _make_faults(draw: random.Random, members: list[Member], duration: float) -> list[Step]:
    kinds = draw.sample(list(_FAULTS), draw.choice((1, 2, 3)))
    steps = []
    for _ in range(draw.choice((1, 2, 3, 5))):
        kind = draw.choice(kinds)
        steps += _make_fault(draw, kind, members, duration)
    return steps


def _make_misfortune(draw: random.Random, members: list[Member]) -> list[Step]:
    """Return faults that are worse together: a producer ends while a node that lacks its last records is away."""
    producers = [member.name for member in members if member.role == "producer"]
    others = [member.name for member in members if member.role in ("store", "consumer")]
    if not others:
        return []
    time = round(draw.uniform(0.2, 4.0), 3)
    producer, other = draw.choice(producers), draw.choice(others)
    kind = draw.choice(("cut", "stall", "pause", "crash", "disk full", "loss", "reset"))
    away = Step(time, kind, (other,), seconds=round(draw.uniform(1.0, 8.0), 3))
    if kind == "loss":
        away = attrs.evolve(away, who=(), amount=0.6)
    elif kind == "reset":
        away = attrs.evolve(away, who=(producer, other), seconds=0.0)
    last = Step(round(time + draw.uniform(-0.02, 0.2), 3), "publish", (producer,), amount=draw.choice((1, 20)))
    death = Step(round(time + draw.choice((0.1, 0.3, 1.0)), 3), "die", (producer,))
    link = Step(round(time + 0.01, 3), "cut link", (producer, other), seconds=round(draw.uniform(0.5, 5.0), 3))
    return [away, last, *([death] if draw.random() < 0.7 else []), *([link] if draw.random() < 0.5 else [])]


def _make_unseen_producer(draw: random.Random, members: list[Member]) -> list[Step]:
    """Return the only life of a producer, of which another node, cut from the towers, does not hear.

    The connections of that node last. At times a store is paused when the producer dies, so that it loses and finds
    nodes whose connections last. The producer in `members` is changed: it joins when the other node is cut.
    """
    towers = [member.name for member in members if member.role == "tower"]
    stores = [member.name for member in members if member.role == "store"]
    others = [member.name for member in members if member.role in ("store", "consumer")]
    if not stores:
        return []
    producer = draw.choice([member for member in members if member.role == "producer"])
    other = draw.choice(others)
    wait = draw.choice((1.0, REPEATED_S))
    time = round(max(member.joins for member in members) + wait * draw.uniform(1.0, 1.1), 3)
    joins = round(time + 0.02, 3)
    members[members.index(producer)] = attrs.evolve(producer, joins=joins, spool=False)
    steps = [Step(time, "cut link", (other, tower), seconds=round(draw.uniform(2.5, 5.0), 3)) for tower in towers]
    steps.append(Step(round(joins + 0.3, 3), "publish", (producer.name,), amount=draw.choice((1, 20))))
    death = round(joins + draw.uniform(1.2, 2.5), 3)
    steps.append(Step(death, "die", (producer.name,)))
    if draw.random() < 0.5:
        paused = draw.choice(stores)
        seconds = round(draw.uniform(1.0, 5.0), 3)
        steps.append(Step(round(death - draw.uniform(0.0, 0.5), 3), "pause", (paused,), seconds=seconds))
    return steps


def _begin_at_times(draw: random.Random, members: list[Member], duration: float) -> list[Member]:
    found = []
    for member in members:
        begins = member.role == "consumer" and draw.random() < 0.15
        since = round(draw.uniform(0, member.joins + duration), 3)
        found.append(attrs.evolve(member, since=since, earliest=True) if begins else member)
    return found


def _make_fault(draw: random.Random, kind: str, members: list[Member], duration: float) -> list[Step]:
    candidates = [member.name for member in members if member.role in _FAULTS[kind]]
    time = round(draw.uniform(0, duration), 3)
    seconds = round(draw.choice((0.05, 0.3, 1.0, 3.0, 6.0)) * draw.uniform(0.5, 1.0), 3)
    if kind in _AMOUNTS:
        return [Step(time, kind, seconds=seconds, amount=draw.choice(_AMOUNTS[kind]))]
    if len(candidates) < (2 if kind in _OF_TWO else 1):
        return []
    if kind in ("cut", "stall"):
        count = 1 if draw.random() < 0.5 or len(candidates) < 4 else draw.randint(1, len(candidates) // 2)
        return [Step(time, kind, tuple(draw.sample(candidates, count)), seconds=seconds)]
    if kind in _OF_TWO:
        return [Step(time, kind, tuple(draw.sample(candidates, 2)), seconds=0.0 if kind == "reset" else seconds)]
    who = (draw.choice(candidates),)
    if kind == "clock jump":
        return [Step(time, kind, who, amount=draw.choice((-3_600_000, -5_000, 5_000, 3_600_000)))]
    return [Step(time, kind, who, seconds=0.0 if kind == "die" else seconds)]


def _make_config(draw: random.Random, stores: int, *, forgets: bool) -> Config:
    defaults = Config()

    def small(default: int, chance: float, *values: int) -> int:
        return draw.choice(values) if draw.random() < chance else default

    retention = draw.random() < 0.15
    return (
        Config()
        .with_fetch(
            page_records_first=draw.choice((1, 8, 50, 1000)),
            page_records_max=draw.choice((8, 100, 40_000)),
            partitions_max=small(defaults.fetch.partitions_max, 0.2, 1, 2),
            replies_max=small(defaults.fetch.replies_max, 0.1, 2, 5),
            ahead_bytes_max=small(defaults.fetch.ahead_bytes_max, 0.2, 0, 2000),
        )
        .with_producer(
            min_stores=draw.choice((1, 1, 1, min(2, max(stores, 1)), 0)),
            unacknowledged_records_max=small(defaults.producer.unacknowledged_records_max, 0.2, 5, 50),
        )
        .with_consumer(buffer_bytes_max=small(defaults.consumer.buffer_bytes_max, 0.2, 500, 4000))
        .with_store(
            pending_bytes_max=small(defaults.store.pending_bytes_max, 0.2, 500, 4000),
            retention_records=draw.choice((5, 30)) if retention and draw.random() < 0.6 else 0,
            retention_ms=2000 if retention else 0,
            retention_interval_ms=700,
            retry_ms=draw.choice((100, 1000)),
            forget_empty_after_ms=FORGET_AFTER_MS if retention and forgets else defaults.store.forget_empty_after_ms,
        )
    )
