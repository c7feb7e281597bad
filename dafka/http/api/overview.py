"""Route for the overview: a broker's contents, throughput and problems."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import trio
from msgspec import UNSET, UnsetType

from dafka.http.api.brokers import find_broker_problems
from dafka.http.api.cluster import find_metadata_problems
from dafka.http.api.registry import Parameter, RequiredPermission, Route
from dafka.http.server.documents import Count, Document, doc
from dafka.http.server.messages import Request
from dafka.http.server.storage_state import StorageUsage
from dafka.http.server.throughput import Rates, Totals
from dafka.protocol.observer.cluster_survey import ClusterSurvey, NodeState
from dafka.roles.statistics import StoreStatistics
from dafka.storage.plugin_helpers import now_ms
from dafka.text import counted

LAG_MAX = 1000
"""Lag, in records, above which a store is reported. Less is in flight."""

FREE_SHARE_MIN = 0.05
"""The share of a disk that must be free."""


class BrokerDetails(Document):
    """The broker that answers."""

    address: Annotated[str, doc("The broker's node address.")]
    endpoint: Annotated[str, doc("The endpoint that other nodes connect to.")]
    version: Annotated[str, doc("The version of dafka.")]
    started_at: Annotated[Count, doc("When it has begun to listen, in milliseconds since 1970.")]


class Counts(Document):
    """How many things the broker has."""

    topics: Annotated[Count, doc("Topics that the user may see.")]
    logs: Annotated[Count, doc("Their logs.")]
    groups: Annotated[Count, doc("Groups that the user may use.")]
    clients: Annotated[Count, doc("Clients that are connected to a listener of the broker.")]
    peers: Annotated[Count, doc("Nodes that the broker is connected to.")]


class Overview(Document):
    """The state of the broker."""

    time: Annotated[Count, doc("When this was measured, in milliseconds since 1970.")]
    broker: BrokerDetails
    counts: Counts
    rates: Rates | None
    storage: StorageUsage | None
    problems: Annotated[list[str] | None, doc("Sentences; null if the user may not know.")]
    history: Annotated[list[Rates] | UnsetType, doc("The rates of the last minutes, while clients ask for them.")] = (
        UNSET
    )


@Route(
    "GET /overview",
    RequiredPermission.USER,
    name="describeOverview",
    tag="Broker",
    parameters=[Parameter("history", Annotated[bool, doc("Whether to return the rates of the last minutes.")], False)],
)
async def describe_overview(request: Request) -> Overview:
    """Describe the broker's contents, throughput and problems in one response.

    Only users with the permission `admin` for `*` get `storage` and `problems`.
    """
    web, broker = request.web, request.broker
    node, activity, time_ms, now_s = broker.node, request.web.throughput, now_ms(), trio.current_time()
    statistics = node.store.statistics()
    if activity.is_due(now_s):
        records_out = sum(each.counters.consumed.total() for each in broker.listeners)
        bytes_out = sum(each.counters.sent_bytes for each in broker.listeners)
        activity.add(Totals(statistics.records_stored, statistics.bytes_stored, records_out, bytes_out), now_s, time_ms)
    usage = await web.storage_meter.measure() if request.principal.permissions.is_administrator else None
    return Overview(
        time=time_ms,
        broker=BrokerDetails(node.address, node.store.endpoint, _version(), web.started_at),
        counts=_count(request, statistics),
        rates=activity.newest,
        storage=usage,
        problems=None if usage is None else list(_find_problems(request, statistics, usage)),
        history=activity.history() if request.query["history"] else UNSET,
    )


def _version() -> str:
    try:
        return version("dafka")
    except PackageNotFoundError:  # running from the source tree
        return "unknown"


def _count(request: Request, statistics: StoreStatistics) -> Counts:
    broker, permissions = request.broker, request.principal.permissions
    topics = [each for each in broker.node.topics.values() if permissions.may_see(each.name)]
    return Counts(
        topics=len(topics),
        logs=sum(each.log_count for each in topics),
        groups=sum(
            permissions.may_use_group(group.group_id)
            for coordinator in broker.groups.coordinators()
            for group in coordinator.list_groups()
        ),
        clients=sum(len(each.quotas) for each in broker.listeners),
        peers=statistics.peers,
    )


def _find_problems(request: Request, statistics: StoreStatistics, usage: StorageUsage) -> Iterator[str]:
    """Yield a sentence for each problem."""
    web, node = request.web, request.broker.node
    health = node.store.health()
    if health.trouble or health.unready:
        yield health.trouble or health.unready
    yield from find_metadata_problems(node)
    yield from find_broker_problems(node)
    if statistics.is_full:
        yield "the storage takes no further records"
    free, total = usage.free_bytes, usage.total_bytes
    if free is not None and total is not None and free < FREE_SHARE_MIN * total:
        yield f"the disk of the storage is almost full: {100 * free // total} % are free"
    damages = web.verification.report.damages
    if damages:
        yield f"the verification of the storage has found {counted(len(damages), 'damaged place')}"
    lag = sum(statistics.lag.values())
    if lag > LAG_MAX:
        partitions = counted(len(statistics.lag), "partition")
        yield f"this broker is {counted(lag, 'record')} behind the producers of {partitions}"
    survey = web.survey_cache.newest()
    if survey is not None:
        yield from find_survey_problems(survey, node.address)


def find_survey_problems(survey: ClusterSurvey, own_address: str) -> Iterator[str]:
    """Yield a sentence for each problem in a survey, except of this broker's own lag.

    Only missing towers and stores count: producers and consumers come and go.
    """
    for tower in survey.towers:
        if not tower.is_heard:
            yield tower.refusal or f"no message from the tower at {tower.endpoint}"
    for node in survey.nodes:
        fault = node.fault(survey.time)
        if fault and "store" in node.roles:
            yield f"the store at {node.endpoint} {fault}"
        elif node.state is NodeState.UNCONNECTED and not node.roles:
            yield f"the node at {node.endpoint} {fault}"
    yield from _find_lagging_stores(survey, own_address)


def _find_lagging_stores(survey: ClusterSurvey, own_address: str) -> Iterator[str]:
    endpoints = {node.address: node.endpoint for node in survey.stores}
    lags = dict.fromkeys(endpoints, 0)
    for partition in survey.partitions:
        for holder in partition.holders:
            if holder.store in lags and holder.store != own_address:
                lags[holder.store] += holder.lag or 0
    for store, lag in lags.items():
        if lag > LAG_MAX:
            yield f"the store at {endpoints[store]} is {lag} records behind"
