"""A broker with one user, whose permissions tests change, and what a request or a message needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
from anyio.from_thread import start_blocking_portal

from dafka import Config
from dafka.broker.access.credentials import MECHANISMS, create_token, derive_credential
from dafka.broker.access.permissions import Permission, Permissions
from dafka.broker.access.users_file import User, write_users
from dafka.http.server.principal import EVERYTHING
from tests.http.running import STEADY, SharedWeb, open_pair, run_web, run_webs
from tests.waiting import poll_until

PASSWORD = "right"
KINDS = [each.value for each in Permission]

Grant = tuple[str, str]
"""A kind of permission, and the name of what it is for."""

Needs = Sequence[Sequence[Grant]] | None
"""The grants of one of these alternatives are needed, all of them; None if no user is needed."""

ANYBODY: Needs = None
USER: Needs = [[]]


@attrs.define
class Account:
    """The user `ada`: with a password and a token, and with all permissions at first. `root` has all of them always."""

    webs: Sequence[SharedWeb]
    path: Path
    _user: User
    _root: User
    token: str
    _root_token: str

    @classmethod
    def create(cls, path: Path) -> Account:
        """Write a file of users for brokers that start later."""
        credentials = {each: derive_credential(each, PASSWORD, 4096) for each in MECHANISMS}
        (secret, token), (root_secret, root_token) = create_token(), create_token()
        users = [User("ada", credentials, EVERYTHING, (token,)), User("root", credentials, EVERYTHING, (root_token,))]
        account = cls((), path, users[0], users[1], secret, root_secret)
        account._write(users)
        return account

    @property
    def bearer(self) -> dict[str, Any]:
        return {"Authorization": f"Bearer {self.token}"}

    @property
    def root(self) -> dict[str, Any]:
        return {"Authorization": f"Bearer {self._root_token}"}

    def permit(self, permissions: Permissions) -> None:
        """Give the user these permissions only. The brokers know it when this returns."""
        self._write([attrs.evolve(self._user, permissions=permissions), self._root])

    def revoke_token(self) -> None:
        """Leave the user everything but its token."""
        self._write([attrs.evolve(self._user, tokens=()), self._root])

    def remove(self) -> None:
        self._write([self._root])

    def _write(self, users: Sequence[User]) -> None:
        write_users(self.path, {each.name: each for each in users})
        for web in self.webs:
            known = web.server.authenticator.users
            assert known is not None
            web.call_sync(known.refresh)


Secured = tuple[SharedWeb, Account]
"""A broker, and the account of its user."""


@contextmanager
def run_secured(folder: Path, config: Config | None = None) -> Iterator[Secured]:
    """Run a broker with an account, in a thread of its own."""
    account = Account.create(folder / "users")
    with run_web(config=(config or Config()).with_clients(users=str(account.path), login_ms=60_000)) as web:
        account.webs = [web]
        yield web, account


@contextmanager
def run_forwarding(folder: Path) -> Iterator[Secured]:
    """Run two brokers with an account in a thread. The first one forwards: the second one leads the topic `orders`."""
    account, config = create_with_secret(folder)
    with (
        start_blocking_portal("trio") as portal,
        portal.wrap_async_context_manager(open_pair(config=config, stay_alive=False)) as pair,
    ):
        account.webs = [SharedWeb(each.broker, each.config, portal=portal) for each in (pair.first, pair.second)]
        yield account.webs[0], account


@contextmanager
def run_beside_leader(folder: Path) -> Iterator[Secured]:
    """Run two brokers of a cluster with an account in a thread: yield the second one. See `lead_elsewhere`."""
    account, config = create_with_secret(folder)
    steady = config.with_broker(heartbeat_ms=200, leader_timeout_ms=STEADY.broker.leader_timeout_ms)
    with run_webs(2, steady) as account.webs:
        yield max(account.webs, key=lambda web: web.broker.node.brokers.own.number), account


def lead_elsewhere(web: SharedWeb, topic: str, root: Mapping[str, Any]) -> None:
    """Have only the first broker of a cluster hold and lead the only log of a topic, which may be moving just now."""

    def describe() -> tuple[Any, Any]:
        log = web.ask("GET", f"/topics/{topic}", **root).document["logs"][0]
        return log["replicas"], log["leader"]

    if describe() != ([0], 0):
        web.ask("PUT", f"/topics/{topic}/logs/0/replicas", document={"replicas": [0]}, **root)
        poll_until(lambda: describe() == ([0], 0))


def create_with_secret(folder: Path) -> tuple[Account, Config]:
    """Return an account, and the configuration of brokers that know it and trust each other."""
    account, secret = Account.create(folder / "users"), folder / "secret"
    secret.write_text("s" * 32)
    return account, Config().with_clients(users=str(account.path)).with_broker(secret_file=str(secret))


def only(grants: Sequence[Grant]) -> Permissions:
    found: dict[str, tuple[str, ...]] = {}
    for kind, name in grants:
        found[kind] = (*found.get(kind, ()), name)
    return Permissions(**found)


def look_alikes(name: str) -> tuple[str, ...]:
    """Return patterns that do not match a name, or do not stand for the whole broker."""
    if name == "*":
        return ("**", "?*", "orders", "billing")
    return (f"{name}-*", f"{name}?", name[:-1], f".{name}", name.upper(), f"?{name[1:]}", f"{name}/", "")


def without_one(needs: Needs) -> Iterator[tuple[Sequence[Grant], Permissions]]:
    """Yield all permissions except one that is needed, which is named; those for similar names are there."""
    assert needs is not None
    missing = [[grant] for grant in needs[0]] if len(needs) == 1 else [[grant for (grant,) in needs]]
    for grants in missing:
        found: dict[str, tuple[str, ...]] = dict.fromkeys(KINDS, ("*",))
        for kind, name in grants:
            kept = tuple(each for alternative in needs for k, each in alternative if k == kind and each != name)
            found[kind] = (*look_alikes(name), *kept)
        yield grants, Permissions(**found)


def renamed(value: Any, names: Mapping[str, str]) -> Any:
    """Return a request or an answer about other names."""
    if isinstance(value, str):
        for old, new in names.items():
            value = value.replace(old, new)
        return value
    if isinstance(value, bytes):
        return renamed(value.decode("latin-1"), names).encode("latin-1")
    if isinstance(value, Mapping):
        return {each: renamed(content, names) for each, content in value.items()}
    return value
