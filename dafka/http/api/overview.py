"""Route for the overview: a broker's contents, throughput and problems."""

from __future__ import annotations

import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import attrs

from dafka.http.api.registry import Answer, Parameter, RequiredPermission, route
from dafka.http.api.replicas import find_broker_problems
from dafka.http.api.schemas import Array, Boolean, Integer, Nullable, Number, Object, Text
from dafka.http.api.storage import USAGE, measure_usage
from dafka.http.server.messages import AnyResponse, Request, respond
from dafka.http.server.throughput import Totals
from dafka.protocol.observer.cluster_survey import ClusterSurvey, NodeState
from dafka.roles.store import StoreStatistics
from dafka.storage.plugin_helpers import now_ms

LAG_MAX = 1000
"""Lag, in records, above which a store is reported. Less is in flight."""

FREE_SHARE_MIN = 0.05
"""The share of a disk that must be free."""

RATES = Object(
    "Rates",
    {
        "time": Integer("When this was measured, in milliseconds since 1970."),
        "records_in_per_s": Number("Records that were made durable."),
        "bytes_in_per_s": Number("The bytes of their contents."),
        "records_out_per_s": Number("Records that were sent to clients."),
        "bytes_out_per_s": Number("Bytes that were sent to clients."),
    },
)

BROKER = Object(
    "Broker",
    {
        "address": Text("The broker's node address."),
        "endpoint": Text("The endpoint that other nodes connect to."),
        "version": Text("The version of dafka."),
        "started_at": Integer("When it has begun to listen, in milliseconds since 1970."),
    },
)

COUNTS = Object(
    "Counts",
    {
        "topics": Integer("Topics that the user may see."),
        "logs": Integer("Their logs."),
        "groups": Integer("Groups that the user may use."),
        "clients": Integer("Clients that are connected to a listener of the broker."),
        "peers": Integer("Nodes that the broker is connected to."),
    },
)

OVERVIEW = Object(
    "Overview",
    {
        "time": Integer("When this was measured, in milliseconds since 1970."),
        "broker": BROKER,
        "counts": COUNTS,
        "rates": Nullable(RATES),
        "history": Array(RATES, "The rates of the last minutes, as far as somebody has asked for them."),
        "storage": Nullable(USAGE),
        "problems": Nullable(Array(Text(), "Sentences; null if the user may not know.")),
    },
    optional=("history",),
)


@route(
    "GET",
    "/overview",
    needs=RequiredPermission.USER,
    tag="Broker",
    parameters=[Parameter("history", Boolean("Whether to return the rates of the last minutes."), False)],
    answers={200: Answer("The overview.", OVERVIEW)},
)
async def describe_overview(request: Request) -> AnyResponse:
    """Describe the broker's contents, throughput and problems in one response.

    Only users with the permission `admin` for `*` get `storage` and `problems`.
    """
    web, broker = request.web, request.broker
    node, activity, time_ms = broker.node, request.web.throughput, now_ms()
    statistics = node.store.statistics()
    if activity.is_due(time_ms):
        records_out = sum(each.counters.consumed.total() for each in broker.listeners)
        bytes_out = sum(each.counters.sent_bytes for each in broker.listeners)
        activity.add(Totals(statistics.records_stored, statistics.bytes_stored, records_out, bytes_out), time_ms)
    found: dict[str, Any] = {
        "time": time_ms,
        "broker": {
            "address": node.address,
            "endpoint": node.store.endpoint,
            "version": _version(),
            "started_at": web.started_at,
        },
        "counts": _count(request, statistics),
        "rates": None if activity.newest is None else attrs.asdict(activity.newest),
        "storage": None,
        "problems": None,
    }
    if request.query["history"]:
        found["history"] = [attrs.asdict(each) for each in activity.history()]
    if request.principal.permissions.is_administrator:
        found["storage"] = usage = await measure_usage(web)
        found["problems"] = list(_find_problems(request, statistics, usage))
    return respond(found)


def _version() -> str:
    try:
        return version("dafka")
    except PackageNotFoundError:  # running from the source tree
        return "unknown"


def _count(request: Request, statistics: StoreStatistics) -> dict[str, int]:
    broker, permissions = request.broker, request.principal.permissions
    topics = [each for each in broker.node.topics.values() if permissions.may_see(each.name)]
    return {
        "topics": len(topics),
        "logs": sum(each.log_count for each in topics),
        "groups": sum(
            permissions.may_use_group(group.group_id)
            for coordinator in broker.groups.coordinators()
            for group in coordinator.list_groups()
        ),
        "clients": sum(len(each.crowd) for each in broker.listeners),
        "peers": statistics.peers,
    }


def _find_problems(request: Request, statistics: StoreStatistics, usage: dict[str, Any]) -> Iterator[str]:
    """Yield a sentence for each problem."""
    web, node = request.web, request.broker.node
    health = node.store.health()
    if health.trouble or health.unready:
        yield health.trouble or health.unready
    yield from find_broker_problems(node)
    if statistics.is_full:
        yield "the storage takes no further records"
    free, total = usage["free_bytes"], usage["total_bytes"]
    if free is not None and free < FREE_SHARE_MIN * total:
        yield f"the disk of the storage is almost full: {100 * free // total} % are free"
    if web.verification.damages:
        yield f"the verification of the storage has found {len(web.verification.damages)} damaged places"
    lag = sum(statistics.lag.values())
    if lag > LAG_MAX:
        yield f"this broker is {lag} records behind the producers of {len(statistics.lag)} partitions"
    survey = web.survey_cache.newest()
    if survey is not None:
        yield from find_survey_problems(survey, node.address)


def find_survey_problems(survey: ClusterSurvey, own_address: str) -> Iterator[str]:
    """Yield the problems in a survey. Only missing towers and stores count: producers and consumers come and go.

    Args:
        survey: The survey.
        own_address: The address of this broker.

    Yields:
        A sentence for each problem.
    """
    for tower in survey.towers:
        if not tower.is_heard:
            yield tower.refusal or f"no message from the tower at {tower.endpoint}"
    for node in survey.nodes:
        fault = node.fault(time.time())
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
