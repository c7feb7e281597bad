"""Authorizes requests: the pieces with which the file of each API states who may use it.

An authorization removes the unauthorized parts of a request before the handler runs. It returns None if everything is
permitted, a response if nothing is, and otherwise a function that adds the refused parts to the handler's response.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

from dafka.broker.access.permissions import Permissions
from dafka.broker.core.acls import CLUSTER_NAME, Operation, ResourceType
from dafka.broker.core.error_codes import ErrorCode
from dafka.kafka.apis.shared.registry import Authorization, Decision, RequestContext, ResponsePatch
from dafka.kafka.protocol.tables import NIL, Field, Request, Response, Struct, fields_of

_S = TypeVar("_S", bound=Struct)

Predicate: TypeAlias = Callable[[Permissions, Any], bool]
"""Decides whether a user is permitted something, such as `Permissions.may_read` of the name of a topic."""

TOPIC_REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
GROUP_REFUSED = ErrorCode.GROUP_AUTHORIZATION_FAILED
CLUSTER_REFUSED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
TRANSACTION_REFUSED = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED

SUPPORTED_OPERATIONS: Mapping[ResourceType, tuple[Operation, ...]] = MappingProxyType(
    {
        ResourceType.TOPIC: (
            Operation.READ,
            Operation.WRITE,
            Operation.CREATE,
            Operation.DELETE,
            Operation.ALTER,
            Operation.DESCRIBE,
            Operation.DESCRIBE_CONFIGS,
            Operation.ALTER_CONFIGS,
        ),
        ResourceType.GROUP: (
            Operation.READ,
            Operation.DELETE,
            Operation.DESCRIBE,
            Operation.DESCRIBE_CONFIGS,
            Operation.ALTER_CONFIGS,
        ),
        ResourceType.CLUSTER: (
            Operation.CREATE,
            Operation.ALTER,
            Operation.DESCRIBE,
            Operation.CLUSTER_ACTION,
            Operation.DESCRIBE_CONFIGS,
            Operation.ALTER_CONFIGS,
            Operation.IDEMPOTENT_WRITE,
        ),
    }
)
"""The operations on each type of resource that clients can ask about (KIP-430)."""

NOT_ASKED = -(2**31)
"""The operations in a response to a client that does not ask about them."""

_NAMES = ("name", "topic", "topic_name", "key", "group_id", "transactional_id")
_TOPIC_NAMES = ("topic", "name", "topic_name")
_NUMBERS = ("partition_index", "partition", "partition_id", "index")
_OTHER_IDENTITIES = ("topic_id", "resource_type", "resource_name")


def may(operation: Operation, resource_type: ResourceType) -> Predicate:
    """Return the predicate whether a user may do something with the resource of a name."""
    return lambda user, name: user.allow(operation, resource_type, name)


def require_cluster(operation: Operation, response: type[Response], **values: Any) -> Authorization:
    """Require a permission for the cluster; see `require`."""
    return require(lambda user, _: user.allow(operation, ResourceType.CLUSTER), response, CLUSTER_REFUSED, **values)


def list_operations(
    context: RequestContext, resource_type: ResourceType, name: str = CLUSTER_NAME, *, is_asked: bool = True
) -> int:
    """Return which operations on a resource the client may execute, as a set of bits; `NOT_ASKED` if it does not ask.

    Nobody learns about a resource that he may not see.
    """
    if not is_asked:
        return NOT_ASKED
    user, operations = context.find_permissions(), SUPPORTED_OPERATIONS[resource_type]
    if user is not None and not user.allow(Operation.DESCRIBE, resource_type, name):
        return 0
    return sum(1 << each for each in operations if user is None or user.allow(each, resource_type, name))


def permit_everyone(_user: Permissions, _context: RequestContext, _request: Request) -> None:
    """Permit every user."""


def require(is_permitted: Predicate, response: type[Response], error: ErrorCode, **values: Any) -> Authorization:
    """Require a permission for a whole request.

    `values` are further fields of the response to a refused one; see `refuse`.
    """

    def authorize(user: Permissions, _context: RequestContext, request: Request) -> Decision:
        return None if is_permitted(user, request) else refuse(response, request, error, **values)

    return authorize


def require_group(response: type[Response], **values: Any) -> Authorization:
    """Require the permission for the group of a request; see `require`."""
    return require(lambda user, request: user.may_use_group(request.group_id), response, GROUP_REFUSED, **values)


def require_transaction(response: type[Response]) -> Authorization:
    """Require the permission for the transactional id of a request; see `require`."""
    return require(
        lambda user, request: user.may_use_transaction(request.transactional_id), response, TRANSACTION_REFUSED
    )


def require_all(*authorizations: Authorization) -> Authorization:
    """Require several permissions, all but the last of them for the whole request. The first refusal is answered."""

    def authorize(user: Permissions, context: RequestContext, request: Request) -> Decision:
        decisions = (each(user, context, request) for each in authorizations)
        return next((each for each in decisions if each is not None), None)

    return authorize


def require_each(
    field: str, is_permitted: Predicate, *, answers: str = "", error: ErrorCode = TOPIC_REFUSED, **values: Any
) -> Authorization:
    """Require a permission for each topic, group or transactional id in a list of the request.

    The response has a list `answers`, by default of the same name. Refused items are added to it with the error and
    `values`; see `refuse`.
    """

    def authorize(user: Permissions, context: RequestContext, request: Request) -> Decision:
        refused = split_unauthorized(request, field, lambda part: may_use(context, part, partial(is_permitted, user)))
        return add_refused(refused, answers or field, error, **values)

    return authorize


def show_only(field: str, is_permitted: Predicate) -> Authorization:
    """Permit every user, and show each the permitted items of a list in the response."""

    def authorize(user: Permissions, _context: RequestContext, _request: Request) -> ResponsePatch:
        def hide(response: Any) -> None:
            setattr(response, field, [each for each in getattr(response, field) if is_permitted(user, each)])

        return hide

    return authorize


def name_of(context: RequestContext, part: Any) -> str:
    """Return a part of a request that is a name, or the name of a topic that is given by name or by id.

    The name is empty if there is no topic with this id.
    """
    if isinstance(part, str):
        return part
    name: str | None = next((getattr(part, each) for each in _TOPIC_NAMES if hasattr(part, each)), None)
    topic_id = getattr(part, "topic_id", NIL)
    if name or topic_id == NIL:
        return name or ""
    topic = context.find_topic(None, topic_id)
    return "" if topic is None else topic.name


def may_use(context: RequestContext, part: Any, is_permitted: Callable[[str], bool]) -> bool:
    """Return whether a part of a request is permitted; see `name_of`.

    A topic that is given by the id of no topic is permitted: its error shows that it does not exist.
    """
    name = name_of(context, part)
    return is_permitted(name) or (not name and getattr(part, "topic_id", NIL) != NIL)


def split_unauthorized(request: Any, field: str, is_permitted: Callable[[Any], bool]) -> list[Any]:
    """Remove the unauthorized items from a request's list, and return them."""
    items = getattr(request, field)
    refused = [each for each in items if not is_permitted(each)]
    if refused:
        setattr(request, field, [each for each in items if is_permitted(each)])
    return refused


