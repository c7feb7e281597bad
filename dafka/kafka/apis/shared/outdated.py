"""Changes of the cluster that are requested at a broker that may not know what the cluster is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, TypeVar

from dafka.broker.core.error_codes import ErrorCode
from dafka.kafka.apis.shared.authorization import add_refused
from dafka.kafka.apis.shared.registry import RequestContext

_R = TypeVar("_R")


def refuse_when_outdated(
    *fields: str, answers: str = ""
) -> Callable[[Callable[[RequestContext, Any], Awaitable[_R]]], Callable[[RequestContext, Any], Awaitable[_R]]]:
    """Refuse what lists of a request want to change, with NOT_CONTROLLER, while most voters are not heard.

    Otherwise a topic that is deleted could be said to exist already, or one that was just created to be unknown. The
    list `answers` of the response has an item for each; by default, it has the name of the first list.
    """

    def decorate(
        handler: Callable[[RequestContext, Any], Awaitable[_R]],
    ) -> Callable[[RequestContext, Any], Awaitable[_R]]:
        @wraps(handler)
        async def handle(context: RequestContext, request: Any) -> _R:
            reason, refused = context.broker.node.quorum.outdated_reason, list[Any]()
            for field in fields if reason else ():
                refused += getattr(request, field)
                setattr(request, field, [])
            response = await handler(context, request)
            add = add_refused(refused, answers or fields[0], ErrorCode.NOT_CONTROLLER, error_message=reason)
            if add is not None:
                add(response)
            return response

        return handle

    return decorate
