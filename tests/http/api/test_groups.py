"""Groups over HTTP, with consumers of Kafka in them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from random import Random
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import parse_qsl, urlsplit

import attrs
import pytest
import trio
from confluent_kafka import Consumer, ShareConsumer

from dafka.broker.access.permissions import Permissions
from dafka.http.api.groups import GroupPage, list_groups
from dafka.http.server.documents import decode_document, encode_document
from dafka.http.server.principal import EVERYTHING
from tests.http.running import DEADLINE_S, open_web


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_a_group_shows_its_members_their_logs_and_its_lag(protocol: str) -> None:
    async with open_web() as web:
        await web.request("POST", "/topics", document={"name": "orders", "log_count": 2})
        for log in (0, 0, 0, 1):
            assert (await web.request("POST", f"/topics/orders/records?log={log}", b"x")).status == 200
        with trio.fail_after(DEADLINE_S):
            settings = {"bootstrap.servers": web.broker.bootstrap_servers, "group.id": "billing", "client.id": "shop"}
            settings |= {"group.protocol": protocol, "auto.offset.reset": "earliest"}
            consumer = Consumer({**settings, "enable.auto.commit": False})
            consumer.subscribe(["orders"])
            with closing(consumer):
                read = 0
                while read < 4:
                    message = await trio.to_thread.run_sync(consumer.poll, 0.1)
                    assert message is None or message.error() is None
                    read += message is not None
                await trio.to_thread.run_sync(lambda: consumer.commit(asynchronous=False))
                await web.request("POST", "/topics/orders/records?log=1", b"y")
                group = (await web.get("/groups/billing")).document
                (member,) = group["members"]
                assert (group["state"], group["protocol_type"], group["lag"]) == ("Stable", "consumer", 1)
                assert group["type"] == protocol
                assert (member["client_id"], member["assignment"]) == ("shop", {"orders": [0, 1]})
                found = [(each["log"], each["offset"], each["lag"], each["member_id"]) for each in group["offsets"]]
                assert found == [(0, 3, 0, member["member_id"]), (1, 1, 1, member["member_id"])]
                listed = (await web.get(f"/groups?state=Stable&type={protocol}")).document["groups"]
                assert [(each["group"], each["type"], each["member_count"]) for each in listed] == [
                    ("billing", protocol, 1)
                ]
                assert (await web.get("/groups?type=share")).document["groups"] == []
                for state in ("Empty", "Assigning", "PreparingRebalance"):
                    assert (await web.get(f"/groups?state={state}")).document["groups"] == []
                assert (await web.request("DELETE", "/groups/billing")).code == "conflict"
                reset = {"topic": "orders", "to": "earliest"}
                refused = await web.request("PUT", "/groups/billing/offsets", document=reset)
                assert (refused.code, "has members" in refused.document["error"]["message"]) == ("conflict", True)
            while (await web.get("/groups/billing")).document["members"]:
                pass
            assert (await web.request("PUT", "/groups/billing/offsets", document=reset)).document["lag"] == 5
            copied = {"topic": "orders", "to": {"group": "billing"}}
            assert (await web.request("PUT", "/groups/other/offsets", document=copied)).document["lag"] == 5
            assert (await web.request("DELETE", "/groups/billing")).status == 204
            assert (await web.get("/groups/billing")).code == "group_not_found"


async def test_a_share_group_shows_its_members_and_where_it_is() -> None:
    async with open_web() as web:
        await web.request("POST", "/topics", document={"name": "jobs", "log_count": 1})
        await web.request("POST", "/topics/jobs/records", b"early")
        with trio.fail_after(DEADLINE_S):
            settings = {"bootstrap.servers": web.broker.bootstrap_servers, "group.id": "workers", "client.id": "shop"}
            consumer = ShareConsumer(settings)
            consumer.subscribe(["jobs"])
            while (await web.get("/groups/workers")).status != 200:
                await trio.to_thread.run_sync(consumer.poll, 0.1)
            while not (group := (await web.get("/groups/workers")).document)["offsets"]:
                await trio.to_thread.run_sync(consumer.poll, 0.1)
            (member,) = group["members"]
            assert (group["state"], group["type"], group["assignor"]) == ("Stable", "share", "simple")
            assert group["protocol_type"] == "share"
            assert (member["client_id"], member["assignment"]) == ("shop", {"jobs": [0]})
            (offset,) = group["offsets"]
            assert (offset["offset"], offset["lag"], offset["member_id"]) == (1, 0, member["member_id"])
            assert (await web.request("DELETE", "/groups/workers")).code == "conflict"
            refused = await web.request("PUT", "/groups/workers/offsets", document={"topic": "jobs", "to": "earliest"})
            assert (refused.code, "is a share group" in refused.document["error"]["message"]) == ("conflict", True)
            await trio.to_thread.run_sync(consumer.close)
            while (await web.get("/groups/workers")).document["members"]:
                pass
            assert (await web.request("DELETE", "/groups/workers")).status == 204


@attrs.frozen
class Coordinator:
    names: Sequence[str]

    async def list_groups(self, _states: Sequence[str], _types: Sequence[str]) -> list[Any]:
        await trio.lowlevel.checkpoint()
        return [SimpleNamespace(group_id=each) for each in self.names]

    async def describe_groups(self, names: Sequence[str]) -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        given: dict[str, Any] = {"state": "Empty", "group_type": "classic", "protocol_type": ""}
        return {each: SimpleNamespace(group_id=each, members=[each], **given) for each in names}


async def get_page(
    brokers: Sequence[Coordinator], user: Permissions, *, is_forwarded: bool = False, **query: Any
) -> GroupPage:
    """Return what the first broker answers, which asks the other ones."""

    async def ask_others(target: str, *, wait_s: float) -> dict[str, Any]:
        asked: dict[str, Any] = dict(parse_qsl(urlsplit(target).query))
        asked["limit"] = int(asked["limit"])
        pages = [await get_page([each], EVERYTHING, is_forwarded=True, **asked) for each in brokers[1:]]
        return {str(number): decode_document(encode_document(each)) for number, each in enumerate(pages)}

    request = SimpleNamespace(
        broker=SimpleNamespace(groups=brokers[0]),
        principal=SimpleNamespace(permissions=user),
        is_forwarded=is_forwarded,
        query={"prefix": "", "after": "", "state": None, "type": None, **query},
        web=SimpleNamespace(other_brokers=SimpleNamespace(get_all=ask_others)),
    )
    return await list_groups(cast(Any, request))


@pytest.mark.parametrize("user", [EVERYTHING, Permissions(groups=("a*", "b1*"))], ids=["everything", "some"])
async def test_pages_have_each_group_once_whichever_broker_coordinates_it(
    user: Permissions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dafka.http.api.groups.PAGE_MAX", 3)  # of the pages that brokers ask each other for
    for seed in range(50):
        random = Random(seed)
        names = random.sample([f"{letter}{number}" for letter in "abc" for number in range(20)], random.randrange(30))
        brokers = [Coordinator(names[number::3]) for number in range(3)]
        for prefix in ("", "a", "b1"):
            expected = sorted(each for each in names if each.startswith(prefix) and user.may_use_group(each))
            limit, found = random.randrange(1, 12), list[str]()
            after: str | None = ""
            while after is not None:
                page = await get_page(brokers, user, prefix=prefix, limit=limit, after=after)
                assert page.group_count == len(expected)
                assert len(page.groups) <= limit
                found += [each.group for each in page.groups]
                assert page.next is None or page.next > after
                after = page.next
            assert found == expected, seed
