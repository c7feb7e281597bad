"""Who a request comes from: passwords, tokens, sessions and other brokers."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from dafka.broker.access import credentials
from dafka.broker.access.credentials import MECHANISMS, Token, create_token, derive_credential
from dafka.broker.access.logins import Logins
from dafka.broker.access.permissions import Permissions
from dafka.broker.access.users_file import User, UsersFile, write_users
from dafka.http.forwarding.credentials import SCHEME, RequestSigner, SignatureChecker
from dafka.http.server.authentication import (
    COOKIE,
    SESSION_S,
    SESSIONS_MAX,
    USER_SESSIONS_MAX,
    Authenticator,
    Sessions,
    session_of,
)
from dafka.http.server.errors import WebError
from dafka.http.server.principal import Principal
from dafka.http1.head import Head
from tests.http.running import Answer, SharedWeb
from tests.http.secured import PASSWORD, Account, run_secured

ANNE, BOB = User("anne", {}, Permissions()), User("bob", {}, Permissions())
SECRET, SENDER, RECEIVER = "s" * 32, "a" * 32, "b" * 32


def basic(user: str, password: str = PASSWORD) -> str:
    """Return the header of Basic authentication."""
    return f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}"


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


@attrs.frozen
class FixedTime:
    """Stands for the module `time`, at a time in seconds since 1970."""

    now: float

    def time(self) -> float:
        return self.now


class Door:
    """An authenticator, with the user `ada` and her tokens in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = Clock()
        self.credentials = {each: derive_credential(each, PASSWORD, 4096) for each in MECHANISMS}
        (self.token, token), (self.expired, expired) = create_token(), create_token()
        self.tokens = (token, Token(expired.token_id, expired.digest, expires_at_ms=1))
        self.ada = User("ada", self.credentials, Permissions(read=("orders",)), self.tokens)
        write_users(path, {"ada": self.ada})
        self.users = UsersFile(path)
        self.sessions = Sessions(self.clock)
        self.authenticator = Authenticator(self.users, self.sessions, Logins())
        self.signatures = SignatureChecker(SECRET, RECEIVER)

    def write(self, *users: User) -> None:
        write_users(self.path, {each.name: each for each in users})
        self.users.refresh()

    async def identify(self, *, is_private: bool = True, **headers: str) -> Principal:
        given = {name.lower(): value for name, value in headers.items()}
        head = Head("GET", "/topics", ("topics",), (), given)
        return await self.authenticator.identify(
            head, host="127.0.0.1", is_private=is_private, signatures=self.signatures
        )

    async def outcome(self, **options: Any) -> str:
        """Return the name of the user of a request, an empty one if it has no credentials, or why it is refused."""
        try:
            principal = await self.identify(**options)
            assert principal.is_known == (principal.user is not None)
            if principal.is_known:
                assert principal.permissions == self.ada.permissions
                return f"{principal.user}"
        except WebError as error:
            return error.code
        with pytest.raises(WebError, match="expected a token, or a user with a password"):
            _ = principal.permissions
        return ""


@pytest.fixture
def door(tmp_path: Path) -> Door:
    return Door(tmp_path / "users")


async def test_credentials_tell_who_a_request_comes_from(door: Door) -> None:
    cookie = f"{COOKIE}={door.sessions.begin(door.ada)}"
    accepted: list[dict[str, Any]] = [
        {"Authorization": basic("ada")},
        {"Authorization": basic("ada").replace("Basic", "bASIC")},
        {"Authorization": f"Bearer {door.token}"},
        {"Authorization": f" bearer   {door.token} "},
        {"Cookie": cookie},
        {"Cookie": f'theme={{"dark": [1]}}; =; x;{cookie}; {COOKIE}=second'},
        {"Cookie": cookie, "is_private": False},
    ]
    for given in accepted:
        assert await door.outcome(**given) == "ada", given
    without: list[dict[str, Any]] = [
        {},
        {"Authorization": "  "},
        {"Cookie": f"{COOKIE}=forged"},
        {"Cookie": f"{COOKIE}="},
        {"Cookie": f"x{cookie}"},
        {"Cookie": cookie.replace(COOKIE, COOKIE.upper())},
        {"Cookie": cookie[:-1]},
    ]
    for given in without:
        assert await door.outcome(**given) == "", given
    assert door.authenticator.failed_logins == 0


async def test_wrong_credentials_are_refused_alike(door: Door) -> None:
    cookie = f"{COOKIE}={door.sessions.begin(door.ada)}"
    wrong = [
        basic("ada", "wrong"),
        basic("nobody"),
        basic("ada", ""),
        basic("", PASSWORD),
        basic("ADA"),
        "Basic",
        "Basic ?",
        "Basic YWRh",
        "Basic /w==",
        f"Basic {b64encode(b'ada').decode()}",
        "Bearer dafka_unknown",
        "Bearer",
        f"Bearer {door.token}x",
        f"Bearer {door.expired}",
        f"Bearer {PASSWORD}",
        "Digest username=ada",
        f"{COOKIE} {PASSWORD}",
    ]
    for given in wrong:
        assert await door.outcome(Authorization=given, Cookie=cookie) == "unauthenticated", given
    messages = set()
    for given in wrong[:2]:
        with pytest.raises(WebError) as refused:
            await door.identify(Authorization=given)
        messages.add(refused.value.message)
    assert len(messages) == 1
    assert door.authenticator.logins == 0
    assert door.authenticator.failed_logins >= 10


