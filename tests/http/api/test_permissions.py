"""What each kind of user may do, over all routes there are."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from dafka import Config
from dafka.broker.access.credentials import MECHANISMS, create_token, derive_credential
from dafka.broker.access.permissions import Permissions
from dafka.broker.access.users_file import read_users, write_users
from dafka.http.api import ROUTES, RequiredPermission
from tests.http.running import DEADLINE_S, Answer, RunningWeb, open_web
from tests.kafka.server.secured import EVERYTHING, PASSWORD, write_user_file

USERS = {
    "reader": Permissions(read=("orders",), groups=("billing",)),
    "writer": Permissions(write=("orders",)),
    "owner": Permissions(admin=("orders",)),
    "stranger": Permissions(read=("other",), write=("other",), admin=("other",), groups=("other",)),
    "nobody": Permissions(),
    "admin": EVERYTHING,
}

PERMITTED = {
    RequiredPermission.NOTHING: {"anonymous", *USERS},
    RequiredPermission.USER: {*USERS},
    RequiredPermission.SEE: {"reader", "writer", "owner", "admin"},
    RequiredPermission.READ: {"reader", "admin"},
    RequiredPermission.WRITE: {"writer", "admin"},
    RequiredPermission.ADMIN: {"owner", "admin"},
    RequiredPermission.GROUP: {"reader", "admin"},
    RequiredPermission.ADMINISTRATOR: {"admin"},
}
"""Who may use the routes that need a permission. Everybody is a user, or nobody that is known."""

SENT: dict[tuple[str, str], dict[str, Any]] = {
    ("POST", "/topics"): {"document": {"name": "new"}},
    ("PATCH", "/topics/{topic}"): {"document": {}},
    ("POST", "/topics/{topic}/records"): {"body": b"x"},
    ("PUT", "/groups/{group}/offsets"): {"document": {"topic": "orders", "to": "earliest"}},
    ("PUT", "/topics/{topic}/logs/{log}/replicas"): {"document": {"replicas": [0]}},
    ("POST", "/session"): {"document": {"user": "reader", "password": PASSWORD}},
}
QUERIES = {("DELETE", "/topics/{topic}/records"): "?before=0"}

OWN_CHECKS = {("POST", "/topics"): {"admin"}}
"""Routes that check the name in the body."""


def basic(user: str, password: str = PASSWORD) -> str:
    """Return the header of Basic authentication."""
    return f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}"


def as_user(user: str) -> dict[str, Any]:
    """Return the headers of a user."""
    return {"Authorization": basic(user)}


@asynccontextmanager
async def open_secured(folder: Path, **settings: Any) -> AsyncIterator[RunningWeb]:
    """Run a broker with `USERS`, a topic `orders` and a group `billing` during the block."""
    write_user_file(folder / "users", **USERS)
    async with open_web(config=Config().with_clients(users=str(folder / "users"), **settings)) as web:
        admin = as_user("admin")
        created = await web.request("POST", "/topics", document={"name": "orders"}, **admin)
        assert created.status == 201
        commit = {"topic": "orders", "to": "earliest"}
        assert (await web.request("PUT", "/groups/billing/offsets", document=commit, **admin)).status == 200
        yield web


def is_refused(answer: Answer) -> bool:
    """Return whether the user may not do something."""
    return answer.status in {401, 403}


@pytest.mark.parametrize("user", ["anonymous", *USERS])
async def test_every_route_is_open_to_those_who_may_use_it(user: str, tmp_path: Path) -> None:
    async with open_secured(tmp_path) as web:
        headers = {} if user == "anonymous" else as_user(user)
        # Routes that delete come last, so that the others find something.
        for route in sorted(ROUTES, key=lambda each: (each.method == "DELETE", -len(each.path))):
            place = (route.method, route.path)
            target = route.path.replace("...", "").format(topic="orders", group="billing", path="x", log=0, number=0)
            answer = await web.request(
                route.method,
                target + QUERIES.get(place, ""),
                SENT.get(place, {}).get("body"),
                document=SENT.get(place, {}).get("document"),
                **headers,
            )
            is_permitted = user in OWN_CHECKS.get(place, PERMITTED[route.needs])
            assert is_refused(answer) != is_permitted, (route.method, route.path, answer)
            if not is_permitted:
                assert answer.code == ("unauthenticated" if user == "anonymous" else "forbidden")
        left = [each["name"] for each in (await web.get("/topics", Authorization=basic("admin"))).document["topics"]]
        assert ("orders" in left) == (user not in PERMITTED[RequiredPermission.ADMIN])
        assert ("new" in left) == (user == "admin")


async def test_names_that_a_user_may_not_know_are_hidden(tmp_path: Path) -> None:
    async with open_secured(tmp_path) as web:
        stranger = as_user("stranger")
        assert (await web.get("/topics", **stranger)).document == {"topics": [], "topic_count": 0, "next": None}
        assert (await web.get("/groups", **stranger)).document["groups"] == []
        known = await web.get("/topics/orders", **stranger)
        unknown = await web.get("/topics/none", **stranger)
        assert (known.status, known.body.replace(b"orders", b"none")) == (403, unknown.body)
        reader = as_user("reader")
        assert [each["name"] for each in (await web.get("/topics", **reader)).document["topics"]] == ["orders"]


async def test_positions_of_groups_need_their_permission(tmp_path: Path) -> None:
    async with open_secured(tmp_path) as web:
        reader = as_user("reader")
        assert (await web.get("/topics/orders/records?from=group:billing", **reader)).status == 200
        assert (await web.get("/topics/orders/records?from=group:secret", **reader)).code == "forbidden"
        commit = {"topic": "orders", "to": {"group": "secret"}}
        refused = await web.request("PUT", "/groups/billing/offsets", document=commit, **reader)
        assert refused.code == "forbidden"
        hidden = {"topic": "hidden", "to": "earliest"}
        assert (await web.request("PUT", "/groups/billing/offsets", document=hidden, **reader)).code == "forbidden"


async def test_wrong_credentials_are_refused_alike(tmp_path: Path) -> None:
    async with open_secured(tmp_path) as web:
        given = [
            basic("reader", "wrong"),
            basic("unknown"),
            basic("reader", ""),
            "Basic",
            "Basic ?",
            "Basic cmVhZGVy",
            "Basic /w==",
            "Bearer dafka_unknown",
            "Bearer",
            "Digest username=reader",
        ]
        for each in given:
            answer = await web.get("/topics", Authorization=each)
            assert answer.code == "unauthenticated", each
            assert "Basic" in answer.headers["WWW-Authenticate"] or "Bearer" in answer.headers["WWW-Authenticate"]
        wrong, unknown = [await web.get("/topics", Authorization=each) for each in given[:2]]
        assert wrong.body == unknown.body


async def test_a_browser_logs_in_and_out(tmp_path: Path) -> None:
    async with open_secured(tmp_path) as web:
        assert (await web.get("/session")).document["must_log_in"]
        login = {"user": "reader", "password": "wrong"}
        assert (await web.request("POST", "/session", document=login)).code == "unauthenticated"
        entered = await web.request("POST", "/session", document={**login, "password": PASSWORD})
        assert entered.document["user"] == "reader"
        cookie = entered.headers["Set-Cookie"]
        assert "; HttpOnly; SameSite=Strict" in cookie
        session: dict[str, Any] = {"Cookie": 'theme={"dark": [1]}; =; x; ' + cookie.partition(";")[0]}
        assert (await web.get("/session", **session)).document["permissions"]["read"] == ["orders"]
        assert (await web.get("/topics/orders/records", **session)).status == 200
        cross_site = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "cors"}
        assert (await web.get("/topics", **session, **cross_site)).code == "forbidden"
        assert (await web.request("DELETE", "/session", **session)).status == 204
        assert (await web.get("/topics", **session)).code == "unauthenticated"


async def test_a_session_ends_with_the_password(tmp_path: Path) -> None:
    async with open_secured(tmp_path) as web:
        entered = await web.request("POST", "/session", document={"user": "reader", "password": PASSWORD})
        session: dict[str, Any] = {"Cookie": entered.headers["Set-Cookie"].partition(";")[0]}
        assert (await web.get("/topics", **session)).status == 200
        users = read_users(tmp_path / "users")
        changed = {each: derive_credential(each, "new", 4096) for each in MECHANISMS}
        write_users(tmp_path / "users", {**users, "reader": attrs.evolve(users["reader"], credentials=changed)})
        with trio.fail_after(DEADLINE_S):
            while (await web.get("/topics", **session)).status == 200:
                pass
        assert (await web.get("/topics", **session)).code == "unauthenticated"


async def test_a_token_stands_for_its_user_until_it_is_revoked(tmp_path: Path) -> None:
    async with open_secured(tmp_path) as web:
        path = tmp_path / "users"
        users = read_users(path)
        secret, token = create_token()
        write_users(path, {**users, "reader": attrs.evolve(users["reader"], tokens=(token,))})
        bearer = {"Authorization": f"Bearer {secret}"}
        with trio.fail_after(DEADLINE_S):
            while (await web.get("/session", **bearer)).status != 200:
                pass
            assert (await web.get("/session", **bearer)).document["user"] == "reader"
            assert (await web.get("/topics/orders/records", **bearer)).status == 200
            assert (await web.get("/settings", **bearer)).code == "forbidden"
            write_users(path, users)
            while (await web.get("/topics", **bearer)).status == 200:
                pass
        assert (await web.get("/topics", **bearer)).code == "unauthenticated"


async def remove_user(_web: RunningWeb, path: Path, _proof: dict[str, Any]) -> None:
    users = read_users(path)
    del users["reader"]
    write_users(path, users)


async def take_permission(_web: RunningWeb, path: Path, _proof: dict[str, Any]) -> None:
    users = read_users(path)
    write_users(path, {**users, "reader": attrs.evolve(users["reader"], permissions=Permissions(write=("orders",)))})


async def revoke_token(_web: RunningWeb, path: Path, _proof: dict[str, Any]) -> None:
    users = read_users(path)
    write_users(path, {**users, "reader": attrs.evolve(users["reader"], tokens=())})


async def log_out(web: RunningWeb, _path: Path, proof: dict[str, Any]) -> None:
    assert (await web.request("DELETE", "/session", **proof)).status == 204


async def prove_by(kind: str, web: RunningWeb, path: Path) -> dict[str, Any]:
    """Return headers that prove who the reader is: by a password, a token or a session."""
    if kind == "password":
        return as_user("reader")
    if kind == "session":
        entered = await web.request("POST", "/session", document={"user": "reader", "password": PASSWORD})
        return {"Cookie": entered.headers["Set-Cookie"].partition(";")[0]}
    secret, token = create_token()
    users = read_users(path)
    write_users(path, {**users, "reader": attrs.evolve(users["reader"], tokens=(token,))})
    bearer: dict[str, Any] = {"Authorization": f"Bearer {secret}"}
    while (await web.get("/session", **bearer)).status != 200:
        pass
    return bearer


@pytest.mark.parametrize(
    ("kind", "end", "code"),
    [
        ("password", remove_user, "unauthenticated"),
        ("password", take_permission, "forbidden"),
        ("token", revoke_token, "unauthenticated"),
        ("session", log_out, "unauthenticated"),
    ],
)
async def test_a_stream_ends_when_its_user_may_not_read_any_more(
    kind: str, end: Callable[[RunningWeb, Path, dict[str, Any]], Awaitable[None]], code: str, tmp_path: Path
) -> None:
    async with open_secured(tmp_path) as web:
        with trio.fail_after(DEADLINE_S):
            proof = await prove_by(kind, web, tmp_path / "users")
            stream = await trio.open_tcp_stream("127.0.0.1", web.port)
            async with stream:
                ((name, value),) = proof.items()
                lines = ["GET /topics/orders/records HTTP/1.1", "Host: localhost", f"{name}: {value}"]
                await stream.send_all("\r\n".join([*lines, "Accept: text/event-stream", "", ""]).encode())
                received = b""
                while b"id: 0=0" not in received:
                    received += await stream.receive_some()
                await end(web, tmp_path / "users", proof)
                while not is_refused(await web.get("/topics/orders/records", **proof)):
                    pass
                assert (
                    await web.request("POST", "/topics/orders/records", b"secret", **as_user("writer"))
                ).status == 200
                while b"event: error" not in received:
                    received += await stream.receive_some()
        assert b"secret" not in received
        assert f'"code":"{code}"'.encode() in received


async def test_a_password_that_others_could_read_is_not_accepted(tmp_path: Path) -> None:
    write_user_file(tmp_path / "users", **USERS)
    # Listening beyond loopback, the client connects to another address of this machine if there is one.
    config = Config().with_clients(users=str(tmp_path / "users")).with_http(listen="0.0.0.0:0")
    async with open_web(config=config) as web:
        assert web.broker.web is not None
        authenticator = web.broker.web.authenticator
        for check in (
            authenticator.log_in("reader", PASSWORD, host="h", is_private=False),
            authenticator.check_token("dafka_x", is_private=False),
        ):
            with pytest.raises(Exception, match="over TLS only"):
                await check


async def test_wrong_passwords_lock_out_nobody_else(tmp_path: Path) -> None:
    """150 wrong passwords filled the queue, and honest users were answered 429."""
    async with open_secured(tmp_path) as web, trio.open_nursery() as nursery:
        refused: list[Answer] = []

        async def guess(number: int) -> None:
            refused.append(await web.get("/topics", Authorization=basic("admin", f"guess {number}")))

        for number in range(150):
            nursery.start_soon(guess, number)
        for name in ("reader", "writer"):
            answer = await web.get("/session", **as_user(name))
            assert (answer.status, answer.document["user"]) == (200, name)
        with trio.fail_after(DEADLINE_S):
            while len(refused) < 150:  # noqa: ASYNC110 (nothing else tells)
                await trio.sleep(0.05)
        assert {each.code for each in refused} == {"unauthenticated", "too_many_requests"}
        assert all("Retry-After" in each.headers for each in refused if each.status == 429)


async def test_many_logins_do_not_hold_up_others(tmp_path: Path) -> None:
    async with open_secured(tmp_path) as web, trio.open_nursery() as nursery:
        answers: list[Answer] = []

        async def guess(number: int) -> None:
            answers.append(await web.get("/topics", Authorization=basic("admin", f"guess {number}")))

        for number in range(60):
            nursery.start_soon(guess, number)
        with trio.fail_after(DEADLINE_S):
            while len(answers) < 60:
                assert (await web.get("/session")).status == 200
        assert {each.code for each in answers} <= {"unauthenticated", "too_many_requests"}
