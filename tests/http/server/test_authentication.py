"""Who a request comes from: passwords, tokens, sessions and other brokers."""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from dafka.broker.access.credentials import MECHANISMS, create_token, derive_credential
from dafka.broker.access.logins import Logins
from dafka.broker.access.permissions import EffectivePermissions, Permissions
from dafka.broker.access.users import Users
from dafka.broker.access.users_file import User, write_users
from dafka.broker.connections.tcp_server import AcceptedClient
from dafka.http.forwarding.credentials import SCHEME, RequestSigner, SignatureChecker, create_key
from dafka.http.server.authentication import COOKIE, SESSION_S, Authenticator, Sessions
from dafka.http.server.errors import WebError
from dafka.http.server.principal import Principal
from dafka.http1.head import Head
from tests.http.running import Answer, SharedWeb
from tests.http.secured import PASSWORD, Account, run_secured
from tests.http.websocket.clients import open_client

MODULE = "dafka.http.server.authentication"
SECRET, SENDER, RECEIVER = "s" * 32, "a" * 32, "b" * 32
PASSWORDS = {each: {name: derive_credential(name, each, 4096) for name in MECHANISMS} for each in (PASSWORD, "new")}
READ, WRITE = Permissions(read=("orders",)), Permissions(write=("orders",))
EXPIRY_MS = 2**42


def basic(user: str, password: str = PASSWORD) -> str:
    return f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}"


