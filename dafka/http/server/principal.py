"""Principal: the user of a request and its permissions."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from dafka.broker.access.permissions import Permission, Permissions
from dafka.broker.access.users import Users
from dafka.broker.access.users_file import User
from dafka.broker.core.acls import Operation, ResourceType
from dafka.http.server.errors import WebError

EVERYTHING = Permissions(**{each.value: ("*",) for each in Permission})


@attrs.frozen(eq=False)
class Principal:
    """The user of a client and its permissions. They are looked up each time, because they change."""

    _users: Users | None
    """None if clients do not authenticate."""
    user: str | None = None
    """The name of the user; None if there are no users, or the client has not authenticated."""
    _is_valid: Callable[[User], bool] = lambda _user: True
    """Returns whether the credentials are still valid; a token can be revoked, for example."""
    is_proved: bool = attrs.field(default=False, kw_only=True)
    """Whether an issuer of tokens names the user, whom the broker need not know."""
    host: str = attrs.field(default="", kw_only=True)
    """The address of the client."""
    is_broker: bool = attrs.field(default=False, kw_only=True)
    """Whether another broker sends the request. It has checked its client's permissions."""

    @property
    def is_known(self) -> bool:
        """Whether the client has authenticated, or need not."""
        return self._users is None or self.user is not None

    @property
    def permissions(self) -> Permissions:
        """The user's permissions. Raises `WebError` if the client must authenticate (again)."""
        user = self._find_valid()
        return EVERYTHING if self._users is None or user is None else self._users.permissions_of(user, self.host)

    def check_valid(self) -> None:
        """Raise `WebError` if the client must authenticate (again)."""
        self._find_valid()

    def _find_valid(self) -> User | None:
        """Return the user; None if clients need not authenticate."""
        if self._users is None:
            return None
        if self.user is None:
            raise WebError("unauthenticated", "expected a token, or a user with a password")
        user = self._users.find(self.user, is_proved=self.is_proved)
        if user is None or not self._is_valid(user):
            raise WebError("unauthenticated", f"what proved that this is {self.user!r} does not count any more")
        return user

    def check_read(self, topic: str) -> None:
        """Raise `WebError` if the user may not read a topic."""
        _check(self.permissions.may_read(topic), "read", "topic", topic)

    def check_write(self, topic: str) -> None:
        """Raise `WebError` if the user may not publish to a topic."""
        _check(self.permissions.may_write(topic), "write", "topic", topic)

    def check_admin(self, topic: str) -> None:
        """Raise `WebError` if the user may not create, change and delete a topic."""
        _check(self.permissions.may_administer(topic), "admin", "topic", topic)

    def check_see(self, topic: str) -> None:
        """Raise `WebError` if the user may not see a topic."""
        _check(self.permissions.may_see(topic), "read, write or admin", "topic", topic)

    def check_group(self, group: str) -> None:
        """Raise `WebError` if the user may not use a group."""
        _check(self.permissions.may_use_group(group), "groups", "group", group)

    def check_group_deletion(self, group: str) -> None:
        """Raise `WebError` if the user may not delete a group."""
        is_permitted = self.permissions.allow(Operation.DELETE, ResourceType.GROUP, group)
        _check(is_permitted, "groups", "group", group)

    def check_administrator(self) -> None:
        """Raise `WebError` if the user is not an administrator."""
        if not self.permissions.is_administrator:
            raise WebError("forbidden", "expected a user with the permission admin for '*'")


def _check(is_permitted: bool, permission: str, what: str, name: str) -> None:
    if not is_permitted:
        raise WebError("forbidden", f"the user has no permission {permission} for the {what} {name!r}")
