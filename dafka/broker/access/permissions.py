"""What one user may do: by the permissions in a file of users, and by the ACLs of the cluster."""

from __future__ import annotations

import re
from enum import Enum
from functools import cached_property, lru_cache

import attrs

from dafka.broker.core.acls import (
    CLUSTER_NAME,
    EVERY_NAME,
    PRINCIPAL_PREFIX,
    Acl,
    AclRules,
    NamePatterns,
    Operation,
    PatternType,
    ResourceType,
)


class Permission(Enum):
    """A kind of permission in a file of users."""

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"
    GROUPS = "groups"
    TRANSACTIONS = "transactions"


_TOPIC, _GROUP, _TRANSACTION = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID
_TOPIC_ADMIN = (Operation.CREATE, Operation.DELETE, Operation.ALTER, Operation.ALTER_CONFIGS)
_CLUSTER_ADMIN = (
    Operation.CREATE,
    Operation.ALTER,
    Operation.ALTER_CONFIGS,
    Operation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS,
)
_SEEING = (Permission.READ, Permission.WRITE, Permission.ADMIN)

_GRANTED: dict[tuple[ResourceType, Operation], tuple[Permission, ...]] = {
    (_TOPIC, Operation.READ): (Permission.READ,),
    (_TOPIC, Operation.WRITE): (Permission.WRITE,),
    **{(_TOPIC, each): (Permission.ADMIN,) for each in _TOPIC_ADMIN},
    (_TOPIC, Operation.DESCRIBE): _SEEING,
    (_TOPIC, Operation.DESCRIBE_CONFIGS): _SEEING,
    **{(_GROUP, each): (Permission.GROUPS,) for each in Operation},
    **{(_TRANSACTION, each): (Permission.TRANSACTIONS,) for each in Operation},
}
"""The permissions of a file that grant an operation. Each of them is enough."""

_SHOWN: dict[Permission, tuple[ResourceType, tuple[Operation, ...]]] = {
    Permission.READ: (_TOPIC, (Operation.READ, Operation.DESCRIBE_CONFIGS)),
    Permission.WRITE: (_TOPIC, (Operation.WRITE, Operation.DESCRIBE_CONFIGS)),
    Permission.ADMIN: (_TOPIC, _TOPIC_ADMIN),
    Permission.GROUPS: (_GROUP, (Operation.ALL,)),
    Permission.TRANSACTIONS: (_TRANSACTION, (Operation.ALL,)),
}
"""The permissions of a file as operations of ACLs."""

_NEEDED: dict[Permission, tuple[ResourceType, tuple[Operation, ...]]] = {
    Permission.READ: (_TOPIC, (Operation.READ,)),
    Permission.WRITE: (_TOPIC, (Operation.WRITE,)),
    Permission.ADMIN: (_TOPIC, _TOPIC_ADMIN),
    Permission.GROUPS: (_GROUP, (Operation.READ,)),
    Permission.TRANSACTIONS: (_TRANSACTION, (Operation.WRITE,)),
}
"""The operations that together are worth a permission of a file."""