class Door:
    """An authenticator, with the user `ada` and her tokens in a file, and clocks that tests set."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(f"{MODULE}.FAILURE_DELAY_S", 0)
        monkeypatch.setattr("dafka.broker.access.credentials.time", self)
        self.path, self.now = path, 1000.0
        tokens = create_token(), create_token(), create_token(expires_at_ms=EXPIRY_MS)
        self.secrets, self.tokens = [each[0] for each in tokens], [each[1] for each in tokens]
        self.ada = User("ada", PASSWORDS[PASSWORD], READ, tuple(self.tokens))
        write_users(path, {"ada": self.ada})
        self.users = Users(path)
        self.sessions = Sessions(lambda: self.now)
        self.authenticator = Authenticator(self.users, self.sessions, Logins())
        self.signatures = SignatureChecker(SECRET, RECEIVER)
        self._hosts = count()  # each may guess a few passwords

    def time(self) -> float:
        return self.now

    def write(self, *users: User) -> None:
        write_users(self.path, {each.name: each for each in users})
        self.users.refresh()

    async def identify(self, *, is_private: bool = True, **headers: str) -> Principal:
        given = {name.lower(): value for name, value in headers.items()}
        head, host = Head("GET", "/topics", ("topics",), (), given), f"h{next(self._hosts)}"
        principal = await self.authenticator.identify(
            head, host=host, is_private=is_private, signatures=self.signatures
        )
        assert principal.user is None or principal.host == host, "ACLs count for addresses"
        return principal

    async def outcome(self, **options: Any) -> str:
        """Return the name of the user of a request, an empty one if it has no credentials, or why it is refused."""
        try:
            principal = await self.identify(**options)
            assert principal.is_known == (principal.user is not None)
            if principal.is_known:
                assert principal.permissions == EffectivePermissions(**attrs.asdict(self.ada.permissions))
                return f"{principal.user}"
        except WebError as error:
            return error.code
        with pytest.raises(WebError, match="expected a token, or a user with a password"):
            _ = principal.permissions
        return ""


@pytest.fixture
def door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Door:
    return Door(tmp_path / "users", monkeypatch)


async def test_credentials_tell_who_a_request_comes_from_and_wrong_ones_are_refused_alike(door: Door) -> None:
    token, session = door.secrets[0], f"{COOKIE}={door.sessions.begin(door.ada)}"
    known: list[dict[str, Any]] = [
        *({"Authorization": each} for each in (basic("ada"), basic("ada").replace("Basic", "bASIC"))),
        *({"Authorization": each} for each in (f"Bearer {token}", f" bearer   {token} ")),
        *({"Cookie": each} for each in (session, f'theme={{"dark": [1]}}; =; x;{session}; {COOKIE}=second')),
        {"Cookie": session, "is_private": False},
    ]
    unknown = ["", f"{COOKIE}=forged", f"{COOKIE}=", f"x{session}", session.replace(COOKIE, COOKIE.upper())]
    assert {await door.outcome(**each) for each in known} == {"ada"}
    assert [await door.outcome(Cookie=each, Authorization="  ") for each in [*unknown, session[:-1]]] == [""] * 6
    assert (door.authenticator.logins, door.authenticator.failed_logins) == (3, 0)
    door.now = EXPIRY_MS / 1000
    wrong = [
        *(basic("ada", "wrong"), basic("nobody"), basic("ada", ""), basic("", PASSWORD), basic("ADA")),
        *("Basic", "Basic ?", "Basic YWRh", "Basic /w==", f"Basic {b64encode(b'ada').decode()}", "Bearer"),
        *(f"Bearer {each}" for each in ("dafka_unknown", f"{token}x", door.secrets[2], PASSWORD)),
        *("Digest username=ada", f"{COOKIE} {PASSWORD}"),
    ]
    messages = []
    for given in wrong:
        with pytest.raises(WebError) as refused:
            await door.identify(Authorization=given, Cookie=session)
        assert refused.value.code == "unauthenticated", given
        messages.append(refused.value.message)
    assert messages[0] == messages[1], "nobody learns which users there are"
    assert (door.authenticator.logins, door.authenticator.failed_logins) == (3, 10)
    for given in (basic("ada"), basic("ada", "wrong"), f"Bearer {token}", "Bearer x", SCHEME, f"{SCHEME} x"):
        assert await door.outcome(Authorization=given, is_private=False) == "forbidden", "others could read it"
    assert (door.authenticator.logins, door.authenticator.failed_logins) == (3, 10)


@attrs.define
class Ada:
    """What there is of the user `ada` now, and what she can prove that she is she with."""

    random: Random
    door: Door
    password: str = PASSWORD
    tokens: Sequence[int] = (0, 2)
    permissions: Permissions = READ
    is_there: bool = True
    ends: dict[str, float] = attrs.field(factory=dict)
    """For the secrets of sessions, when they end."""

    def change(self) -> None:
        what = self.random.choice(["password", "tokens", "permissions", "is_there", "time", "log out"])
        if what == "password":
            self.password = self.random.choice([*PASSWORDS])
        elif what == "tokens":
            self.tokens = self.random.sample(range(3), 2)
        elif what == "permissions":
            self.permissions = self.random.choice([READ, WRITE])
        elif what == "is_there":
            self.is_there = self.random.random() < 0.7
        elif what == "time":
            self.door.now += self.random.choice([SESSION_S / 2, SESSION_S / 2, EXPIRY_MS / 1000 - self.door.now])
        elif self.ends:
            self.door.sessions.end(self.ends.popitem()[0])
        tokens = tuple(self.door.tokens[each] for each in self.tokens)
        user = User("ada", PASSWORDS[self.password], self.permissions, tokens)
        self.door.write(*[user] if self.is_there else [])

    def prove(self) -> tuple[dict[str, Any], Callable[[], bool]]:
        """Return headers of a request, and what says whether they count."""
        kind, password = self.random.choice(["password", "token", "session"]), self.random.choice([*PASSWORDS])
        if kind == "password":
            return {"Authorization": basic("ada", password)}, lambda: self.is_there and self.password == password
        if kind == "token":
            number, ends = self.random.choice([(0, math.inf), (1, math.inf), (2, EXPIRY_MS / 1000)])
            return {
                "Authorization": f"Bearer {self.door.secrets[number]}"
            }, lambda: self.is_there and number in self.tokens and self.door.now < ends
        secret = self.door.sessions.begin(User("ada", PASSWORDS[password], READ))
        self.ends[secret] = self.door.now + SESSION_S
        return {
            "Cookie": f"{COOKIE}={secret}"
        }, lambda: self.is_there and self.password == password and self.door.now < self.ends.get(secret, 0)


def refusal(check: Callable[[], None]) -> str:
    try:
        check()
    except WebError as error:
        return error.code
    return ""


async def test_a_proof_counts_while_what_it_rests_on_is_there_also_on_connections_that_are_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(15):
        ada = Ada(Random(seed), Door(tmp_path / "users", monkeypatch))
        proofs: list[tuple[Callable[[], bool], Principal]] = []
        for _ in range(20):
            ada.change()
            headers, counts = ada.prove()
            try:
                proofs.append((counts, await ada.door.identify(**headers)))
            except WebError:
                assert not counts(), seed
            for counts, principal in proofs:
                found = [refusal(principal.check_valid)]
                found += [refusal(partial(each, "orders")) for each in (principal.check_read, principal.check_write)]
                found += [refusal(partial(each, "orders")) for each in (principal.check_see, principal.check_admin)]
                found += [refusal(partial(principal.check_group, "orders")), refusal(principal.check_administrator)]
                may = ["", "", "forbidden"] if ada.permissions == READ else ["", "forbidden", ""]
                may += ["", "forbidden", "forbidden", "forbidden"]
                assert found == (may if counts() else ["unauthenticated"] * 7), seed


async def test_a_password_is_hashed_once_until_it_changes_or_others_were_used_later(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{MODULE}.VERIFIED_MAX", 2)
    door.write(*(User(each, PASSWORDS[PASSWORD], READ) for each in ("ada", "bob", "eve")))
    for name, hashed in zip(("ada", "bob", "ada", "eve", "ada", "eve", "bob"), (1, 2, 2, 3, 3, 3, 4), strict=True):
        assert (await door.identify(Authorization=basic(name))).user == name
        assert door.authenticator.logins == hashed, name
    door.write(User("bob", PASSWORDS["new"], READ))
    assert await door.outcome(Authorization=basic("bob")) == "unauthenticated"
    assert await door.outcome(Authorization=basic("bob", "new")) == "bob"
    assert (door.authenticator.logins, door.authenticator.failed_logins) == (5, 1)


async def test_another_broker_signs_each_request(door: Door) -> None:
    with pytest.raises(WebError) as asked:
        await door.identify(Authorization=RequestSigner.ASK)
    ((name, value),) = asked.value.headers
    assert (asked.value.code, name) == ("unauthenticated", "WWW-Authenticate")
    signer = RequestSigner(SECRET, SENDER, RECEIVER, value.removeprefix(f"{SCHEME} "))
    for _ in range(2):
        principal = await door.identify(Authorization=signer.sign("GET", "/topics"))
        assert (principal.is_broker, principal.is_known, principal.user) == (True, True, None)
        principal.check_administrator()
    for given in (signer.sign("GET", "/groups"), signer.sign("POST", "/topics"), f"{SCHEME} {SENDER}.3.{'0' * 64}"):
        assert await door.outcome(Authorization=given) == "unauthenticated"
    assert door.authenticator.failed_logins == 3
    assert create_key() != create_key(), "brokers without a secret do not share one"


async def test_without_users_everybody_may_do_everything() -> None:
    authenticator, signatures = Authenticator(None, Sessions(lambda: 0), Logins()), SignatureChecker("", RECEIVER)
    for headers in ({}, {"authorization": basic("ada", "wrong")}, {"authorization": "Bearer x"}, {"cookie": "x"}):
        head = Head("GET", "/", ("",), (), headers)
        principal = await authenticator.identify(head, host="h", is_private=False, signatures=signatures)
        assert (principal.is_known, principal.user, principal.is_broker) == (True, None, False)
        principal.check_administrator()
        principal.check_write("orders")
    claimed = [
        await authenticator.check_password("ada", "wrong", host="h", is_private=False),
        await authenticator.check_token("x", host="h", is_private=False),
    ]
    assert [each.user for each in claimed] == [None, None], "nobody has proved who it is"


async def test_wrong_credentials_are_answered_late(
    door: Door, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    monkeypatch.setattr(f"{MODULE}.FAILURE_DELAY_S", 7)
    for given, delay_s in ((f"Bearer {door.secrets[0]}", 0), ("Bearer x", 7), (f"{SCHEME} x", 7)):
        begun_s = trio.current_time()
        await door.outcome(Authorization=given)
        assert trio.current_time() == begun_s + delay_s


def test_sessions_last_while_they_are_used_and_give_way_to_others_in_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user with many sessions ends the first of them, and beyond all the one that was not used for longest."""
    monkeypatch.setattr(f"{MODULE}.USER_SESSIONS_MAX", 3)
    monkeypatch.setattr(f"{MODULE}.SESSIONS_MAX", 5)
    users, clock = [User(each, {}, Permissions()) for each in ("ada", "bob", "eve")], SimpleNamespace(now=0.0)
    for seed in range(100):
        random, clock.now = Random(seed), 0.0
        sessions, secrets = Sessions(lambda: clock.now), ["unknown"]
        model: dict[str, tuple[User, float]] = {}  # by secret, the user and the end; used last comes last
        for _ in range(50):
            secret = random.choice(secrets[-8:])
            user, end = model.get(secret, (None, 0))
            match random.choice(["begin", "begin", "find", "find", "end", "wait"]):
                case "begin":
                    user = random.choice(users)
                    own = sorted((each for each in model if model[each][0] == user), key=secrets.index)
                    for each in own[: max(len(own) - 2, 0)]:
                        del model[each]
                    for each in [*model][: max(len(model) - 4, 0)]:
                        del model[each]
                    secrets.append(sessions.begin(user))
                    model[secrets[-1]] = user, clock.now + SESSION_S
                case "find":
                    model.pop(secret, None)
                    assert sessions.find(secret) == (user if clock.now < end else None), seed
                    if user is not None and clock.now < end:
                        model[secret] = user, clock.now + SESSION_S
                case "end":
                    sessions.end(secret)
                    model.pop(secret, None)
                case "wait":
                    clock.now += random.choice([1, SESSION_S / 2, SESSION_S])
            is_open = [each in model and clock.now < model[each][1] for each in secrets]
            assert [*map(sessions.is_open, secrets)] == is_open, seed


