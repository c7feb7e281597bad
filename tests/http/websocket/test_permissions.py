"""What every message needs: written down here, and compared with what a broker does, also one that forwards."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest

from dafka.batches import encode_batch
from dafka.broker.access.permissions import Permissions
from dafka.http.server.principal import EVERYTHING
from dafka.http.websocket.binary import encode_publish
from dafka.http.websocket.messages import CLIENT_MESSAGES
from tests.http.secured import (
    ANYBODY,
    USER,
    Account,
    Needs,
    Secured,
    only,
    renamed,
    run_forwarding,
    run_secured,
    without_one,
)
from tests.http.websocket.clients import BINARY, JSON, Client, open_client

TOPIC, GROUP = "orders", "billing"
READ, WRITE, ADMIN, GROUPS = ("read", TOPIC), ("write", TOPIC), ("admin", TOPIC), ("groups", GROUP)
JOBS = ("groups", "jobs")
QUEUE = {"topic": TOPIC, "queue": "jobs"}
SEE: Needs = [[READ], [WRITE], [ADMIN]]
TEXT_AND_BINARY = [JSON, BINARY]
ID = 77
ENDED_BY = {"subscribed": "unsubscribe", "consuming": "unsubscribe", "view": "unwatch"}


@attrs.frozen
class Use:
    """A message, what it needs, and the type of its answer; empty if there is none."""

    kind: str
    needs: Needs
    answer: str
    fields: dict[str, Any] = attrs.field(factory=dict)

    def encode(self, names: dict[str, str]) -> str | bytes:
        """Return the message, or one about other names."""
        if self.kind == "binary publish":
            return encode_publish(ID, renamed(TOPIC, names), 0, encode_batch(0, [b"x"], timestamps=5))
        return json.dumps({"type": self.kind, "id": ID, **renamed(self.fields, names)})


SUBSCRIPTION = {"topic": TOPIC, "from": "latest", "credit": 0}

USES = [
    Use("ping", ANYBODY, "pong"),
    Use("init_producer", USER, "producer"),
    Use("credit", USER, "", {"records": 1}),
    Use("unsubscribe", USER, "unsubscribed"),
    Use("unwatch", USER, "unwatched"),
    Use("watch", USER, "view", {"path": "/session", "interval_ms": 3_600_000}),
    Use("publish", [[WRITE]], "published", {"topic": TOPIC, "records": [{"value": "x"}]}),
    Use("binary publish", [[WRITE]], "published"),
    Use("describe", SEE, "described", {"topic": TOPIC}),
    Use("describe", [[WRITE]], "described", {"topic": TOPIC, "create": True}),
    Use("subscribe", [[READ]], "subscribed", SUBSCRIPTION),
    Use("subscribe", [[READ, GROUPS]], "subscribed", {**SUBSCRIPTION, "from": {"group": GROUP}}),
    Use("subscribe", [[READ, GROUPS]], "subscribed", {**SUBSCRIPTION, "from": {"group": GROUP, "otherwise": "latest"}}),
    Use("consume", [[READ, JOBS]], "consuming", {**QUEUE, "credit": 0}),
    Use("receive", [[READ, JOBS]], "received", {**QUEUE, "records_max": 1}),
    Use("acknowledge", [[READ, JOBS]], "acknowledged", {**QUEUE, "receipt": "r", "others": "accept"}),
    Use("describe_queue", [[READ, JOBS]], "described_queue", QUEUE),
    Use("commit", [[GROUPS, READ]], "committed", {"group": GROUP, "topic": TOPIC, "offsets": {"0": 0}}),
]
"""Every way to use a message. `authenticate` is tried by each test."""


def test_every_message_is_in_the_table() -> None:
    assert {each.kind for each in USES} | {"authenticate"} == CLIENT_MESSAGES.keys() | {"binary publish"}


@pytest.fixture(scope="module", params=[run_secured, run_forwarding], ids=["leading", "forwarding"])
def secured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with request.param(tmp_path_factory.mktemp("users")) as (web, account):
        web.ask("POST", "/topics", document={"name": TOPIC}, **account.root)
        for each in reversed(account.webs):  # the first one asks the second one, which leads the topic
            created = each.ask("PUT", f"/topics/{TOPIC}/queues/jobs", document={"from": "latest"}, **account.root)
            assert created.status == 200, created.body
        yield web, account


@asynccontextmanager
async def connect(
    secured: Secured, permissions: Permissions = EVERYTHING, subprotocol: str = BINARY
) -> AsyncIterator[Client]:
    """Connect as a user with permissions, which logs in by its first message."""
    web, account = secured
    account.permit(permissions)
    async with open_client(web, subprotocol) as client:
        assert (client.welcome["user"], client.welcome["needs_authentication"]) == (None, True)
        answer = await client.ask("authenticate", token=account.token)
        assert (answer["type"], answer["user"]) == ("authenticated", "ada")
        yield client


async def ask(client: Client, use: Use, names: dict[str, str] | None = None) -> tuple[str, str]:
    """Send a message. Return the type of its answer, and the code and the message of an error."""
    await client.connection.send(use.encode(names or {}))
    if not use.answer:
        await client.send("ping", id=ID)
    answer = await client.receive()
    while isinstance(answer, bytes):  # `deliveries` come before the answer to `receive`
        answer = await client.receive()
    assert answer["id"] == ID
    if not use.answer and answer["type"] == "error":
        await client.expect("pong", ID)
    if answer["type"] in ENDED_BY:
        await client.ask(ENDED_BY[answer["type"]], id=ID)
    return answer["type"], f"{answer.get('code', '')}: {answer.get('message', '')}"


@pytest.mark.parametrize("use", USES, ids=lambda use: f"{use.kind} {use.fields}")
async def test_a_message_is_served_for_those_and_only_those_who_may_send_it(secured: Secured, use: Use) -> None:
    for needed in use.needs or [[]]:
        async with connect(secured, only(needed)) as client:
            assert (await ask(client, use))[0] == (use.answer or "pong")
    async with open_client(secured[0], BINARY) as client:
        kind, problem = await ask(client, use)
        assert (kind == "error") == (use.needs is not ANYBODY)
        assert use.needs is ANYBODY or problem == "unauthenticated: expected `authenticate` first"
    if not use.needs or not use.needs[0]:
        return
    web, account = secured
    targets = (f"/topics/{TOPIC}/offsets", f"/groups/{GROUP}")
    before = [web.ask("GET", each, **account.root).body for each in targets]
    async with connect(secured) as client:
        for missing, permissions in without_one(use.needs):
            account.permit(permissions)
            kind, problem = await ask(client, use)
            assert (kind, problem.partition(":")[0]) == ("error", "forbidden"), missing
            absent = {name: f"no-{name}" for _, name in missing}
            assert await ask(client, use, absent) == (kind, renamed(problem, absent))
    assert [web.ask("GET", each, **account.root).body for each in targets] == before


ENDS: list[tuple[Callable[[Account], None], str]] = [
    (Account.revoke_token, "unauthenticated"),
    (Account.remove, "unauthenticated"),
    (lambda account: account.permit(Permissions()), "forbidden"),
]


@pytest.mark.parametrize(("end", "code"), ENDS)
async def test_every_message_is_refused_on_a_connection_whose_user_has_lost_it(
    secured: Secured, end: Callable[[Account], None], code: str
) -> None:
    async with connect(secured) as client:
        for use in USES:
            assert (await ask(client, use))[0] == (use.answer or "pong")
        end(secured[1])
        for use in USES:
            is_refused = use.needs is not ANYBODY if code == "unauthenticated" else bool(use.needs and use.needs[0])
            kind, problem = await ask(client, use)
            assert (kind == "error") == is_refused, use
            assert not is_refused or problem.startswith(code)


@pytest.mark.parametrize("subprotocol", TEXT_AND_BINARY)
@pytest.mark.parametrize(("end", "code"), ENDS)
async def test_subscriptions_end_when_their_user_may_not_read_any_more(
    secured: Secured, end: Callable[[Account], None], code: str, subprotocol: str
) -> None:
    web, account = secured
    target = f"/topics/{TOPIC}/records"
    async with connect(secured, subprotocol=subprotocol) as client:
        idle = await client.subscribe(TOPIC, "latest")
        waiting = await client.subscribe(TOPIC, "latest", credit=0)
        assert (await web.request("POST", target, b"before", **account.root)).status == 200
        received = await client.receive()
        assert (b"before" in received) if subprotocol == BINARY else (received["records"][0]["value"] == "before")
        end(account)
        assert (await web.request("POST", target, b"secret", **account.root)).status == 200
        error = await client.expect("error", idle)
        assert error["code"] == code
        if code == "forbidden":  # otherwise the message is refused
            await client.send("credit", id=waiting, records=5)
            assert (await client.expect("error", waiting))["code"] == code


async def test_idle_subscriptions_end_soon_when_their_user_may_not_read_any_more(
    secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dafka.http.websocket.client_tasks.REFRESH_S", 0.05)
    monkeypatch.setattr("dafka.http.websocket.queue_tasks.REFRESH_S", 0.05)
    async with connect(secured, subprotocol=JSON) as client:
        expected = {await client.subscribe(TOPIC, "latest", credit=credit) for credit in (0, 100)}
        consuming = await client.ask("consume", **QUEUE, credit=0)
        expected.add(consuming["id"])
        secured[1].permit(Permissions())
        errors = [await client.expect("error") for _ in expected]
        assert ({each["id"] for each in errors}, {each["code"] for each in errors}) == (expected, {"forbidden"})


async def test_a_watch_shows_no_more_than_its_user_may_see(secured: Secured) -> None:
    async with connect(secured) as client:
        watch = await client.send("watch", path=f"/topics/{TOPIC}", interval_ms=500)
        assert (await client.expect("view", watch))["status"] == 200
        former = 200
        for permissions, expected in ((Permissions(), (403, "forbidden")), (None, (401, "unauthenticated"))):
            secured[1].remove() if permissions is None else secured[1].permit(permissions)
            view = await client.expect("view", watch)
            while view["status"] == former:  # it was sent before the change
                view = await client.expect("view", watch)
            assert (view["status"], view["body"]["error"]["code"]) == expected
            former = view["status"]


async def test_a_wrong_login_ends_the_connection(secured: Secured) -> None:
    web, account = secured
    account.permit(EVERYTHING)
    wrong: list[dict[str, str]] = [{"user": "ada", "password": "wrong"}, {"token": "wrong"}]
    for fields in [*wrong, {"user": "ada"}, {"password": "right"}, {}]:
        async with open_client(web) as client:
            answer = await client.ask("authenticate", **fields)
            assert answer["code"] == ("unauthenticated" if "wrong" in fields.values() else "bad_request")
            await client.connection.wait_closed()
            assert client.connection.close_code == 1008
    async with open_client(web, **account.bearer) as client:
        assert (client.welcome["user"], client.welcome["needs_authentication"]) == ("ada", False)
