"""Topics over HTTP."""

from __future__ import annotations

from tests.web.running import open_web


async def test_a_topic_is_created_described_changed_and_deleted() -> None:
    async with open_web() as web:
        created = await web.request("POST", "/topics", document={"name": "orders", "log_count": 2})
        assert created.status == 201
        assert created.headers["Location"] == "/topics/orders"
        described = await web.get("/topics/orders?times=true")
        assert described.document["logs"] == [
            {"log": number, "start_offset": 0, "end_offset": 0, "bytes": 0, "last_timestamp": None}
            for number in range(2)
        ]
        changed = await web.request(
            "PATCH", "/topics/orders", document={"log_count": 3, "settings": {"retention.ms": "1000"}}
        )
        assert changed.document["log_count"] == 3
        settings = {each["name"]: each for each in changed.document["settings"]}
        assert settings["retention.ms"] == {"name": "retention.ms", "value": "1000", "is_own": True}
        reset = await web.request("PATCH", "/topics/orders", document={"settings": {"retention.ms": None}})
        assert not any(each["is_own"] for each in reset.document["settings"])
        assert (await web.request("DELETE", "/topics/orders")).status == 204
        assert (await web.get("/topics/orders")).code == "topic_not_found"


async def test_topics_are_listed_page_by_page() -> None:
    async with open_web() as web:
        for name in ("orders-1", "orders-2", "orders-3", "returns"):
            assert (await web.request("POST", "/topics", document={"name": name})).status == 201
        first = (await web.get("/topics?prefix=orders&limit=2&sizes=true")).document
        assert [each["name"] for each in first["topics"]] == ["orders-1", "orders-2"]
        assert first["topic_count"] == 3
        second = (await web.get(f"/topics?prefix=orders&limit=2&after={first['next']}")).document
        assert [each["name"] for each in second["topics"]] == ["orders-3"]
        assert second["next"] is None