def add_refused(
    refused: list[Any], field: str, error: ErrorCode | Callable[[Any], ErrorCode], **values: Any
) -> ResponsePatch | None:
    """Return a function that adds refused items to a list of the response; None if there are none.

    The error is that of all items, or a function that returns the error of one. For `values`, see `refuse`.
    """
    if not refused:
        return None

    def add(response: Response) -> None:
        (table,) = (each.struct for each in fields_of(type(response)) if each.name == field)
        assert table is not None
        for part in refused:
            code = error if isinstance(error, ErrorCode) else error(part)
            getattr(response, field).append(refuse(table, part, code, **values))

    return add


def refuse(table: type[_S], part: Any, error: ErrorCode, **values: Any) -> _S:
    """Return the answer to a refused part of a request, made from its table.

    The answer is a response, or an item of one. It has the names and numbers of the part, which is a name or a
    partition's number if the request has nothing else. If the table has no error code, the items of its list have one
    each, as the partitions of a topic do. `values` are those of fields whose default is not suitable, here and in the
    items of the list.
    """
    fields = fields_of(table)
    code = next((each.name for each in fields if each.name.endswith("error_code")), "")

    def value_of(each: Field) -> Any:
        if each.name == code:
            return error
        if each.name in values:
            return values[each.name]
        if each.is_array and each.struct is not None and not code:
            return [refuse(each.struct, item, error, **values) for item in _items_of(part)]
        if isinstance(each.default, list):
            return []
        return _identity_of(part, each.name, each.default)

    return table(**{each.name: value_of(each) for each in fields})


def _items_of(part: Struct) -> list[Any]:
    """Return the value of the first list in a part of a request."""
    found: list[Any] = getattr(part, next(each.name for each in fields_of(type(part)) if each.is_array))
    return found


def _identity_of(part: Any, name: str, default: Any) -> Any:
    """Return the name or number that identifies a part of a request; the default if a field says something else."""
    if name in _NAMES and isinstance(part, str):
        return part
    if name in _NUMBERS:
        return part if isinstance(part, int) else next(getattr(part, each) for each in _NUMBERS if hasattr(part, each))
    return getattr(part, name, default) if name in {*_NAMES, *_OTHER_IDENTITIES} else default
