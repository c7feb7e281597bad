"""Text in anything that the console shows is text: it creates no element and no attribute, and no script runs."""

from __future__ import annotations

import base64
import json
import re
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from dafka.http.api import ROUTES
from dafka.http.api.console import FOLDER as CONSOLE
from dafka.http.api.openapi import describe_api
from tests.http.console.browser import Window, open_window
from tests.http.running import SharedWeb

HOSTILE = (
    '<img src=x data-hostile onerror="hostile()">\'" data-hostile="1" </pre></td></textarea></title></script>'
    "<script data-hostile>hostile()</script>${hostile()}{{hostile()}}&lt;i&gt;<!--\u202e\u0001javascript:hostile()"
)
SHOWN = '<img src=x data-hostile onerror="hostile()">\'" data-hostile="1" </pre></td></textarea></title></script>'
API = json.loads(json.dumps(describe_api(ROUTES)))

CREATES_ELEMENTS = re.compile(
    r"innerHTML|outerHTML|insertAdjacent|dangerously|__html|document\.write|srcdoc|DOMParser|createContextualFragment"
    r"|setHTML|\beval\b|\bFunction\(|javascript:|setAttribute|createElement(?!\(\"span\"\))|window\.open"
    r"|\bset(?:Timeout|Interval)\(\s*[\"'`]|\bon[a-z]+=\"|\shref=\$\{(?!href\()|<\$\{(?![A-Z]|loaded\.component)"
    r"|\s(?:src|formaction|srcset|xlink:href)=\$|<(?:script|iframe|object|embed|base|form\s[^>]*action)"
    r"|location\.(?:assign|replace)|location(?:\.href)?\s*=(?!=)"
)
"""What can make elements, attributes or scripts of text. Addresses are made by `href` only."""


def test_no_script_of_the_console_makes_markup_of_text() -> None:
    scripts = [*CONSOLE.glob("*.js"), *CONSOLE.glob("pages/*.js")]
    assert len(scripts) > 20
    assert [each.name for each in scripts if CREATES_ELEMENTS.search(each.read_text("utf-8"))] == []
    page = (CONSOLE / "index.html").read_text("utf-8")
    assert not re.search(r"<script(?![^>]*\ssrc=\"[a-z/.0-9-]+\")|\son[a-z]+=|javascript:|<style", page)


class Filler:
    """Makes documents of the API in which every text is hostile, and all differ."""

    def __init__(self) -> None:
        self._numbers = count()

    def text(self) -> str:
        return f"{HOSTILE} {next(self._numbers)}"

    def fill(self, schema: dict[str, Any]) -> Any:
        """Return a value of a schema."""
        if "$ref" in schema:
            return self.fill(API["components"]["schemas"][schema["$ref"].rpartition("/")[2]])
        if "enum" in schema or "const" in schema:
            return schema.get("const", schema.get("enum", [None])[0])
        if "anyOf" in schema:
            return self.fill(next(each for each in schema["anyOf"] if each.get("type") != "null"))
        kind = schema.get("type")
        if kind == "object":
            found = {name: self.fill(each) for name, each in schema.get("properties", {}).items()}
            if isinstance(schema.get("additionalProperties"), dict):
                found[self.text()] = self.fill(schema["additionalProperties"])
            return found
        if kind == "array":
            return [self.fill(schema["items"]) for _ in range(2)] if "items" in schema else []
        return {"string": self.text(), "integer": 3, "number": 1.5, "boolean": True}.get(str(kind), self.text())

    def document(self, path: str) -> Any:
        """Return the answer of GET at a path; None if it is no document."""
        segments = path.strip("/").split("/")
        for described, operations in API["paths"].items():
            expected = described.strip("/").split("/")
            if len(expected) == len(segments) and all(
                one == other or one.startswith("{") for one, other in zip(expected, segments, strict=True)
            ):
                content = operations.get("get", {}).get("responses", {}).get("200", {}).get("content", {})
                schema = content.get("application/json", {}).get("schema")
                return None if schema is None or described in {"/openapi.json"} else self.adapt(self.fill(schema))
        return None

    def adapt(self, found: Any) -> Any:
        """Make what pages compare or compute with as brokers do."""
        if "must_log_in" in found:
            permissions = {each: ["*"] for each in ("read", "write", "admin", "groups")}
            return {**found, "must_log_in": False, "is_administrator": True, "permissions": permissions}
        if "state" in found and "damages" in found:
            found["state"] = "done"
        for number, each in enumerate(found.get("logs", []) + found.get("offsets", [])):
            if "end_offset" in each:
                each.update(log=number % 2, start_offset=0, end_offset=3)
        if found.get("next"):
            found["next"] = None
        return found

    def records(self) -> bytes:
        """Return three records: with JSON, text and bytes."""
        value = json.dumps({self.text(): [self.text(), {self.text(): None}]})
        encoded = base64.b64encode(b"\xff" + HOSTILE.encode()).decode()
        headers = [[self.text(), self.text()], [self.text(), {"base64": encoded}]]
        records: list[dict[str, Any]] = [
            {"key": self.text(), "value": value, "headers": headers},
            {"key": value, "value": self.text(), "headers": headers},
            {"key_base64": "/w==", "value_base64": encoded},
        ]
        return b"\n".join(
            json.dumps({"log": 0, "offset": number, "timestamp": 1_790_000_000_000, **each}).encode()
            for number, each in enumerate(records)
        )


