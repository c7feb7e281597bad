"""ACLs, filters that select ACLs, and what ACLs permit. The numbers are from Kafka's protocol.

An ACL allows or denies a principal an operation on resources of a type, from one host or from everywhere. What is
denied is not allowed, whatever else allows it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator
from enum import IntEnum

import attrs

EVERY_NAME = "*"
"""The name in a literal pattern that stands for all names, and the host that stands for all."""

EVERY_USER = "User:*"
"""The principal that stands for all users."""

CLUSTER_NAME = "kafka-cluster"
"""The name of the only resource of the type `CLUSTER`."""

PRINCIPAL_PREFIX = "User:"
"""The prefix of principals. The name of a user follows."""


class ResourceType(IntEnum):
    """What an ACL is about. `ANY` is for filters only."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """How an ACL names its resources. `ANY` and `MATCH` are for filters only."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    """What is done with a resource. `ANY` is for filters only."""

    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class AclEffect(IntEnum):
    """Whether an ACL allows or denies. `ANY` is for filters only."""

    ANY = 1
    DENY = 2
    ALLOW = 3


def spell(value: IntEnum) -> str:
    """Return the name of a value as people write it, such as `transactional-id`."""
    return value.name.lower().replace("_", "-")


OPERATIONS = tuple(each for each in Operation if each not in {Operation.ANY, Operation.ALL})
"""The operations that clients can ask for."""

_IMPLIED = {
    Operation.READ: Operation.DESCRIBE,
    Operation.WRITE: Operation.DESCRIBE,
    Operation.DELETE: Operation.DESCRIBE,
    Operation.ALTER: Operation.DESCRIBE,
    Operation.ALTER_CONFIGS: Operation.DESCRIBE_CONFIGS,
}


@attrs.frozen
class Acl:
    """One ACL.

    Attributes:
        resource_type: The type of its resources.
        name: The name of a resource, a prefix of names, or `*` for all.
        principal: The principal, such as `User:anne`, or `User:*` for all.
        operation: The operation.
        pattern_type: `LITERAL` or `PREFIXED`.
        host: The address from which clients connect, or `*` for all.
        effect: Whether it allows or denies.
    """

    resource_type: ResourceType
    name: str
    principal: str
    operation: Operation
    pattern_type: PatternType = PatternType.LITERAL
    host: str = EVERY_NAME
    effect: AclEffect = AclEffect.ALLOW

    @property
    def pattern(self) -> str:
        """The name, with a star at the end if it is a prefix."""
        return self.name + (EVERY_NAME if self.pattern_type is PatternType.PREFIXED else "")

    @property
    def is_for_every_name(self) -> bool:
        """Whether it is for all resources of its type."""
        return self.pattern_type is PatternType.LITERAL and self.name == EVERY_NAME

    @property
    def operations(self) -> tuple[Operation, ...]:
        """The operations that it allows or denies. Some allowed operations imply one that describes the resource."""
        if self.operation is Operation.ALL:
            return OPERATIONS
        implied = _IMPLIED.get(self.operation) if self.effect is AclEffect.ALLOW else None
        return (self.operation,) if implied is None else (self.operation, implied)

    def is_about(self, name: str) -> bool:
        """Return whether it is about the resource of its type with this name."""
        if self.pattern_type is PatternType.PREFIXED:
            return name.startswith(self.name)
        return self.name in {EVERY_NAME, name}

    def counts_for(self, user: str, host: str) -> bool:
        """Return whether it is for a user at an address."""
        return self.principal in {EVERY_USER, PRINCIPAL_PREFIX + user} and self.host in {EVERY_NAME, host}

    def __str__(self) -> str:
        effect, operation, kind = map(spell, (self.effect, self.operation, self.resource_type))
        place = "" if self.host == EVERY_NAME else f" from {self.host}"
        return f"{effect} {self.principal} {operation} on {kind} {self.pattern}{place}"


@attrs.frozen
class AclFilter:
    """Selects ACLs. None and `ANY` select all. `MATCH` selects all patterns that are about the name."""

    resource_type: ResourceType = ResourceType.ANY
    name: str | None = None
    pattern_type: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    effect: AclEffect = AclEffect.ANY

    def selects(self, acl: Acl) -> bool:
        """Return whether the filter selects an ACL."""
        return (
            self.resource_type in {ResourceType.ANY, acl.resource_type}
            and self.principal in {None, acl.principal}
            and self.host in {None, acl.host}
            and self.operation in {Operation.ANY, acl.operation}
            and self.effect in {AclEffect.ANY, acl.effect}
            and self._selects_pattern(acl)
        )

    def _selects_pattern(self, acl: Acl) -> bool:
        if self.pattern_type is PatternType.MATCH and self.name is not None:
            return acl.is_about(self.name)
        is_type = self.pattern_type in {PatternType.ANY, PatternType.MATCH, acl.pattern_type}
        return is_type and self.name in {None, acl.name}


def normalize_host(host: str) -> str:
    """Return an address in the form that ACLs use. Raise `ValueError` if it is no address."""
    address = ipaddress.ip_address(host.partition("%")[0])
    return str(getattr(address, "ipv4_mapped", None) or address)


def find_acl_problem(acl: Acl) -> str:
    """Return why an ACL is invalid; empty if it is valid."""
    return next(_find_problems(acl), "")


def _find_problems(acl: Acl) -> Iterator[str]:
    is_literal, user = acl.pattern_type is PatternType.LITERAL, acl.principal.removeprefix(PRINCIPAL_PREFIX)
    if acl.resource_type is ResourceType.ANY:
        yield "the resource type ANY is for filters: name one type"
    if acl.pattern_type in {PatternType.ANY, PatternType.MATCH}:
        yield f"the pattern type {acl.pattern_type.name} is for filters: expected LITERAL or PREFIXED"
    if acl.operation is Operation.ANY or acl.effect is AclEffect.ANY:
        yield "ANY is for filters: name one operation, or ALL; and ALLOW or DENY"
    if not acl.name:
        yield "the name of the resource is empty: expected a name, what names begin with, or '*' for all"
    if acl.resource_type is ResourceType.CLUSTER and (acl.name != CLUSTER_NAME or not is_literal):
        yield f"the only resource of the type CLUSTER is the literal {CLUSTER_NAME!r}, not {acl.name[:100]!r}"
    if user in {"", acl.principal}:
        yield f"expected a principal such as User:anne, or User:* for all users, not {acl.principal[:100]!r}"
    if acl.host != EVERY_NAME and not _is_address(acl.host):
        yield f"expected one address as the host, or '*' for all, not {acl.host[:100]!r}"


def _is_address(host: str) -> bool:
    try:
        return normalize_host(host) == host
    except ValueError:
        return False


class NamePatterns:
    """The patterns of several ACLs for one operation, compiled for fast lookup of names."""

    def __init__(self, acls: Iterable[Acl]) -> None:
        found = list(acls)
        self.has_every_name = any(each.is_for_every_name for each in found)
        self.literals = frozenset(each.name for each in found if each.pattern_type is PatternType.LITERAL)
        self.prefixes = tuple({each.name for each in found if each.pattern_type is PatternType.PREFIXED})

    def __bool__(self) -> bool:
        """Return whether there is a pattern."""
        return bool(self.literals or self.prefixes)

    def has(self, name: str) -> bool:
        """Return whether a pattern is about a name."""
        return self.has_every_name or name in self.literals or name.startswith(self.prefixes)

    def has_all_with(self, prefix: str) -> bool:
        """Return whether a pattern is about all names that begin with a prefix."""
        return self.has_every_name or prefix.startswith(self.prefixes)


class AclRules:
    """The ACLs that count for one user at one address, compiled."""

    def __init__(self, acls: Iterable[Acl]) -> None:
        grouped: dict[tuple[AclEffect, ResourceType, Operation], list[Acl]] = {}
        for acl in acls:
            for operation in acl.operations:
                grouped.setdefault((acl.effect, acl.resource_type, operation), []).append(acl)
        self._patterns = {key: NamePatterns(each) for key, each in grouped.items()}

    def allow(self, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """Return whether an ACL allows an operation, unless another one denies it."""
        found = self._patterns.get((AclEffect.ALLOW, resource_type, operation))
        return found is not None and found.has(name)

    def deny(self, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """Return whether an ACL denies an operation."""
        found = self._patterns.get((AclEffect.DENY, resource_type, operation))
        return found is not None and found.has(name)

    def allow_all(self, operation: Operation, resource_type: ResourceType) -> bool:
        """Return whether an ACL allows an operation on all resources of a type, unless others deny some."""
        return self._patterns.get((AclEffect.ALLOW, resource_type, operation), _NOTHING).has_every_name

    def deny_any(self, operation: Operation, resource_type: ResourceType) -> bool:
        """Return whether an ACL denies an operation on some resource of a type."""
        return (AclEffect.DENY, resource_type, operation) in self._patterns

    def allowed_patterns(self, operation: Operation, resource_type: ResourceType) -> list[str]:
        """Return the names for which an operation is allowed. Prefixes end with a star."""
        found = self._patterns.get((AclEffect.ALLOW, resource_type, operation), _NOTHING)
        return sorted((*found.literals, *(f"{each}{EVERY_NAME}" for each in found.prefixes)))

    def allow_anywhere(
        self, operation: Operation, resource_type: ResourceType, others: NamePatterns | None = None
    ) -> bool:
        """Return whether an operation is allowed for a pattern of the ACLs, or of others, that is not wholly denied."""
        denied = self._patterns.get((AclEffect.DENY, resource_type, operation), _NOTHING)
        for allowed in (self._patterns.get((AclEffect.ALLOW, resource_type, operation), _NOTHING), others or _NOTHING):
            if denied.has_every_name:
                return False
            if any(name == EVERY_NAME or not denied.has(name) for name in allowed.literals):
                return True
            if any(not denied.has_all_with(prefix) for prefix in allowed.prefixes):
                return True
        return False


_NOTHING = NamePatterns(())
