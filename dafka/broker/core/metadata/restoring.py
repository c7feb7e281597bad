"""What a new cluster takes over from a snapshot of another one, beside topics: users, ACLs, quotas, group settings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from dafka.broker.core.acls import Acl, AclEffect, find_acl_problem
from dafka.broker.core.client_quotas import ClientQuota, find_entity_problem, find_limit_problem
from dafka.broker.core.metadata.commands import (
    COMMAND_ACLS_MAX,
    AlterClientQuota,
    AlterGroupSettings,
    Command,
    CreateAcls,
    SetScramCredential,
)
from dafka.broker.core.metadata.group_settings import find_value_problem
from dafka.broker.core.metadata.state_records import ACL, GROUP, QUOTA, SCRAM, decode_records
from dafka.broker.core.scram_credentials import ScramCredential, find_credential_problem
from dafka.errors import StorageFormatError
from dafka.protocol.format_errors import format_errors

_RESTORED = tuple(each.encode() for each in (ACL, QUOTA, GROUP, SCRAM))


def take_restored(records: Mapping[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    """Return the records of a state that a new cluster takes over, beside topics.

    ACLs come first, and users last, so that nobody may do more than before while they are restored.
    """
    return [each for prefix in _RESTORED for each in records.items() if each[0].startswith(prefix)]


def list_stages(records: Iterable[tuple[bytes, bytes]]) -> list[list[Command]]:
    """Return the commands that restore records of `take_restored`. Those of one stage can be made at once.

    Among ACLs, those that deny come first. Raise `StorageFormatError` if a record is malformed, or has a value that
    clients could not set.
    """
    found = list(records)
    with format_errors("a snapshot of the cluster"):
        acls = list(decode_records(found, ACL, Acl))
        quotas = list(decode_records(found, QUOTA, ClientQuota))
        groups = list(decode_records(found, GROUP, AlterGroupSettings))
        credentials = list(decode_records(found, SCRAM, ScramCredential))
        problem = next(filter(None, _find_problems(acls, quotas, groups, credentials)), "")
    if problem:
        raise StorageFormatError(f"the snapshot has what this version of dafka does not accept: {problem}")
    denied = [each for each in acls if each.effect is AclEffect.DENY]
    allowed = [each for each in acls if each.effect is not AclEffect.DENY]
    stages: list[list[Command]] = [[CreateAcls(part) for part in _split(each)] for each in (denied, allowed)]
    stages.append([*(AlterClientQuota(each.entity, each.limits) for each in quotas), *groups])
    stages.append([SetScramCredential(each) for each in credentials])
    return stages


def _find_problems(
    acls: Iterable[Acl],
    quotas: Iterable[ClientQuota],
    groups: Iterable[AlterGroupSettings],
    credentials: Iterable[ScramCredential],
) -> Iterator[str]:
    yield from map(find_acl_problem, acls)
    for quota in quotas:
        yield find_entity_problem(quota.entity)
        yield from (find_limit_problem(quota.entity, name, float(value)) for name, value in quota.limits.items())
    yield from (find_value_problem(each.settings) for each in groups)
    yield from map(find_credential_problem, credentials)


def _split(acls: Iterable[Acl]) -> Iterator[tuple[Acl, ...]]:
    rest = iter(acls)
    while part := tuple(islice(rest, COMMAND_ACLS_MAX)):
        yield part
