"""Pages of other sites, names that lead to this machine from elsewhere, and the headers that browsers ask for."""

from __future__ import annotations

import pytest

from dafka import Config
from dafka.http.server.errors import WebError
from dafka.http.server.messages import JSON, Response, respond_error, response_headers
from dafka.http.server.origins import Origins
from dafka.http1.head import Head
from tests.http.running import SharedWeb, open_web

CONSOLE = "https://console.example"
PROXY = "http://proxied.example:8080"


FOREIGN = {"sec-fetch-site": "cross-site"}
SIBLING = {"sec-fetch-site": "same-site"}
CORS, NO_CORS, NAVIGATE = ({"sec-fetch-mode": each} for each in ("cors", "no-cors", "navigate"))
EVIL = {"origin": "https://evil.example"}

ORIGINS = {
    "": f"http://localhost:80 http://localhost HTTP://LOCALHOST {CONSOLE} {CONSOLE}:443",
    "forbidden": f"""http://console.example {CONSOLE}:8443 https://evil.example https://sub.console.example
        https://console.example.evil.example null http://localhost:81 http://evil.localhost:80
        http://localhost:80@evil.example http://user@localhost:80 http://localhost:80/path http://localhost:80?query
        http://localhost:99999 ftp://localhost:80""",
}
HOSTS = {
    "": """localhost LOCALHOST:1 localhost. 127.0.0.1 127.0.0.2:5 [::1]:5 a.localhost proxied.example
        proxied.example:8080 console.example console.example:443""",
    "forbidden": """evil.example evil.example:8080 localhost.evil.example notlocalhost 127.0.0.1.evil.example 0.0.0.0
        proxied.example:8081 sub.proxied.example console.example:80""",
    "bad_request": ":80 localhost:x localhost:99999 user@localhost localhost/path localhost?a [::1",
}

VISITS: list[tuple[str, str, dict[str, str], dict[str, bool]]] = [
    ("", "POST", {}, {}),
    *((code, "POST", {"origin": each}, {}) for code, origins in ORIGINS.items() for each in origins.split()),
    ("forbidden", "POST", {"origin": ""}, {}),
    *(("", "POST", {"host": "localhost", "origin": f"{each}localhost"}, {}) for each in ("http://", "https://")),
    *(("forbidden", "POST", {"host": "localhost", "origin": f"http://localhost:{port}"}, {}) for port in (81, 443)),
    *(("forbidden", each, EVIL, {}) for each in ("PUT", "PATCH", "DELETE", "WEBSOCKET")),
    *(("", each, EVIL, {}) for each in ("GET", "HEAD", "OPTIONS")),
    # A page that another encrypted site shows is not a page of this one.
    ("", "POST", {"origin": "https://localhost:80"}, {"is_encrypted": True}),
    ("forbidden", "POST", {"origin": "http://localhost:80"}, {"is_encrypted": True}),
    # What browsers say about the page.
    *(("forbidden", "POST", each, {}) for each in (FOREIGN, SIBLING)),
    *(("forbidden", "GET", {**NO_CORS, **each}, {}) for each in (FOREIGN, SIBLING)),
    *(("", "GET", {**NAVIGATE, **each}, {}) for each in (FOREIGN, SIBLING)),
    *(("forbidden", each, {**NAVIGATE, **FOREIGN}, {}) for each in ("POST", "WEBSOCKET")),
    *(("", "POST", {"sec-fetch-site": each}, {}) for each in ("same-origin", "none")),
    ("", "POST", {"origin": CONSOLE, **FOREIGN}, {}),
    ("forbidden", "POST", {"origin": "http://localhost:80", **FOREIGN}, {}),
    # With users, only a browser that has logged in can be misused.
    ("", "GET", {**CORS, **FOREIGN}, {"is_open": False}),
    *(("forbidden", "GET", {**CORS, **each}, {"is_open": False, "has_session": True}) for each in (FOREIGN, SIBLING)),
    ("", "GET", {**NAVIGATE, **FOREIGN}, {"is_open": False, "has_session": True}),
    ("forbidden", "POST", EVIL, {"is_open": False}),
    # Names that lead to this machine.
    *((code, "POST", {"host": each}, {}) for code, hosts in HOSTS.items() for each in hosts.split()),
    ("bad_request", "POST", {"host": ""}, {}),
    *(("", "POST", {"host": "evil.example"}, {each: False}) for each in ("is_local", "is_open")),
    ("bad_request", "GET", {"host": ""}, {"is_open": False, "is_local": False}),
]
"""The code of a refusal, empty if there is none; the method and the headers of a request, and how it comes."""


def test_only_pages_of_the_broker_and_of_listed_sites_may_use_it() -> None:
    for code, method, headers, ways in VISITS:
        given = {"is_open": True, "is_encrypted": False, "is_local": True, "has_session": False, **ways}
        is_open, is_encrypted = given.pop("is_open"), given.pop("is_encrypted")
        origins, found = Origins((CONSOLE, PROXY), is_open=is_open, is_encrypted=is_encrypted), ""
        try:
            origins.check(method, {"host": "localhost:80", **headers}, **given)
        except WebError as error:
            found = error.code
        assert found == code, (method, headers, ways)


async def test_a_refused_request_does_nothing() -> None:
    config = Config().with_http(origins=(CONSOLE,))
    async with open_web(config=config) as web:
        document = {"name": "orders"}
        answer = await web.request("POST", "/topics", document=document, Origin="https://evil.example")
        assert (answer.status, answer.code) == (403, "forbidden")
        assert (await web.get("/topics", Host="evil.example")).code == "forbidden"
        assert (await web.get("/topics", Host="")).code == "bad_request"
        assert (await web.get("/topics", **FOREIGN, **CORS)).code == "forbidden"
        assert (await web.get("/topics")).document["topics"] == []
        allowed = await web.request("POST", "/topics", document=document, Origin=CONSOLE)
        assert (allowed.status, allowed.headers["Access-Control-Allow-Origin"]) == (201, CONSOLE)


def headers_of(response: Response, *, method: str = "GET", **given: str) -> dict[str, list[str]]:
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
