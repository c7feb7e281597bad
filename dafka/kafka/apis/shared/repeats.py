"""Requests that name the same thing more than once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from dafka.broker.core.error_codes import ErrorCode
from dafka.kafka.apis.shared.authorization import name_of
from dafka.kafka.apis.shared.refused_parts import Handler, refuse_parts
from dafka.kafka.apis.shared.registry import RequestContext

MESSAGE = "the request names it more than once"

_R = TypeVar("_R")


def refuse_repeated(*fields: str, answers: str = "") -> Callable[[Handler[_R]], Handler[_R]]:
    """Refuse the topics or resources in lists of a request that are named more than once, as Kafka does.

    Nothing is done with them, and each is answered once with INVALID_REQUEST, in the list `answers` of the response; by
    default, it has the name of the first list.
    """

    def take(context: RequestContext, request: Any) -> tuple[list[Any], str]:
        repeated = dict[Hashable, Any]()
        for field in fields:
            named = [(_identity_of(context, each), each) for each in getattr(request, field)]
            counts = Counter(identity for identity, _ in named)
            repeated |= {identity: each for identity, each in named if counts[identity] > 1}
            setattr(request, field, [each for identity, each in named if counts[identity] == 1])
        return [*repeated.values()], MESSAGE

    return refuse_parts(take, ErrorCode.INVALID_REQUEST, answers or fields[0])


def _identity_of(context: RequestContext, part: Any) -> Hashable:
    """Return what a part of a request names."""
    if hasattr(part, "resource_name"):
        return part.resource_type, part.resource_name
    return name_of(context, part) or getattr(part, "topic_id", "")
