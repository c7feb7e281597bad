"""DescribeAcls, CreateAcls and DeleteAcls.

They are about the ACLs of the cluster. Permissions in the file of users are shown as ACLs, too, which clients cannot
change.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import TypeVar

import trio

from dafka.broker.access.users import Users
from dafka.broker.core.acls import (
    PRINCIPAL_PREFIX,
    Acl,
    AclEffect,
    AclFilter,
    Operation,
    PatternType,
    ResourceType,
    find_acl_problem,
)
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.metadata.commands import COMMAND_ACLS_MAX, CreateAcls, DeleteAcls
from dafka.kafka.apis.shared.authorization import require_cluster
from dafka.kafka.apis.shared.changes import RefusedPartError, make_change, requester_of
from dafka.kafka.apis.shared.outdated import refuse_when_outdated
from dafka.kafka.apis.shared.registry import RequestContext, handles
from dafka.kafka.protocol.messages.access import (
    AclCreation,
    AclCreationResult,
    AclDescription,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)

DELETED_MAX = 10_000
"""How many ACLs the filters of one request can select for deletion, as in Kafka. Each filter counts for itself."""

SELECTED_AT_ONCE = 1000
"""How many ACLs are compared with a filter, or described, before other clients are served."""

_NO_USERS = "clients of this broker do not authenticate, so that ACLs have no effect: start it with --users"

_E = TypeVar("_E", bound=IntEnum)


def explain_file_user(user: str) -> str:
    """Return why clients cannot change a user."""
    return (
        f"the user {user!r} is in the file of users of this broker, which clients cannot change: "
        "use `dafka user change` there"
    )


@handles(
    DescribeAclsRequest,
    require_cluster(Operation.DESCRIBE, DescribeAclsResponse, error_message=None),
    awaits_metadata=True,
)
async def describe_acls(context: RequestContext, request: DescribeAclsRequest) -> DescribeAclsResponse:
    """Answer with the ACLs that a filter selects."""
    try:
        users, chosen = _users_of(context), _read_filter(request)
    except RefusedPartError as refused:
        return DescribeAclsResponse(error_code=refused.error_code, error_message=str(refused), resources=[])
    resources: dict[tuple[ResourceType, str, PatternType], list[AclDescription]] = {}
    stored = context.broker.node.tables.state.access.list_acls()
    selected = dict.fromkeys(await _select(chosen, [*stored, *users.list_file_acls()]))
    for number, each in enumerate(selected):
        if number % SELECTED_AT_ONCE == 0:
            await trio.lowlevel.checkpoint()
        found = resources.setdefault((each.resource_type, each.name, each.pattern_type), [])
        found.append(
            AclDescription(
                principal=each.principal, host=each.host, operation=each.operation, permission_type=each.effect
            )
        )
    return DescribeAclsResponse(
        error_code=ErrorCode.NONE,
        error_message=None,
        resources=[
            DescribeAclsResource(resource_type=kind, resource_name=name, pattern_type=pattern_type, acls=acls)
            for (kind, name, pattern_type), acls in resources.items()
        ],
    )


@handles(
    CreateAclsRequest, require_cluster(Operation.ALTER, CreateAclsResponse, error_message=None), awaits_metadata=True
)
async def create_acls(context: RequestContext, request: CreateAclsRequest) -> CreateAclsResponse:
    """Create ACLs. An invalid one is refused alone, and does not affect the others."""
    outcomes: list[tuple[ErrorCode, str | None] | None] = []
    acls: list[Acl] = []
    for each in request.creations:
        try:
            acls.append(_read_creation(_users_of(context), each))
            outcomes.append(None)
        except RefusedPartError as refused:
            outcomes.append((refused.error_code, str(refused)))
    made = await _change(context, acls, CreateAcls)
    results = [
        AclCreationResult(error_code=error, error_message=message)
        for error, message in (made if outcome is None else outcome for outcome in outcomes)
    ]
    return CreateAclsResponse(results=results)


@handles(
    DeleteAclsRequest, require_cluster(Operation.ALTER, DeleteAclsResponse, error_message=None), awaits_metadata=True
)
@refuse_when_outdated("filters", answers="filter_results")
async def delete_acls(context: RequestContext, request: DeleteAclsRequest) -> DeleteAclsResponse:
    """Delete the ACLs that filters select. The answer refuses to delete permissions of the file of users.

    An ACL is in the answer to each filter that selects it. So a filter is refused if the answer would be too large.
    """
    stored, users = list(context.broker.node.tables.state.access.list_acls()), context.broker.security.users
    fixed = [] if users is None else users.list_file_acls()
    deleted: set[Acl] = set()
    results: list[DeleteAclsFilterResult] = []
    left = DELETED_MAX
    for asked in request.filters:
        error, message = ErrorCode.NONE, None
        found, kept = list[Acl](), list[Acl]()
        try:
            _users_of(context)
            chosen = _read_filter(asked)
            found, kept = await _select(chosen, stored), await _select(chosen, fixed)
            left = _check_count(left, len(found) + len(kept))
        except RefusedPartError as refused:
            error, message = refused.error_code, str(refused)
            found, kept = [], []
        deleted.update(found)
        matching = [_describe_match(each) for each in found]
        matching += [_describe_match(each, ErrorCode.POLICY_VIOLATION) for each in kept]
        results.append(DeleteAclsFilterResult(error_code=error, error_message=message, matching_acls=matching))
    error, message = await _change(context, [each for each in stored if each in deleted], DeleteAcls)
    for each in results:
        if error and not each.error_code:
            each.error_code, each.error_message, each.matching_acls = error, message, []
    return DeleteAclsResponse(filter_results=results)


async def _select(chosen: AclFilter, acls: Sequence[Acl]) -> list[Acl]:
    """Return the ACLs that a filter selects. Other clients are served meanwhile."""
    found: list[Acl] = []
    for first in range(0, max(len(acls), 1), SELECTED_AT_ONCE):
        await trio.lowlevel.checkpoint()
        found += filter(chosen.selects, acls[first : first + SELECTED_AT_ONCE])
    return found


def _check_count(left: int, count: int) -> int:
    """Return how many ACLs an answer can still have. Raise `RefusedPartError` if they are too few."""
    if count > left:
        raise RefusedPartError(
            f"the filters of the request select more than {DELETED_MAX} ACLs together: send several requests, with "
            "filters that select fewer ACLs"
        )
    return left - count


def _describe_match(acl: Acl, error: ErrorCode = ErrorCode.NONE) -> DeleteAclsMatchingAcl:
    return DeleteAclsMatchingAcl(
        error_code=error,
        error_message=explain_file_user(acl.principal.removeprefix(PRINCIPAL_PREFIX)) if error else None,
        resource_type=acl.resource_type,
        resource_name=acl.name,
        pattern_type=acl.pattern_type,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.effect,
    )


async def _change(
    context: RequestContext, acls: Sequence[Acl], command: type[CreateAcls | DeleteAcls]
) -> tuple[ErrorCode, str | None]:
    """Create or delete ACLs of the cluster. Return the error and its message."""
    for first in range(0, len(acls), COMMAND_ACLS_MAX):
        part = command(tuple(acls[first : first + COMMAND_ACLS_MAX]))
        error, message = await make_change(context.broker.node.admin.change(part, requester_of(context)))
        if error:
            return error, message
    return ErrorCode.NONE, None


def _users_of(context: RequestContext) -> Users:
    users = context.broker.security.users
    if users is None:
        raise RefusedPartError(_NO_USERS, ErrorCode.SECURITY_DISABLED)
    return users


def _read_creation(users: Users, asked: AclCreation) -> Acl:
    """Return the ACL that a client asks for. Raise `RefusedPartError` if it is not possible."""
    acl = Acl(
        _read(ResourceType, asked.resource_type, "resource type"),
        asked.resource_name,
        asked.principal,
        _read(Operation, asked.operation, "operation"),
        _read(PatternType, asked.resource_pattern_type, "pattern type"),
        asked.host,
        _read(AclEffect, asked.permission_type, "permission type"),
    )
    problem = find_acl_problem(acl)
    if problem:
        raise RefusedPartError(problem)
    user = acl.principal.removeprefix(PRINCIPAL_PREFIX)
    if users.is_in_file(user):
        raise RefusedPartError(explain_file_user(user), ErrorCode.POLICY_VIOLATION)
    return acl


def _read_filter(asked: DescribeAclsRequest | DeleteAclsFilter) -> AclFilter:
    """Return the filter that a client asks for. Raise `RefusedPartError` if it is not possible."""
    return AclFilter(
        _read(ResourceType, asked.resource_type_filter, "resource type"),
        asked.resource_name_filter,
        _read(PatternType, asked.pattern_type_filter, "pattern type"),
        asked.principal_filter,
        asked.host_filter,
        _read(Operation, asked.operation, "operation"),
        _read(AclEffect, asked.permission_type, "permission type"),
    )


def _read(kind: type[_E], value: int, what: str) -> _E:
    try:
        return kind(value)
    except ValueError:
        names = ", ".join(f"{each.value} ({each.name})" for each in kind)
        raise RefusedPartError(f"there is no {what} {value}: expected {names}") from None
