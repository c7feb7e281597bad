"""Permissions of users for topics, groups and transactional ids."""

from __future__ import annotations

import re
from enum import Enum
from functools import lru_cache

import attrs


class Permission(Enum):
    """A kind of permission."""

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"
    GROUPS = "groups"
    TRANSACTIONS = "transactions"


_TOPIC_PERMISSIONS = (Permission.READ, Permission.WRITE, Permission.ADMIN)


@attrs.frozen
class Permissions:
    """What one user may do. Each attribute is a list of patterns, in which `*` matches any characters.

    `admin` and `groups` also permit to change and delete topics and groups. `*` in `admin` permits operations on the
    broker.
    """

    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    admin: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    transactions: tuple[str, ...] = ()

    def allow(self, permission: Permission, name: str) -> bool:
        """Return whether the user has a permission for the topic, group or transactional id of this name."""
        patterns: tuple[str, ...] = getattr(self, permission.value)
        return any(_matches(pattern, name) for pattern in patterns)

    def may_read(self, topic: str) -> bool:
        """Return whether the user may read a topic."""
        return self.allow(Permission.READ, topic)

    def may_write(self, topic: str) -> bool:
        """Return whether the user may publish to a topic."""
        return self.allow(Permission.WRITE, topic)

    def may_administer(self, topic: str) -> bool:
        """Return whether the user may create, change and delete a topic."""
        return self.allow(Permission.ADMIN, topic)

    def may_use_group(self, group: str) -> bool:
        """Return whether the user may use a group."""
        return self.allow(Permission.GROUPS, group)

    def may_use_transaction(self, transactional_id: str) -> bool:
        """Return whether the user may use a transactional id."""
        return self.allow(Permission.TRANSACTIONS, transactional_id)

    def may_see(self, topic: str) -> bool:
        """Return whether the user may see a topic, which any permission for the topic allows."""
        return any(self.allow(permission, topic) for permission in _TOPIC_PERMISSIONS)

    def allow_anywhere(self, permission: Permission) -> bool:
        """Return whether the user has a permission for at least one pattern."""
        return bool(getattr(self, permission.value))

    @property
    def is_administrator(self) -> bool:
        """Whether the user may administer the whole broker."""
        return "*" in self.admin


def _matches(pattern: str, name: str) -> bool:
    return pattern in {"*", name} or ("*" in pattern and _compile(pattern).fullmatch(name) is not None)


@lru_cache(maxsize=1024)
def _compile(pattern: str) -> re.Pattern[str]:
    # Atomic groups make each star stop at the first match of the next part, so that no name causes slow backtracking.
    first, *others = (re.escape(part) for part in re.split(r"\*+", pattern))
    inner = "".join(f"(?>.*?{part})" for part in others[:-1])
    return re.compile(f"{first}{inner}.*{others[-1]}", re.DOTALL)
