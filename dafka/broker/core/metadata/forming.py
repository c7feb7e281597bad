"""What a broker that belongs to no cluster does next: it joins one that it sees, forms one, or waits.

Of the brokers that see each other and belong to no cluster, the one with the smallest store id forms a cluster of one.
The others join it. Clients are served when as many brokers have joined as the cluster begins with.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import attrs

from dafka.broker.core.metadata.brokers import BrokerRegistration

SEEN_S = 1.0
"""Seconds within which a broker that has just started has seen the others."""

LOOKED_S = 3.0
"""Seconds after which a broker has seen the brokers of all clusters that its towers introduce."""


@attrs.frozen
class Form:
    """Form a cluster of one."""


@attrs.frozen
class Join:
    """Join a cluster."""

    cluster_id: str
    first_voters: tuple[str, ...]


@attrs.frozen
class Wait:
    """Wait, for this reason."""

    reason: str


@attrs.frozen
class Refuse:
    """Do not start: an operator has to decide, as the reason says."""

    reason: str


Step: TypeAlias = Form | Join | Wait | Refuse


def choose_step(
    own: BrokerRegistration,
    others: Iterable[BrokerRegistration],
    cluster_id: str = "",
    waited_s: float = 0.0,
) -> Step:
    """Return what a broker that belongs to no cluster does, given the other living brokers that it sees.

    `cluster_id` is the cluster that an operator has chosen; empty to join the only one. The broker has looked for
    others for `waited_s` seconds. One that has just started is refused for a mistake that others also see, because they
    can have waited for long.
    """
    seen = list(others)
    clusters = {each.cluster_id: each for each in seen if each.cluster_id}
    opened = {each.cluster_id: each for each in seen if each.cluster_id and each.is_open}
    if cluster_id:
        chosen = opened.get(cluster_id) or clusters.get(cluster_id)
        return _miss(cluster_id, clusters, waited_s) if chosen is None else _join(chosen)
    if len(opened) > 1:
        return Refuse(f"there are several clusters, {' and '.join(sorted(opened))}: choose one with --cluster")
    if opened:
        return _join(next(iter(opened.values())))
    if clusters:
        return _join(min(clusters.values(), key=lambda each: (each.first_voters, each.cluster_id)))
    counts = sorted({each.initial_brokers for each in (own, *seen)})
    if len(counts) > 1:
        found = f"{' and '.join(map(str, counts))}: start them with the same number"
        return (Refuse if waited_s < SEEN_S else Wait)(
            f"brokers without a cluster have different numbers of initial brokers, {found}"
        )
    return _form(own, [own, *seen])


def _miss(cluster_id: str, seen: Iterable[str], waited_s: float) -> Step:
    """Return what a broker does that does not see the chosen cluster, but perhaps others."""
    found = " and ".join(sorted(seen))
    if not found or waited_s < LOOKED_S:
        return Wait(f"it waits for a broker of the cluster {cluster_id}")
    return Refuse(f"no broker of the cluster {cluster_id} is seen, but brokers of {found}: choose one with --cluster")


def _form(own: BrokerRegistration, brokers: Sequence[BrokerRegistration]) -> Step:
    """Return what a broker does with others that belong to no cluster either."""
    if len(brokers) < own.initial_brokers:
        return Wait(
            f"it waits for {own.initial_brokers - len(brokers)} of {own.initial_brokers} brokers to form a cluster"
        )
    founder = min(each.address for each in brokers)
    return Form() if founder == own.address else Wait(f"it waits for the broker {founder} to form a cluster")


def _join(broker: BrokerRegistration) -> Join:
    return Join(broker.cluster_id, broker.first_voters)
