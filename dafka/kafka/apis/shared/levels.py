"""Explains that an API needs a later feature level of the cluster."""

from __future__ import annotations

from dafka.kafka.apis.shared.registry import RequestContext


def explain_level(context: RequestContext, needed: int) -> str:
    """Return why the cluster does not serve what belongs to a feature level; empty if it does."""
    level = context.broker.node.tables.state.members.feature_level
    if level >= needed:
        return ""
    return f"the cluster has the feature level {level}, and this needs {needed}: `dafka cluster upgrade`"
