"""Groups over HTTP, with consumers of Kafka in them."""

from __future__ import annotations

import struct
from contextlib import closing

import trio
from confluent_kafka import Consumer

from dafka.broker.core.groups.subscriptions import read_assignment
from tests.http.running import DEADLINE_S, open_web


async def test_a_group_shows_its_members_their_logs_and_its_lag() -> None:
    async with open_web() as web:
        await web.request("POST", "/topics", document={"name": "orders", "log_count": 2})
        for log in (0, 0, 0, 1):
            assert (await web.request("POST", f"/topics/orders/records?log={log}", b"x")).status == 200
        with trio.fail_after(DEADLINE_S):
            settings = {"bootstrap.servers": web.broker.bootstrap_servers, "group.id": "billing", "client.id": "shop"}
            consumer = Consumer({**settings, "auto.offset.reset": "earliest", "enable.auto.commit": False})
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
                assert (member["client_id"], member["assignment"]) == ("shop", {"orders": [0, 1]})
                assert [(each["log"], each["offset"], each["lag"], each["member_id"]) for each in group["offsets"]] == [
                    (0, 3, 0, member["member_id"]),
                    (1, 1, 1, member["member_id"]),
                ]
                listed = (await web.get("/groups?state=Stable")).document["groups"]
                assert [(each["group"], each["member_count"]) for each in listed] == [("billing", 1)]
                assert (await web.get("/groups?state=Empty")).document["groups"] == []
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


def assignment(*topics: tuple[bytes, tuple[int, ...]]) -> bytes:
    """Return an assignment in Kafka's format."""
    parts = [struct.pack(f">h{len(name)}si{len(logs)}i", len(name), name, len(logs), *logs) for name, logs in topics]
    return struct.pack(">hi", 0, len(topics)) + b"".join(parts) + struct.pack(">i", -1)


def test_assignments_of_other_formats_are_not_understood() -> None:
    whole = assignment((b"orders", (0, 2)), (b"b", ()))
    assert read_assignment(whole) == {"orders": [0, 2], "b": []}
    assert read_assignment(b"") == {}
    for wrong in (
        whole[:20],
        b"\xff" * 10,
        assignment((b"\xff", (1,))),
        struct.pack(">hi", 0, 2**31 - 1),
        struct.pack(">hih1si", 0, 1, 1, b"a", 2**31 - 1),
        struct.pack(">hih1si", 0, 1, 1, b"a", -1),
    ):
        assert read_assignment(wrong) is None
