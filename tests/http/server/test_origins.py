"""Pages of other sites, names that lead to this machine from elsewhere, and the headers that browsers ask for."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from dafka import Config
from dafka.http.server.errors import WebError
from dafka.http.server.messages import JSON, Response, respond_error, response_headers
from dafka.http.server.origins import Origins
from dafka.http1.head import Head
from tests.http.running import SharedWeb, open_web

CONSOLE = "https://console.example"
PROXY = "http://proxied.example:8080"


@attrs.frozen
class Visit:
    """A request, and the code of its refusal; empty if it is accepted."""

    code: str
    headers: dict[str, str]
    method: str = "POST"
    is_open: bool = True
    is_encrypted: bool = False
    is_local: bool = True
    has_session: bool = False


def visit(code: str, *, method: str = "POST", host: str = "localhost:80", **options: Any) -> Visit:
    switches = {name: options.pop(name) for name in list(options) if name.startswith(("is_", "has_"))}
    headers = {name.replace("_", "-").lower(): value for name, value in options.items()}
    return Visit(code, {"host": host, **headers}, method, **switches)


FOREIGN = {"Sec_Fetch_Site": "cross-site"}
SIBLING = {"Sec_Fetch_Site": "same-site"}

VISITS = [
    visit(""),
    visit("", Origin="http://localhost:80"),
    visit("", Origin="http://localhost"),
    visit("", host="localhost", Origin="http://localhost:80"),
    visit("", host="localhost", Origin="https://localhost"),
    visit("forbidden", host="localhost", Origin="http://localhost:81"),
    visit("forbidden", host="localhost", Origin="http://localhost:443"),
    visit("", Origin="HTTP://LOCALHOST"),
    visit("", Origin=CONSOLE),
    visit("", Origin=f"{CONSOLE}:443"),
    visit("forbidden", Origin="http://console.example"),
    visit("forbidden", Origin=f"{CONSOLE}:8443"),
    visit("forbidden", Origin="https://evil.example"),
    visit("forbidden", Origin="https://sub.console.example"),
    visit("forbidden", Origin="https://console.example.evil.example"),
    visit("forbidden", Origin="null"),
    visit("forbidden", Origin=""),
    visit("forbidden", Origin="http://localhost:81"),
    visit("forbidden", Origin="http://evil.localhost:80"),
    visit("forbidden", Origin="http://localhost:80@evil.example"),
    visit("forbidden", Origin="http://user@localhost:80"),
    visit("forbidden", Origin="http://localhost:80/path"),
    visit("forbidden", Origin="http://localhost:80?query"),
    visit("forbidden", Origin="http://localhost:99999"),
    visit("forbidden", Origin="ftp://localhost:80"),
    *(
        visit("forbidden", method=each, Origin="https://evil.example")
        for each in ("PUT", "PATCH", "DELETE", "WEBSOCKET")
    ),
    *(visit("", method=each, Origin="https://evil.example") for each in ("GET", "HEAD", "OPTIONS")),
    # A page that another encrypted site shows is not a page of this one.
    visit("", is_encrypted=True, Origin="https://localhost:80"),
    visit("forbidden", is_encrypted=True, Origin="http://localhost:80"),
    # What browsers say about the page.
    *(visit("forbidden", **each) for each in (FOREIGN, SIBLING)),
    *(visit("forbidden", method="GET", Sec_Fetch_Mode="no-cors", **each) for each in (FOREIGN, SIBLING)),
    *(visit("", method="GET", Sec_Fetch_Mode="navigate", **each) for each in (FOREIGN, SIBLING)),
    visit("forbidden", method="POST", Sec_Fetch_Mode="navigate", **FOREIGN),
    visit("forbidden", method="WEBSOCKET", Sec_Fetch_Mode="navigate", **FOREIGN),
    visit("", Sec_Fetch_Site="same-origin"),
    visit("", Sec_Fetch_Site="none"),
    visit("", Origin=CONSOLE, **FOREIGN),
    visit("forbidden", Origin="http://localhost:80", **FOREIGN),
    # With users, only a browser that has logged in can be misused.
    visit("", is_open=False, method="GET", Sec_Fetch_Mode="cors", **FOREIGN),
    visit("forbidden", is_open=False, has_session=True, method="GET", Sec_Fetch_Mode="cors", **FOREIGN),
    visit("forbidden", is_open=False, has_session=True, method="GET", Sec_Fetch_Mode="cors", **SIBLING),
    visit("", is_open=False, has_session=True, method="GET", Sec_Fetch_Mode="navigate", **FOREIGN),
    visit("forbidden", is_open=False, Origin="https://evil.example"),
    # Names that lead to this machine.
    *(
        visit("", host=each)
        for each in (
            "localhost",
            "LOCALHOST:1",
            "localhost.",
            "127.0.0.1",
            "127.0.0.2:5",
            "[::1]:5",
            "a.localhost",
            "proxied.example",
            "proxied.example:8080",
            "console.example",
            "console.example:443",
        )
    ),
    *(
        visit("forbidden", host=each)
        for each in (
            "evil.example",
            "evil.example:8080",
            "localhost.evil.example",
            "notlocalhost",
            "127.0.0.1.evil.example",
            "0.0.0.0",
            "proxied.example:8081",
            "sub.proxied.example",
            "console.example:80",
        )
    ),
    visit("", host="evil.example", is_local=False),
    visit("", host="evil.example", is_open=False),
    *(
        visit("bad_request", host=each)
        for each in (
            "",
            ":80",
            "localhost:x",
            "localhost:99999",
            "user@localhost",
            "localhost/path",
            "localhost?a",
            "[::1",
        )
    ),
    visit("bad_request", host="", is_open=False, is_local=False, method="GET"),
]


@pytest.mark.parametrize("visited", VISITS, ids=str)
def test_only_pages_of_the_broker_and_of_listed_sites_may_use_it(visited: Visit) -> None:
    origins = Origins((CONSOLE, PROXY), is_open=visited.is_open, is_encrypted=visited.is_encrypted)
    code = ""
    try:
        origins.check(visited.method, visited.headers, is_local=visited.is_local, has_session=visited.has_session)
    except WebError as error:
        code = error.code
    assert code == visited.code


async def test_a_refused_request_does_nothing() -> None:
    config = Config().with_http(origins=(CONSOLE,))
    async with open_web(config=config) as web:
        document = {"name": "orders"}
        answer = await web.request("POST", "/topics", document=document, Origin="https://evil.example")
        assert (answer.status, answer.code) == (403, "forbidden")
        assert (await web.get("/topics", Host="evil.example")).code == "forbidden"
        assert (await web.get("/topics", Host="")).code == "bad_request"
        cross_site = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "cors"}
        assert (await web.get("/topics", **cross_site)).code == "forbidden"
        assert (await web.get("/topics")).document["topics"] == []
        allowed = await web.request("POST", "/topics", document=document, Origin=CONSOLE)
        assert (allowed.status, allowed.headers["Access-Control-Allow-Origin"]) == (201, CONSOLE)


def headers_of(response: Response, *, method: str = "GET", **given: str) -> dict[str, list[str]]:
    """Return the headers of a response by name."""
    head = Head(method, "/", ("",), (), {name.replace("_", "-").lower(): value for name, value in given.items()})
    found: dict[str, list[str]] = {}
    origins = Origins((CONSOLE,), is_open=True, is_encrypted=False)
    for name, value in response_headers(head, response, origins):
        found.setdefault(name, []).append(value)
    assert found.pop("Date")[0].endswith(" GMT")
    return found


def test_every_answer_has_the_headers_that_protect_browsers() -> None:
    expected = {
        "X-Content-Type-Options": ["nosniff"],
        "Cross-Origin-Resource-Policy": ["same-origin"],
        "Referrer-Policy": ["no-referrer"],
        "Cache-Control": ["no-store"],
    }
    assert headers_of(Response(204)) == expected
    assert headers_of(Response(200, b"{}", JSON)) == {**expected, "Content-Type": [JSON]}
    pinned = Response(200, b"", "", (("Cache-Control", "no-cache"),))
    assert headers_of(pinned) == {**expected, "Cache-Control": ["no-cache"]}
    origins = Origins((), is_open=True, is_encrypted=False)
    of_malformed = dict(response_headers(None, Response(401), origins))
    assert "WWW-Authenticate" not in of_malformed
    assert of_malformed["X-Content-Type-Options"] == "nosniff"


def test_a_refused_client_learns_how_to_authenticate_and_a_script_shows_no_dialog() -> None:
    refused = respond_error(WebError("unauthenticated", "who are you?"))
    bearer, basic = 'Bearer realm="dafka"', 'Basic realm="dafka", charset="UTF-8"'
    assert headers_of(refused)["WWW-Authenticate"] == [basic, bearer]
    assert headers_of(refused, Sec_Fetch_Mode="cors")["WWW-Authenticate"] == [bearer]
    own = respond_error(WebError("unauthenticated", "sign it", headers=[("WWW-Authenticate", "Dafka-Broker x")]))
    assert headers_of(own)["WWW-Authenticate"] == ["Dafka-Broker x"]
    assert "WWW-Authenticate" not in headers_of(respond_error(WebError("forbidden", "no")))


@pytest.mark.parametrize("method", ["GET", "OPTIONS"])
def test_a_listed_origin_gets_the_headers_that_browsers_ask_for(method: str) -> None:
    own = headers_of(Response(204), method=method, Origin=CONSOLE)
    assert (own["Access-Control-Allow-Origin"], own["Vary"]) == ([CONSOLE], ["Origin"])
    asked = {
        "Access-Control-Allow-Methods": ["GET, HEAD, POST, PUT, PATCH, DELETE"],
        "Access-Control-Allow-Headers": ["authorization, content-type, last-event-id"],
        "Access-Control-Max-Age": ["600"],
    }
    assert {name: own.get(name) for name in asked} == (asked if method == "OPTIONS" else dict.fromkeys(asked))
    for origin in ("https://evil.example", "null", "http://console.example"):
        other = headers_of(Response(204), method=method, Origin=origin)
        assert other["Vary"] == ["Origin"]
        assert not [each for each in other if each.startswith("Access-Control-")]
    assert "Vary" not in headers_of(Response(204), method=method)


def test_a_preflight_of_any_path_is_answered(web: SharedWeb) -> None:
    for target in ("/topics", "/none"):
        answer = web.ask("OPTIONS", target, Origin="https://evil.example")
        assert (answer.status, answer.body, answer.headers.get("Access-Control-Allow-Origin")) == (204, b"", None)