def answer_hostile(window: Window, refused: set[str]) -> None:
    """Answer the page's requests to the API with hostile documents; some with an error. WebSocket stays silent."""
    filler = Filler()

    def answer(route: Any) -> None:
        path = urlsplit(route.request.url).path
        if path.endswith("/records") and route.request.method == "GET":
            route.fulfill(body=filler.records(), content_type="application/x-ndjson")
            return
        document = filler.document(path) if route.request.method == "GET" else None
        if path == "/topics/bare" and document is not None:
            document |= {"log_count": 0, "logs": [], "settings": []}
        if path in refused or (document is None and route.request.method != "GET"):
            error = {"error": {"code": "bad_request", "message": filler.text()}}
            route.fulfill(status=400, body=json.dumps(error), content_type="application/json")
        elif document is None:
            route.continue_()
        else:
            route.fulfill(body=json.dumps(document), content_type="application/json")

    window.page.route("**/*", answer)
    window.page.route_web_socket("**/ws", lambda _socket: None)


TOPIC = quote(HOSTILE, safe="")

PAGES = [
    *("", "topics", "groups", f"groups/{TOPIC}", "brokers", "storage", "settings"),
    *(f"topics/{TOPIC}{each}" for each in ("", "/produce", "/logs", "/epochs", "/partitions", "/settings")),
]


def check_page(window: Window, path: str, *, is_shown: bool = True) -> None:
    """Check that the page has no element, attribute or script of a hostile text, and shows one."""
    assert window.page.evaluate("document.querySelectorAll('[data-hostile], img[src=x], [onerror]').length") == 0, path
    assert window.page.evaluate("document.querySelectorAll('script').length - window.ownScripts") == 0, path
    addresses = window.page.evaluate("[...document.querySelectorAll('a')].map(each => each.getAttribute('href'))")
    assert all(each.startswith("#/") or each == "#main" for each in addresses), path
    text = window.page.locator("main").inner_text()
    text += window.page.evaluate("[...document.querySelectorAll('input, textarea')].map(each => each.value).join()")
    assert (SHOWN in text) == is_shown, path


def test_texts_in_all_documents_errors_and_addresses_are_shown_as_they_are(browser: Any, web: SharedWeb) -> None:
    refused: set[str] = set()
    with open_window(browser, f"{web.broker.url}/", is_shared=False) as window:
        page = window.page
        page.add_init_script("window.hostile = () => { throw new Error('a script of a text has run'); };")
        answer_hostile(window, refused)
        window.open("", "Overview")
        page.evaluate("window.ownScripts = document.querySelectorAll('script').length")
        for path in PAGES:
            window.open(path)
            check_page(window, path)
            if path == "storage":
                page.get_by_role("region", name="Cold tier").get_by_text("To be moved").wait_for()
        window.open("topics/bare")
        page.get_by_text("Only nodes can use a topic of this name").wait_for()
        window.open(f"topics/{TOPIC}")
        for number in range(3):
            page.locator("tbody th button").nth(number).click()
            detail = page.get_by_label("The selected record")
            detail.wait_for()
            for way in ("JSON", "Text", "Hex"):
                for button in detail.get_by_role("button", name=way).all():
                    button.click()
                    check_page(window, f"record {number} as {way}")
        page.get_by_role("searchbox").fill(HOSTILE)
        check_page(window, "search")
        window.open(f"nowhere/{TOPIC}?{TOPIC}={TOPIC}")
        check_page(window, "nowhere", is_shown=False)
        lists = ("topics", "groups", "storage", "settings", "brokers")
        refused |= {"/overview", *(f"/{each}" for each in lists), f"/topics/{TOPIC}", f"/groups/{TOPIC}"}
        for path in ("", *lists, f"groups/{TOPIC}", f"topics/{TOPIC}?from={TOPIC}"):
            window.open(path)
            check_page(window, path)
        window.forgive("400")


# Files of others are as they were published, and have their licences with them


FOLDERS = [CONSOLE / "vendor", Path(__file__).parent / "axe"]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_each_file_of_others_is_listed_and_unchanged(folder: Path) -> None:
    listed = json.loads((folder / "vendored.json").read_text("utf-8"))
    licences = {name for each in listed for name in each["licence_files"]}
    expected = {each["file"] for each in listed} | licences | {"vendored.json", "README.md"}
    assert {each.name for each in folder.iterdir()} | {"README.md"} == expected
    for each in listed:
        assert sha256((folder / each["file"]).read_bytes()).hexdigest() == each["sha256"], each["file"]
        assert re.fullmatch(r"\d+\.\d+\.\d+", each["version"])
        assert each["licence"]
        assert all((folder / name).stat().st_size > 500 for name in each["licence_files"])


def test_names_of_pinned_files_change_with_their_versions() -> None:
    # Browsers keep them for a year.
    for each in json.loads((CONSOLE / "vendor" / "vendored.json").read_text("utf-8")):
        assert each["version"] in each["file"]


def test_every_module_that_the_console_loads_is_there() -> None:
    for path in [*CONSOLE.glob("*.js"), *CONSOLE.glob("pages/*.js")]:
        for target in re.findall(r"(?:from|import\() ?\"(\.[^\"]+)\"", path.read_text("utf-8")):
            assert (path.parent / target).exists() or target.endswith("../dafka.js"), f"{path.name}: {target}"
