"""What the HTTP server answers: `/metrics` to Prometheus, `/livez` and `/readyz` to supervisors."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, choose_encoder, generate_latest

from dafka.operations.collecting import NodeCollector
from dafka.operations.http import Answer, Handler
from dafka.operations.monitor import Monitor

LIVE, READY, METRICS = "/livez", "/readyz", "/metrics"


def make_registry(monitor: Monitor) -> CollectorRegistry:
    """The metrics of a monitor's nodes, and of the process: memory, processor time, open files."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(NodeCollector(monitor))
    ProcessCollector(registry=registry)
    return registry


def handlers(monitor: Monitor) -> dict[str, Handler]:
    """By path, what is answered."""
    registry = make_registry(monitor)

    def metrics(headers: Mapping[str, str]) -> Answer:
        try:
            encode, content_type = choose_encoder(headers.get("accept", ""))
            return Answer(200, encode(registry), content_type)
        except (TypeError, ValueError):  # a version or an escaping that is none
            return Answer(200, generate_latest(registry), CONTENT_TYPE_LATEST)

    def live(_: Mapping[str, str]) -> Answer:
        return _say(monitor.health().trouble, "live")

    def ready(_: Mapping[str, str]) -> Answer:
        return _say(monitor.health().unready, "ready")

    return {METRICS: metrics, LIVE: live, READY: ready}


def _say(problem: str, state: str) -> Answer:
    return Answer(503 if problem else 200, f"{problem or state}\n".encode())
