"""Registers guards. A guard removes unauthorized parts of a request before its handler runs.

A guard returns None if everything is permitted, a response if nothing is, and otherwise a function that adds the
refused parts to the handler's response.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any, TypeAlias

import attrs

from dafka.broker.access.permissions import Permissions
from dafka.broker.core.error_codes import ErrorCode
from dafka.kafka.apis import RequestContext
from dafka.kafka.protocol import NIL, ApiKey, Request, Response

ResponsePatch: TypeAlias = Callable[[Any], None]
"""Adds the refused parts to a response."""

Decision: TypeAlias = Response | ResponsePatch | None

Guard: TypeAlias = Callable[["Permits", Any], Decision]

GUARDS: dict[ApiKey, Guard] = {}
"""The guard of each API."""


@attrs.frozen
class Permits:
    """The permissions of a request's user, and the names of topics that the request gives by id.

    Attributes:
        user: The user's permissions.
        context: The context of the request.
    """

    user: Permissions
    context: RequestContext

    def name_of(self, name: str | None, topic_id: uuid.UUID) -> str:
        """Return the name of a topic that a request gives by name or by id; empty if there is none."""
        if name or topic_id == NIL:
            return name or ""
        topic = self.context.find_topic(None, topic_id)
        return "" if topic is None else topic.name


def guards(request: type[Request]) -> Callable[[Guard], Guard]:
    """Register the guard of a request."""

    def register(guard: Guard) -> Guard:
        GUARDS[request.API_KEY] = guard
        return guard

    return register


def split_unauthorized(request: Any, field: str, is_permitted: Callable[[Any], bool]) -> list[Any]:
    """Remove the unauthorized items from a request's list, and return them."""
    items = getattr(request, field)
    refused = [each for each in items if not is_permitted(each)]
    if refused:
        setattr(request, field, [each for each in items if is_permitted(each)])
    return refused


def add_refused(refused: list[Any], field: str, answer: Callable[[Any], Any]) -> ResponsePatch | None:
    """Return a function that adds the errors of refused items to a list of the response; None if none are refused."""
    if not refused:
        return None

    def amend(response: Any) -> None:
        getattr(response, field).extend(answer(each) for each in refused)

    return amend


TOPIC_REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
GROUP_REFUSED = ErrorCode.GROUP_AUTHORIZATION_FAILED
CLUSTER_REFUSED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
TRANSACTION_REFUSED = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
