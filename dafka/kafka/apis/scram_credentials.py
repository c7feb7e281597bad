"""DescribeUserScramCredentials and AlterUserScramCredentials: the users that clients add to the cluster.

The users in the file of users are shown too. Clients cannot change them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TypeAlias

from dafka.broker.access.credentials import derive_from_salted
from dafka.broker.access.permissions import Permissions
from dafka.broker.access.users_file import find_user_name_problem
from dafka.broker.core.acls import Operation, ResourceType
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.metadata.commands import Command, DeleteScramCredential, SetScramCredential
from dafka.broker.core.scram_credentials import ScramMechanism, find_iterations_problem, find_salt_problem
from dafka.kafka.apis.acls import explain_file_user
from dafka.kafka.apis.shared.authorization import CLUSTER_REFUSED, refuse, require_cluster
from dafka.kafka.apis.shared.changes import RefusedPartError, make_all, make_change, requester_of
from dafka.kafka.apis.shared.registry import Decision, RequestContext, handles
from dafka.kafka.protocol.messages.access import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)

_Change: TypeAlias = ScramCredentialDeletion | ScramCredentialUpsertion


@handles(
    DescribeUserScramCredentialsRequest,
    require_cluster(Operation.DESCRIBE, DescribeUserScramCredentialsResponse, error_message=None),
    awaits_metadata=True,
)
async def describe_credentials(
    context: RequestContext, request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    """Answer which credentials users have, and how often their passwords were hashed."""
    known = _list_users(context)
    asked = Counter((each.name for each in request.users) if request.users else [*known])
    return DescribeUserScramCredentialsResponse(
        error_code=ErrorCode.NONE,
        error_message=None,
        results=[_describe(name, count, known.get(name, {})) for name, count in asked.items()],
    )


def _list_users(context: RequestContext) -> dict[str, dict[ScramMechanism, int]]:
    """Return how often the password of each user was hashed, by mechanism. The file of users takes precedence."""
    stored = context.broker.node.tables.state.access.list_credentials()
    found = {name: {kind: each.iterations for kind, each in some.items()} for name, some in stored.items()}
    users = context.broker.security.users
    for user in () if users is None else users.list_file_users():
        kinds = [each for each in ScramMechanism if each.sasl_name in user.credentials]
        found[user.name] = {each: user.credentials[each.sasl_name].iterations for each in kinds}
    return found


def _describe(name: str, count: int, found: dict[ScramMechanism, int]) -> DescribeUserScramCredentialsResult:
    error, message = ErrorCode.NONE, None
    if count > 1:
        error, message = ErrorCode.DUPLICATE_RESOURCE, f"the user {name!r} is asked for twice"
    elif not found:
        error, message = ErrorCode.RESOURCE_NOT_FOUND, f"there is no user {name!r} with a credential"
    infos = [CredentialInfo(mechanism=kind, iterations=each) for kind, each in found.items()]
    return DescribeUserScramCredentialsResult(
        user=name, error_code=error, error_message=message, credential_infos=[] if error else infos
    )


def _authorize_alteration(
    user: Permissions, _context: RequestContext, request: AlterUserScramCredentialsRequest
) -> Decision:
    """Require the permission to change the cluster."""
    if user.allow(Operation.ALTER, ResourceType.CLUSTER):
        return None
    results = [
        refuse(AlterUserScramCredentialsResult, each, CLUSTER_REFUSED, user=each, error_message=None)
        for each in _by_user(request)
    ]
    return AlterUserScramCredentialsResponse(results=results)


def _by_user(request: AlterUserScramCredentialsRequest) -> dict[str, list[_Change]]:
    """Return what a request changes of each user."""
    changes: list[_Change] = [*request.deletions, *request.upsertions]
    found: dict[str, list[_Change]] = {}
    for each in changes:
        found.setdefault(each.name, []).append(each)
    return found


@handles(AlterUserScramCredentialsRequest, _authorize_alteration, awaits_metadata=True)
async def alter_credentials(
    context: RequestContext, request: AlterUserScramCredentialsRequest
) -> AlterUserScramCredentialsResponse:
    """Set and delete credentials: all of a user's that the request names, or none of them if one is not possible."""
    changes = _by_user(request)

    async def alter(name: str) -> AlterUserScramCredentialsResult:
        error, message = await _alter(context, name, changes[name])
        return AlterUserScramCredentialsResult(user=name, error_code=error, error_message=message)

    return AlterUserScramCredentialsResponse(results=await make_all(alter, changes))


async def _alter(context: RequestContext, name: str, changes: list[_Change]) -> tuple[ErrorCode, str | None]:
    if outdated := context.broker.node.quorum.outdated_reason:
        return ErrorCode.NOT_CONTROLLER, outdated
    users = context.broker.security.users
    try:
        if users is not None and users.is_in_file(name):
            raise RefusedPartError(explain_file_user(name), ErrorCode.UNACCEPTABLE_CREDENTIAL)
        if len({each.mechanism for each in changes}) < len(changes):
            raise RefusedPartError(f"a credential of the user {name!r} is changed twice", ErrorCode.DUPLICATE_RESOURCE)
        has = context.broker.node.tables.state.access.find_credentials(name).__contains__
        commands = [_read_change(each, has) for each in changes]
    except RefusedPartError as refused:
        return refused.error_code, str(refused)
    for command in commands:
        error, message = await make_change(context.broker.node.admin.change(command, requester_of(context)))
        if error:
            return error, message
    return ErrorCode.NONE, None


def _read_change(asked: _Change, has: Callable[[ScramMechanism], bool]) -> Command:
    """Return the command for a change. Raise `RefusedPartError` if it is not possible."""
    try:
        mechanism = ScramMechanism(asked.mechanism)
    except ValueError:
        expected = " or ".join(f"{each.value} ({each.sasl_name})" for each in ScramMechanism)
        message = f"there is no mechanism {asked.mechanism}: expected {expected}"
        raise RefusedPartError(message, ErrorCode.UNSUPPORTED_SASL_MECHANISM) from None
    if isinstance(asked, ScramCredentialDeletion):
        if not has(mechanism):
            message = f"the user {asked.name!r} has no credential for {mechanism.sasl_name}"
            raise RefusedPartError(message, ErrorCode.RESOURCE_NOT_FOUND)
        return DeleteScramCredential(asked.name, mechanism)
    problem = find_user_name_problem(asked.name) or find_iterations_problem(asked.iterations)
    problem = problem or find_salt_problem(asked.salt)
    if not problem and len(asked.salted_password) != mechanism.key_bytes:
        size = len(asked.salted_password)
        problem = f"expected a salted password of {mechanism.key_bytes} bytes for {mechanism.sasl_name}, not of {size}"
    if problem:
        raise RefusedPartError(problem, ErrorCode.UNACCEPTABLE_CREDENTIAL)
    salted = bytes(asked.salted_password)
    return SetScramCredential(derive_from_salted(asked.name, mechanism, asked.iterations, bytes(asked.salt), salted))