# Through the door


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SharedWeb, Account]]:
    with run_secured(tmp_path_factory.mktemp("users")) as running:
        yield running


def test_pages_of_other_sites_cannot_use_the_session_of_a_browser(secured: tuple[SharedWeb, Account]) -> None:
    web, _ = secured
    entered = web.ask("POST", "/session", document={"user": "ada", "password": PASSWORD})
    cookie: dict[str, Any] = {"Cookie": entered.headers["Set-Cookie"].partition(";")[0]}
    cross_site: dict[str, Any] = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "cors"}
    assert web.ask("GET", "/topics", **cookie, **cross_site).code == "forbidden"
    assert web.ask("POST", "/topics", document={"name": "a"}, **cookie, Origin="https://evil.example").status == 403


async def test_nobody_logs_in_over_a_connection_that_others_can_read(
    secured: tuple[SharedWeb, Account], monkeypatch: pytest.MonkeyPatch
) -> None:
    web, account = secured
    monkeypatch.setattr(AcceptedClient, "is_local", False)
    login, token = {"user": "ada", "password": PASSWORD}, f"Bearer {account.token}"
    assert (await web.request("POST", "/session", document=login)).code == "forbidden"
    for given in (basic("ada"), token):
        assert (await web.get("/topics", Authorization=given)).code == "forbidden"
    for fields in (login, {"token": account.token}):
        async with open_client(web) as client:
            assert (await client.ask("authenticate", **fields))["code"] == "forbidden"


async def test_wrong_passwords_lock_out_nobody_else(secured: tuple[SharedWeb, Account]) -> None:
    """Many wrong passwords filled the queue, and honest users were answered 429."""
    web, account = secured
    refused: list[Answer] = []

    async def guess(number: int) -> None:
        refused.append(await web.get("/topics", Authorization=basic("root", f"guess {number}")))

    async with trio.open_nursery() as nursery:
        for number in range(30):
            nursery.start_soon(guess, number)
        answer = await web.get("/session", Authorization=basic("ada"))
        assert (answer.status, answer.document["user"]) == (200, "ada")
        assert (await web.get("/session", **account.root)).status == 200
    assert {each.code for each in refused} == {"unauthenticated", "too_many_requests"}
    for each in refused:
        assert (each.status == 429) == (int(each.headers.get("Retry-After", 0)) >= 1)
