"""Refuses parts of a request before the others are handled."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, TypeAlias, TypeVar

from dafka.broker.core.error_codes import ErrorCode
from dafka.kafka.apis.shared.authorization import add_refused
from dafka.kafka.apis.shared.registry import RequestContext

_R = TypeVar("_R")
Handler: TypeAlias = Callable[[RequestContext, Any], Awaitable[_R]]


def refuse_parts(
    take: Callable[[RequestContext, Any], tuple[list[Any], str]], error: ErrorCode, answers: str
) -> Callable[[Handler[_R]], Handler[_R]]:
    """Refuse the parts that a function takes out of the lists of a request, with an error.

    `take` returns them, and the message for the client. Nothing is done with them, and the list `answers` of the
    response has an item for each.
    """

    def decorate(handler: Handler[_R]) -> Handler[_R]:
        @wraps(handler)
        async def handle(context: RequestContext, request: Any) -> _R:
            refused, message = take(context, request)
            response = await handler(context, request)
            add = add_refused(refused, answers, error, error_message=message)
            if add is not None:
                add(response)
            return response

        return handle

    return decorate
