"""Tokens of an issuer over HTTP and WebSocket: they name users, as they do for clients of Kafka, until they expire."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from dafka import Config
from dafka.broker.access import oauth
from dafka.broker.core.acls import Acl, Operation, ResourceType
from dafka.broker.core.metadata.commands import CreateAcls
from tests.broker.access.test_oauth import RSA, STRANGER, sign, write_keys
from tests.http.running import SharedWeb
from tests.http.secured import Account, run_secured
from tests.http.websocket.clients import open_client

ALLOWED = [
    *((ResourceType.TOPIC, name, "User:anne", Operation.WRITE) for name in ("orders", "fresh")),
    (ResourceType.TOPIC, "orders", "User:bob", Operation.READ),
    (ResourceType.GROUP, "billing", "User:bob", Operation.READ),
]
"""What ACLs allow to clients at this address."""

ISSUER: dict[str, Any] = {"oauth_issuer": "https://issuer.example", "oauth_audience": "dafka"}


@attrs.define
class Clock:
    """The wall clock, which a test can set."""

    ahead_s: float = 0.0

    def time(self) -> float:
        return time.time() + self.ahead_s


@pytest.fixture
def web(tmp_path: Path) -> Iterator[SharedWeb]:
    write_keys(tmp_path / "keys", RSA)
    config = Config().with_clients(oauth_keys=str(tmp_path / "keys"), **ISSUER)
    with run_secured(tmp_path, config) as (web, account):
        web.ask("POST", "/topics", document={"name": "orders"}, **account.root)
        web.call(web.broker.node.admin.change, CreateAcls(tuple(Acl(*each, host="127.0.0.1") for each in ALLOWED)))
        yield web


def bearer(**claims: Any) -> dict[str, Any]:
    return {"Authorization": f"Bearer {sign(**claims)}"}


def publish(web: SharedWeb, **headers: Any) -> int:
    return web.ask("POST", "/topics/orders/records", document={"records": [{"value": "x"}]}, **headers).status


def test_requests_with_a_token_have_the_permissions_of_its_user(web: SharedWeb, tmp_path: Path) -> None:
    authenticator = web.server.authenticator
    assert web.ask("GET", "/session", **bearer()).document["user"] == "anne"
    assert (authenticator.logins, authenticator.failed_logins) == (2, 0), "that of the user who has made the topic, too"
    assert publish(web, **bearer()) == 200
    assert publish(web, **bearer(sub="bob")) == 403, "no ACL permits it to this user"
    assert publish(web, **bearer(sub="ada")) == 200, "a user of the file has the permissions of the file"
    assert web.ask("GET", "/topics/orders/records", **bearer()).status == 403
    for forged in (bearer(exp=int(time.time()) - 1), bearer(key=STRANGER), {"Authorization": "Bearer a.b.c"}):
        assert publish(web, **forged) == 401
    assert publish(web, Authorization=f"Bearer {Account.create(tmp_path / 'other').token}") == 401


def test_acls_that_allow_to_use_something_do_not_allow_to_create_delete_or_change_it(web: SharedWeb) -> None:
    assert web.ask("POST", "/topics/fresh/records", b"x", **bearer()).code == "topic_not_found"
    assert web.broker.node.find_topic("fresh") is None
    commit = {"topic": "orders", "offsets": {"0": 0}}
    assert web.ask("PUT", "/groups/billing/offsets", document=commit, **bearer(sub="bob")).status == 200
    assert web.ask("DELETE", "/groups/billing", **bearer(sub="bob")).code == "forbidden"
    assert web.ask("GET", "/groups/billing", **bearer(sub="bob")).status == 200
    queue = "/topics/orders/queues/billing"
    settings = {"settings": {"share.delivery.count.limit": "7"}}
    assert web.ask("PUT", queue, document=settings, **bearer(sub="bob")).code == "forbidden"


async def test_a_token_ends_on_an_open_connection(web: SharedWeb, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(oauth, "time", clock)
    async with open_client(web) as client:
        answer = await client.ask("authenticate", token=sign())
        assert (answer["type"], answer["user"]) == ("authenticated", "anne")
        assert await client.publish("orders", "x")
        clock.ahead_s = 601
        answer = await client.ask("publish", topic="orders", records=[{"value": "x"}])
        assert (answer["type"], answer["code"]) == ("error", "unauthenticated")
        assert (await client.ask("authenticate", token=sign(exp=int(clock.time()) + 60)))["user"] == "anne"
        assert await client.publish("orders", "x")
    async with open_client(web) as client:
        assert (await client.ask("authenticate", token=sign(STRANGER)))["code"] == "unauthenticated"
