"""Chromium, driven by Playwright, and brokers whose console it shows. Tests are skipped where Chromium is missing."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import attrs
import pytest

from dafka import Config
from tests.http.running import SharedWeb, run_web

WAIT_MS = 60_000
"""How long an element may take to appear: much longer than it does, for machines under load."""

WIDE = {"width": 1360, "height": 860}
PHONE = {"width": 360, "height": 760}

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_AXE = Path(__file__).parent / "axe" / "axe.min.js"


@contextmanager
def open_browser() -> Iterator[Any]:
    """Run Chromium during the block. Skips the test without it."""
    executable = next((found for name in _NAMES if (found := shutil.which(name))), None)
    if executable is None:
        pytest.skip("needs Chromium, such as Debian's package chromium")
    driver = pytest.importorskip("playwright.sync_api", reason="needs playwright, of the extra `dafka[console-test]`")
    # A process of root, as in a container, cannot have Chromium's sandbox.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=arguments)
        try:
            yield browser
        finally:
            browser.close()


class Window:
    """A window with the console of a broker, and everything that it complains about or asks for.

    Args:
        context: The context of the browser.
        url: Where the console is.

    Attributes:
        page: The page.
        complaints: Errors and warnings on the browser's console, and exceptions of the page's scripts.
        foreign: Requests to other origins.
    """

    def __init__(self, context: Any, url: str) -> None:
        self.url = url
        self.page = context.new_page()
        self.page.set_default_timeout(WAIT_MS)
        self.complaints: list[str] = []
        self.foreign: list[str] = []
        self.page.on("console", self._record_message)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", self._record_request)
        self.page.on("websocket", self._record_request)

    def _record_request(self, request: Any) -> None:
        if urlsplit(request.url).netloc != urlsplit(self.url).netloc:
            self.foreign.append(request.url)

    def _record_message(self, message: Any) -> None:
        if message.type in {"error", "warning"}:
            self.complaints.append(message.text)

    def open(self, path: str, heading: str = "") -> Any:
        """Open a page, and wait for its heading and until it has loaded what it shows. Return it."""
        self.page.goto(f"{self.url}#/{path}")
        if heading:
            try:
                self.page.get_by_role("heading", level=1, name=heading, exact=True).wait_for()
            except Exception as error:
                shown = self.page.locator("body").inner_text()
                raise AssertionError(f"no {heading!r} at {self.page.url}: {shown!r}, {self.complaints}") from error
        self.settle()
        return self.page

    def settle(self) -> None:
        """Wait until nothing on the page is loading any more."""
        self.page.locator("main h1").first.wait_for()
        self.wait_gone("[aria-busy=true]")

    def wait_gone(self, selector: str) -> None:
        """Wait until the page has no such element."""
        self.page.locator(f"body:not(:has({selector}))").wait_for()

    def find_faults(self) -> list[str]:
        """Return what axe finds wrong with the page."""
        # The page's policy forbids scripts from elsewhere; what the debugger evaluates is not subject to it.
        if not self.page.evaluate("'axe' in window"):
            self.page.evaluate(_AXE.read_text("utf-8") + "; void 0")
        rules = "['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice']"
        found = self.page.evaluate(f"axe.run(document, {{runOnly: {rules}, resultTypes: ['violations']}})")
        return [
            f"{each['id']}: {each['help']} at {[node['target'] for node in each['nodes']]}"
            for each in found["violations"]
        ]

    @contextmanager
    def emulating(self, *, viewport: dict[str, int] = WIDE, theme: str | None = None) -> Iterator[None]:
        """Give the window another size, or say that its user wants other colours, during the block."""
        self.page.set_viewport_size(viewport)
        self.page.emulate_media(color_scheme=theme)
        try:
            yield
        finally:
            self.page.set_viewport_size(WIDE)
            self.page.emulate_media(color_scheme="null")

    def forgive(self, *texts: str) -> None:
        """Forget complaints that have one of these texts in them."""
        self.complaints = [each for each in self.complaints if not any(text in each for text in texts)]

    def is_too_wide(self) -> bool:
        return bool(self.page.evaluate("document.documentElement.scrollWidth > window.innerWidth"))

    def assert_calm(self) -> None:
        """Check that the page has not complained, and has asked nobody but its broker."""
        assert not self.complaints, self.complaints
        assert self.foreign == []


_SHARED: dict[tuple[int, str], Window] = {}
"""The windows that tests share, by browser and address: a page that is loaded shows another one quickly."""


@contextmanager
def open_window(browser: Any, url: str, *, is_shared: bool = True) -> Iterator[Window]:
    """Open a window with the console of a broker during the block. It must stay calm.

    A window that is shared goes on from the test before, with another page.
    """
    place = id(browser), url
    window = _SHARED.pop(place, None) if is_shared else None
    window = window or Window(browser.new_context(viewport=WIDE, reduced_motion="reduce"), url)
    try:
        yield window
        window.assert_calm()
        if is_shared:
            window.open("nowhere", "No such page")
            window.assert_calm()
            _SHARED[place] = window
    finally:
        if place not in _SHARED:
            window.page.context.close()


# Brokers whose console is shown


@attrs.frozen
class ServedBroker:
    """A broker in a thread of its own."""

    web: SharedWeb

    @property
    def url(self) -> str:
        return f"{self.web.broker.url}/"

    def request(self, method: str, path: str, document: object = None, **headers: Any) -> Any:
        """Send a request, and return the document in the answer."""
        answer = self.web.ask(method, path, document=document, **headers)
        assert answer.status < 300, (answer.status, answer.body)
        return answer.document if answer.body else None

    def create_topic(self, name: str, values: Iterable[object] = (), log_count: int = 1, **headers: Any) -> None:
        """Create a topic, with records of these values."""
        self.request("POST", "/topics", {"name": name, "log_count": log_count}, **headers)
        if records := [{"value": f"{each}"} for each in values]:
            self.publish(name, records, **headers)

    def publish(self, topic: str, records: Iterable[Mapping[str, object]], **headers: Any) -> None:
        """Publish records, as the API has them."""
        body = "\n".join(json.dumps(each) for each in records).encode()
        target = f"/topics/{quote(topic, safe='')}/records"
        answer = self.web.ask("POST", target, body, Content_Type="application/x-ndjson", **headers)
        assert answer.status == 200, answer.body


@contextmanager
def serve_broker(folder: Path, config: Config | None = None) -> Iterator[ServedBroker]:
    with run_web(f"filelog:{folder}", config) as web:
        yield ServedBroker(web)