async def test_secrets_that_others_could_read_are_not_accepted(door: Door) -> None:
    for given in (basic("ada"), basic("ada", "wrong"), f"Bearer {door.token}", "Bearer x", SCHEME, f"{SCHEME} x"):
        assert await door.outcome(Authorization=given, is_private=False) == "forbidden", given
    assert (door.authenticator.logins, door.authenticator.failed_logins) == (0, 0)


async def test_a_password_is_hashed_once_and_counts_until_it_changes(door: Door) -> None:
    for _ in range(3):
        assert await door.outcome(Authorization=basic("ada")) == "ada"
    assert door.authenticator.logins == 1
    assert await door.outcome(Authorization=basic("ada", "wrong")) == "unauthenticated"
    changed = {each: derive_credential(each, "new", 4096) for each in MECHANISMS}
    door.write(User("ada", changed, door.ada.permissions, door.tokens))
    assert await door.outcome(Authorization=basic("ada")) == "unauthenticated"
    assert await door.outcome(Authorization=basic("ada", "new")) == "ada"
    assert (door.authenticator.logins, door.authenticator.failed_logins) == (2, 2)
    await door.outcome(Authorization=f"Bearer {door.token}")
    assert door.authenticator.logins == 3


@pytest.mark.parametrize(("until_ms", "is_valid"), [(-1, True), (0, False), (1, False)])
async def test_a_token_counts_until_it_expires_also_on_a_connection_that_stays_open(
    until_ms: int, is_valid: bool, door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    expires_at_ms = 2**42
    secret, token = create_token(expires_at_ms)
    door.write(attrs.evolve(door.ada, tokens=(token,)))
    principal = await door.identify(Authorization=f"Bearer {secret}")
    principal.check_valid()
    monkeypatch.setattr(credentials, "time", FixedTime((expires_at_ms + until_ms) / 1000))
    assert (await door.outcome(Authorization=f"Bearer {secret}") == "ada") == is_valid
    if is_valid:
        principal.check_valid()
    else:
        with pytest.raises(WebError, match="does not count any more"):
            principal.check_valid()


async def test_the_passwords_that_were_used_last_are_not_hashed_again(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dafka.http.server.authentication.VERIFIED_MAX", 2)
    door.write(*(User(each, door.credentials, door.ada.permissions) for each in ("ada", "bob", "eve")))
    for name, hashed in zip(("ada", "bob", "ada", "eve", "ada", "eve", "bob"), (1, 2, 2, 3, 3, 3, 4), strict=True):
        assert (await door.identify(Authorization=basic(name))).user == name
        assert door.authenticator.logins == hashed, name


Change = Callable[[Door], None]


def remove(door: Door) -> None:
    door.write()


def change_password(door: Door) -> None:
    changed = {each: derive_credential(each, "new", 4096) for each in MECHANISMS}
    door.write(User("ada", changed, door.ada.permissions, door.tokens))


def revoke(door: Door) -> None:
    door.write(User("ada", door.credentials, door.ada.permissions))


def replace_token(door: Door) -> None:
    door.write(User("ada", door.credentials, door.ada.permissions, (create_token()[1],)))


def change_permissions(door: Door) -> None:
    door.write(User("ada", door.credentials, Permissions(write=("orders",)), door.tokens))


def log_out(door: Door) -> None:
    for each in list(door.sessions._sessions):
        door.sessions._remove(each)


def wait(door: Door) -> None:
    door.clock.time += SESSION_S


STAYS = {
    "password": {revoke, replace_token, log_out, wait},
    "token": {change_password, log_out, wait},
    "session": {revoke, replace_token},
}


@pytest.mark.parametrize("kind", STAYS)
@pytest.mark.parametrize("change", [remove, change_password, revoke, replace_token, log_out, wait])
async def test_what_is_taken_away_does_not_count_on_connections_that_are_open(
    door: Door, kind: str, change: Change
) -> None:
    proof: dict[str, Any] = {
        "password": {"Authorization": basic("ada")},
        "token": {"Authorization": f"Bearer {door.token}"},
        "session": {"Cookie": f"{COOKIE}={door.sessions.begin(door.ada)}"},
    }[kind]
    principal = await door.identify(**proof)
    assert principal.permissions.may_read("orders")
    change(door)
    if change in STAYS[kind]:
        assert principal.permissions.may_read("orders")
        return
    with pytest.raises(WebError) as refused:
        principal.check_read("orders")
    assert refused.value.code == "unauthenticated"
    assert await door.outcome(**proof) in {"", "unauthenticated"}


async def test_permissions_are_those_of_now(door: Door) -> None:
    principal = await door.identify(Authorization=basic("ada"))
    change_permissions(door)
    principal.check_write("orders")
    with pytest.raises(WebError) as refused:
        principal.check_read("orders")
    assert refused.value.code == "forbidden"


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


async def test_without_users_everybody_may_do_everything() -> None:
    authenticator = Authenticator(None, Sessions(Clock()), Logins())
    for headers in ({}, {"authorization": basic("ada", "wrong")}, {"authorization": "Bearer x"}, {"cookie": "x"}):
        principal = await authenticator.identify(
            Head("GET", "/", ("",), (), headers), host="h", is_private=False, signatures=SignatureChecker("", RECEIVER)
        )
        assert (principal.is_known, principal.user, principal.is_broker) == (True, None, False)
        principal.check_administrator()
        principal.check_write("orders")


@pytest.mark.parametrize(
    ("cookie", "secret"),
    [(f"{COOKIE}=a", "a"), (f"x=1; {COOKIE}=a=b ; {COOKIE}=c", "a=b"), (f"{COOKIE}", ""), ("x=1", None), ("", None)],
)
def test_the_secret_of_a_session_is_found_among_other_cookies(cookie: str, secret: str | None) -> None:
    assert session_of({"cookie": cookie}) == secret


# Sessions


def test_a_session_lasts_while_it_is_used() -> None:
    clock = Clock()
    sessions = Sessions(clock)
    secret = sessions.begin(ANNE)
    for _ in range(3):
        clock.time += SESSION_S - 1
        assert sessions.is_open(secret)
        assert sessions.find(secret) == ANNE
    clock.time += SESSION_S
    assert not sessions.is_open(secret)
    assert sessions.find(secret) is None
    clock.time = 0
    assert sessions.find(secret) is None, "it is forgotten"


def test_a_session_that_was_ended_is_over() -> None:
    sessions = Sessions(Clock())
    secret, other = sessions.begin(ANNE), sessions.begin(ANNE)
    sessions.end(secret)
    sessions.end("unknown")
    assert (sessions.find(secret), sessions.find(other)) == (None, ANNE)


def test_a_user_with_many_sessions_ends_none_of_others() -> None:
    sessions = Sessions(Clock())
    other = sessions.begin(BOB)
    secrets = [sessions.begin(ANNE) for _ in range(USER_SESSIONS_MAX + 5)]
    assert sessions.is_open(other)
    assert [sessions.is_open(each) for each in secrets] == [False] * 5 + [True] * USER_SESSIONS_MAX


def test_the_session_that_was_not_used_for_longest_gives_way() -> None:
    sessions = Sessions(Clock())
    users = [User(f"user-{number}", {}, Permissions()) for number in range(SESSIONS_MAX // USER_SESSIONS_MAX)]
    secrets = [sessions.begin(users[number % len(users)]) for number in range(SESSIONS_MAX)]
    assert all(map(sessions.is_open, secrets))
    sessions.find(secrets[0])
    sessions.begin(ANNE)
    assert [sessions.is_open(each) for each in secrets[:3]] == [True, False, True]
    assert len(sessions._sessions) == SESSIONS_MAX


# Through the door


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SharedWeb, Account]]:
    with run_secured(tmp_path_factory.mktemp("users")) as running:
        yield running


def test_a_browser_logs_in_and_out(secured: tuple[SharedWeb, Account]) -> None:
    web, _ = secured
    session = web.ask("GET", "/session").document
    assert (session["must_log_in"], session["user"], session["is_administrator"]) == (True, None, False)
    login = {"user": "ada", "password": "wrong"}
    refused = web.ask("POST", "/session", document=login)
    assert (refused.code, "Set-Cookie" in refused.headers) == ("unauthenticated", False)
    entered = web.ask("POST", "/session", document={**login, "password": PASSWORD})
    assert (entered.document["user"], entered.document["must_log_in"]) == ("ada", False)
    secret, *attributes = entered.headers["Set-Cookie"].split("; ")
    assert attributes == ["Path=/", f"Max-Age={SESSION_S:.0f}", "HttpOnly", "SameSite=Strict"]
    cookie: dict[str, Any] = {"Cookie": secret}
    assert web.ask("GET", "/session", **cookie).document["is_administrator"]
    cross_site: dict[str, Any] = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "cors"}
    assert web.ask("GET", "/topics", **cookie, **cross_site).code == "forbidden"
    assert web.ask("POST", "/topics", document={"name": "a"}, **cookie, Origin="https://evil.example").status == 403
    again = web.ask("POST", "/session", document={**login, "password": PASSWORD}, **cookie)
    assert web.ask("GET", "/topics", **cookie).code == "unauthenticated", "the former session has ended"
    cookie = {"Cookie": again.headers["Set-Cookie"].partition(";")[0]}
    left = web.ask("DELETE", "/session", **cookie)
    assert (left.status, left.headers["Set-Cookie"].split("; ")[:3]) == (204, [f"{COOKIE}=", "Path=/", "Max-Age=0"])
    assert web.ask("GET", "/topics", **cookie).code == "unauthenticated"


def test_a_broker_without_users_has_no_sessions(web: SharedWeb) -> None:
    assert web.ask("GET", "/session").document["must_log_in"] is False
    assert web.ask("POST", "/session", document={"user": "ada", "password": "x"}).code == "bad_request"


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