@attrs.frozen(slots=False)
class Permissions:
    """What one user may do. Each attribute is a list of patterns, in which `*` matches any characters.

    `admin` and `groups` also permit to change and delete topics and groups. `*` in `admin` permits operations on the
    cluster.
    """

    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    admin: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    transactions: tuple[str, ...] = ()

    @property
    def _rules(self) -> AclRules:
        return _NO_RULES

    def allow(self, operation: Operation, resource_type: ResourceType, name: str = CLUSTER_NAME) -> bool:
        """Return whether the user may do something with a resource; by default, with the cluster."""
        is_granted = self._grants(operation, resource_type, name)
        if is_granted and EVERY_NAME in self.admin:
            return True
        rules = self._rules
        return (is_granted or rules.allow(operation, resource_type, name)) and not rules.deny(
            operation, resource_type, name
        )

    def _grants(self, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """Return whether the permissions of the file grant an operation."""
        if resource_type is ResourceType.CLUSTER:
            return operation in _CLUSTER_ADMIN and EVERY_NAME in self.admin
        return any(self.has(each, name) for each in _GRANTED.get((resource_type, operation), ()))

    def has(self, permission: Permission, name: str) -> bool:
        """Return whether the file has a permission for the topic, group or transactional id of this name."""
        return any(_matches(pattern, name) for pattern in self._patterns(permission))

    def _patterns(self, permission: Permission) -> tuple[str, ...]:
        patterns: tuple[str, ...] = getattr(self, permission.value)
        return patterns

    # Topics

    def may_read(self, topic: str) -> bool:
        """Return whether the user may read a topic."""
        return self.allow(Operation.READ, _TOPIC, topic)

    def may_write(self, topic: str) -> bool:
        """Return whether the user may publish to a topic."""
        return self.allow(Operation.WRITE, _TOPIC, topic)

    def may_see(self, topic: str) -> bool:
        """Return whether the user may see a topic, which any permission for the topic allows."""
        return self.allow(Operation.DESCRIBE, _TOPIC, topic)

    def may_create(self, topic: str) -> bool:
        """Return whether the user may create a topic."""
        return self.allow(Operation.CREATE, ResourceType.CLUSTER) or self.allow(Operation.CREATE, _TOPIC, topic)

    def may_create_by_use(self, topic: str) -> bool:
        """Return whether the use of a missing topic creates it, with all defaults."""
        is_writer = self.has(Permission.WRITE, topic) and self.may_write(topic)
        return (is_writer and not self._rules.deny(Operation.CREATE, _TOPIC, topic)) or self.may_create(topic)

    def may_move(self, topic: str) -> bool:
        """Return whether the user may choose the brokers of a topic."""
        is_admin = self.has(Permission.ADMIN, topic) and self.allow(Operation.ALTER, _TOPIC, topic)
        return is_admin or self.allow(Operation.ALTER, ResourceType.CLUSTER)

    def may_administer(self, topic: str) -> bool:
        """Return whether the user may create, change and delete a topic."""
        return all(self.allow(each, _TOPIC, topic) for each in _TOPIC_ADMIN)

    def may_write_anywhere(self) -> bool:
        """Return whether the user may publish to any topic, which idempotent producers must before they name one."""
        if self.allow(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER) or (self.write and EVERY_NAME in self.admin):
            return True
        granted = NamePatterns(_view("", _TOPIC, Operation.WRITE, each) for each in self.write)
        return self._rules.allow_anywhere(Operation.WRITE, _TOPIC, granted)

    # Others

    def may_use_group(self, group: str) -> bool:
        """Return whether the user may be a member of a group, and commit its offsets."""
        return self.allow(Operation.READ, _GROUP, group)

    @property
    def may_use_every_group(self) -> bool:
        """Whether the user may use all groups, whatever their names are."""
        is_granted, operation = EVERY_NAME in self.groups, (Operation.READ, _GROUP)
        if is_granted and EVERY_NAME in self.admin:
            return True
        return (is_granted or self._rules.allow_all(*operation)) and not self._rules.deny_any(*operation)

    def may_use_transaction(self, transactional_id: str) -> bool:
        """Return whether the user may use a transactional id."""
        return self.allow(Operation.WRITE, _TRANSACTION, transactional_id)

    @property
    def is_administrator(self) -> bool:
        """Whether the user may administer the whole cluster."""
        return all(self.allow(each, ResourceType.CLUSTER) for each in _CLUSTER_ADMIN)

    # Showing

    def patterns(self, permission: Permission) -> list[str]:
        """Return the patterns of what the user may do, as far as a permission can express them. It is a hint."""
        resource_type, operations = _NEEDED[permission]
        first, *others = (self._rules.allowed_patterns(each, resource_type) for each in operations)
        return [*self._patterns(permission), *(each for each in first if all(each in other for other in others))]

    def list_acls(self, user: str) -> list[Acl]:
        """Return the permissions of the file as equivalent ACLs of a user.

        A pattern with a star before its end is shown as it is in the file, since no ACL has such patterns.
        """
        found = [
            _view(user, resource_type, operation, pattern)
            for permission, (resource_type, operations) in _SHOWN.items()
            for operation in operations
            for pattern in self._patterns(permission)
        ]
        if EVERY_NAME in self.admin:
            found += [_view(user, ResourceType.CLUSTER, each, CLUSTER_NAME) for each in _CLUSTER_ADMIN]
        return list(dict.fromkeys(found))


@attrs.frozen(slots=False)
class EffectivePermissions(Permissions):
    """The permissions in a file, with the ACLs of the cluster that count for the user at the client's address.

    The ACLs allow more, and what they deny is not permitted. But a user with `*` in `admin` keeps all permissions of
    the file, so that no ACL locks everybody out.
    """

    acls: tuple[Acl, ...] = ()

    @cached_property
    def _rules(self) -> AclRules:
        return AclRules(self.acls)


_NO_RULES = AclRules(())


def _view(user: str, resource_type: ResourceType, operation: Operation, pattern: str) -> Acl:
    """Return a pattern of a file as an ACL."""
    first, star, rest = pattern.partition(EVERY_NAME)
    if first and star and not rest:
        return Acl(resource_type, first, PRINCIPAL_PREFIX + user, operation, PatternType.PREFIXED)
    return Acl(resource_type, pattern, PRINCIPAL_PREFIX + user, operation)


def _matches(pattern: str, name: str) -> bool:
    return pattern in {"*", name} or ("*" in pattern and _compile(pattern).fullmatch(name) is not None)


@lru_cache(maxsize=1024)
def _compile(pattern: str) -> re.Pattern[str]:
    # Atomic groups make each star stop at the first match of the next part, so that no name causes slow backtracking.
    first, *others = (re.escape(part) for part in re.split(r"\*+", pattern))
    inner = "".join(f"(?>.*?{part})" for part in others[:-1])
    return re.compile(f"{first}{inner}.*{others[-1]}", re.DOTALL)
