"""Pages of other sites, and names that lead to this machine from elsewhere."""

from __future__ import annotations

from dafka import Config
from tests.http.running import RunningWeb, open_web
from tests.http.server.test_hostile_requests import status_of


async def is_refused(web: RunningWeb, *lines: str, method: str = "POST", target: str = "/topics") -> bool:
    """Return whether a request to create a topic, or another one, is refused, and check that it then does nothing."""
    document = b'{"name": "orders"}'
    lines = (*lines, "Content-Type: application/json", f"Content-Length: {len(document)}", "Connection: close")
    text = "\r\n".join([f"{method} {target} HTTP/1.1", *lines, "", ""]).encode()
    answer = await web.exchange(text + document)
    is_refused = status_of(answer) == 403
    names = [each["name"] for each in (await web.get("/topics")).document["topics"]]
    assert (method != "POST") or is_refused == ("orders" not in names)
    if "orders" in names:
        assert (await web.request("DELETE", "/topics/orders")).status == 204
    return is_refused


async def test_pages_of_other_sites_may_not_use_the_broker() -> None:
    config = Config().with_http(origins=("https://console.example",))
    async with open_web(config=config) as web:
        host = f"Host: localhost:{web.port}"
        assert await is_refused(web, host, "Origin: https://evil.example")
        assert await is_refused(web, host, "Origin: null")
        assert await is_refused(web, host, f"Origin: http://localhost:{web.port + 1}")
        assert await is_refused(web, host, f"Origin: http://evil.localhost:{web.port}")
        assert await is_refused(web, host, f"Origin: http://localhost:{web.port}@evil.example")
        assert await is_refused(web, host, "Sec-Fetch-Site: cross-site")
        assert await is_refused(web, host, "Sec-Fetch-Site: same-site", "Sec-Fetch-Mode: no-cors", method="GET")
        assert await is_refused(web, host, "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: no-cors", method="GET")
        upgrade = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13")
        assert await is_refused(web, host, "Origin: https://evil.example", *upgrade, method="GET", target="/ws")
        assert not await is_refused(web, host, f"Origin: http://localhost:{web.port}")
        assert not await is_refused(web, host, "Origin: https://console.example", "Sec-Fetch-Site: cross-site")
        assert not await is_refused(web, host, "Sec-Fetch-Site: same-origin")
        assert not await is_refused(web, host)


async def test_names_that_lead_to_loopback_from_elsewhere_are_refused() -> None:
    async with open_web(config=Config().with_http(origins=("http://proxied.example",))) as web:
        for name in (
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "evil.example:8080",
            "0.0.0.0",
        ):
            assert await is_refused(web, f"Host: {name}"), name
        for name in (
            "localhost",
            "LOCALHOST:1",
            "127.0.0.1",
            "127.0.0.2:5",
            "[::1]:5",
            "a.localhost",
            "proxied.example",
        ):
            assert not await is_refused(web, f"Host: {name}"), name


async def test_a_listed_origin_gets_the_headers_that_browsers_ask_for() -> None:
    async with open_web(config=Config().with_http(origins=("https://console.example",))) as web:
        asked = await web.request("OPTIONS", "/topics", None, Origin="https://console.example")
        assert asked.status == 204
        assert asked.headers["Access-Control-Allow-Origin"] == "https://console.example"
        assert "PATCH" in asked.headers["Access-Control-Allow-Methods"]
        other = await web.request("OPTIONS", "/topics", None, Origin="https://evil.example")
        assert "Access-Control-Allow-Origin" not in other.headers
