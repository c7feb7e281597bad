"""The users of a broker, from its file and from the cluster."""

from __future__ import annotations

from pathlib import Path

import attrs

from dafka.broker.access.credentials import Credential, Token
from dafka.broker.access.permissions import EffectivePermissions, Permissions
from dafka.broker.access.users_file import User, UsersFile, find_user_name_problem
from dafka.broker.core.acls import EVERY_NAME, Acl, normalize_host
from dafka.broker.core.metadata.client_access import ClientAccess

CACHED_MAX = 10_000
"""How many looked up users and permissions are kept, together. Permissions are of a user at an address."""


class Users:
    """The users in a file and in the cluster, and what each may do from an address.

    A user in the file has the credentials of the file only. The ACLs of the cluster count for all users. Threads can
    call `find`. Raise `ConfigError` if the file cannot be read at first.
    """

    def __init__(self, path: Path) -> None:
        self._file = UsersFile(path)
        self._access = ClientAccess()
        self._found: dict[str, User | None] = {}
        self._permissions: dict[tuple[str, str], EffectivePermissions] = {}
        self._version = self._access.version

    def join(self, access: ClientAccess) -> None:
        """Take the users and the ACLs of the broker's cluster into account from now on."""
        self._access = access
        self._forget()

    def _forget(self) -> None:
        # The thread of a login can still add an outdated user, which goes into the former dictionary.
        version = self._access.version
        self._found, self._permissions = {}, {}
        self._version = version

    def find_token(self, secret: str) -> tuple[User, Token] | None:
        """Return the user of a token and the stored token; None if the token is unknown or has expired."""
        return self._file.find_token(secret)

    def find(self, name: str, *, is_proved: bool = False) -> User | None:
        """Return the user with this name; None if it does not exist.

        If something else than a password of this broker or cluster has proved who the user is, it always exists.
        """
        found = self._find(name)
        return User(name, {}, Permissions()) if found is None and is_proved else found

    def _find(self, name: str) -> User | None:
        in_file = self._file.find(name)
        if in_file is not None or find_user_name_problem(name):
            return in_file
        self._forget_changed()
        found = self._found
        if name not in found:
            found[name] = self._find_in_cluster(name)
        return found[name]

    def _forget_changed(self) -> None:
        if self._version != self._access.version or len(self._permissions) + len(self._found) > CACHED_MAX:
            self._forget()

    def _find_in_cluster(self, name: str) -> User | None:
        credentials = {}
        for mechanism, each in dict(self._access.find_credentials(name)).items():
            salt, stored_key, server_key = each.decode()
            credentials[mechanism.sasl_name] = Credential(salt, each.iterations, stored_key, server_key)
        return User(name, credentials, Permissions()) if credentials else None

    def is_in_file(self, name: str) -> bool:
        """Return whether a user is in the file, so that clients cannot change it."""
        return self._file.find(name) is not None

    def list_file_users(self) -> list[User]:
        """Return the users in the file."""
        return list(self._file.users.values())

    def list_file_acls(self) -> list[Acl]:
        """Return what the file permits as ACLs."""
        return [acl for user in self._file.users.values() for acl in user.permissions.list_acls(user.name)]

    def permissions_of(self, user: User, host: str) -> Permissions:
        """Return what a user may do from an address, by the file and the present ACLs."""
        self._forget_changed()
        found = self._permissions.get((user.name, EVERY_NAME)) or self._permissions.get((user.name, host))
        if found is None:
            patterns = attrs.asdict(user.permissions, recurse=False)
            acls = self._access.list_acls_of(user.name, _address_of(host))
            found = EffectivePermissions(**patterns, acls=acls)
            key = host if self._access.names_host_for(user.name) else EVERY_NAME
            self._permissions[user.name, key] = found
        return found

    def refresh(self) -> bool:
        """Read the file again if it has changed. Return whether its users changed; see `UsersFile.refresh`."""
        is_changed = self._file.refresh()
        if is_changed:
            self._forget()
        return is_changed


def _address_of(host: str) -> str:
    """Return the address of a client as ACLs have it; the host itself if it is none."""
    try:
        return normalize_host(host)
    except ValueError:
        return host
