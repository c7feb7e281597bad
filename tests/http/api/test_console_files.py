"""The console's files: their types, how long browsers keep them, and what pages may load."""

from __future__ import annotations

import gzip
import http.client
from contextlib import closing
from typing import Any

from dafka.http.api.console import FOLDER
from tests.http.running import DEADLINE_S, SharedWeb

TEXTS = {".css": "css", ".html": "html", ".js": "javascript", ".md": "plain", ".LICENSE": "plain"}
TYPES = {ending: f"text/{each}; charset=utf-8" for ending, each in TEXTS.items()}
TYPES |= {".json": "application/json", ".svg": "image/svg+xml"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
FILES = [path for path in sorted(FOLDER.rglob("*")) if path.is_file()]


def test_every_file_is_sent_as_it_is(web: SharedWeb) -> None:
    sent = {f"/console/{path.relative_to(FOLDER).as_posix()}": path for path in FILES}
    sent |= {"/": FOLDER / "index.html", "/dafka.js": FOLDER / "dafka.js"}
    tags: dict[str, bytes] = {}
    with closing(http.client.HTTPConnection("127.0.0.1", web.port, timeout=DEADLINE_S)) as connection:
        for target, path in sent.items():
            content = path.read_bytes()
            for accepted in ("identity", "br, gzip;q=0.5"):
                connection.request("GET", target, headers={"Accept-Encoding": accepted})
                answer = connection.getresponse()
                body = answer.read()
                is_compressed = answer.headers.get("Content-Encoding") == "gzip"
                assert answer.status == 200
                assert (gzip.decompress(body) if is_compressed else body) == content, target
                assert is_compressed == (
                    "gzip" in accepted and len(content) > 512 and len(gzip.compress(content)) < 0.9 * len(content)
                )
                assert answer.headers["Content-Type"] == TYPES[path.suffix]
                assert answer.headers["Content-Security-Policy"] == POLICY
                assert answer.headers["Vary"] == "Accept-Encoding"
                pinned = "public, max-age=31536000, immutable" if "/vendor/" in target else "no-cache"
                assert answer.headers["Cache-Control"] == pinned
                assert tags.setdefault(answer.headers["ETag"], content) == content, "a tag is that of one content"


def test_a_file_that_the_browser_has_is_not_sent_again(web: SharedWeb) -> None:
    tag = web.ask("GET", "/").headers["ETag"]
    kept = ["{}", "W/{}", '"a", {}', "*"]
    for given in (*kept, '"a"', "", "{}x"):
        headers: dict[str, Any] = {"If_None_Match": given.format(tag)}
        answer = web.ask("GET", "/", **headers)
        assert (answer.status, answer.body == b"") == ((304, True) if given in kept else (200, False)), given
        assert (answer.headers["ETag"], answer.headers["Content-Security-Policy"]) == (tag, POLICY)


def test_no_other_file_is_sent(web: SharedWeb) -> None:
    climbing = ("../console/main.js", "..%2fapi%2fconsole.py", "%2e%2e/api/console.py")
    for path in ("none.js", *climbing, "", "pages", "/etc/passwd"):
        answer = web.ask("GET", f"/console/{path}")
        assert (answer.status, answer.code) == (404, "not_found"), path
