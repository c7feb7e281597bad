"""Changes of the cluster that are requested at a broker that may not know what the cluster is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from dafka.broker.core.error_codes import ErrorCode
from dafka.kafka.apis.shared.refused_parts import Handler, refuse_parts
from dafka.kafka.apis.shared.registry import RequestContext

_R = TypeVar("_R")


def refuse_when_outdated(*fields: str, answers: str = "") -> Callable[[Handler[_R]], Handler[_R]]:
    """Refuse what lists of a request want to change, with NOT_CONTROLLER, while most voters are not heard.

    Otherwise a topic that is deleted could be said to exist already, or one that was just created to be unknown. The
    list `answers` of the response has an item for each; by default, it has the name of the first list.
    """

    def take(context: RequestContext, request: Any) -> tuple[list[Any], str]:
        reason, refused = context.broker.node.quorum.outdated_reason, list[Any]()
        for field in fields if reason else ():
            refused += getattr(request, field)
            setattr(request, field, [])
        return refused, reason

    return refuse_parts(take, ErrorCode.NOT_CONTROLLER, answers or fields[0])
