"""Holds WebSocket connections against the Autobahn test suite.

The suite's client expects an echo, so the sessions of the broker are replaced by one. Everything below them is as it
is: the port, the handshake, frames, compression and limits. The suite needs Python 2.7:

    virtualenv --python python2.7 FOLDER
    FOLDER/bin/pip install autobahntestsuite==0.8.2
    python -m tests.http.websocket.autobahn FOLDER/bin/python [CASES...]
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import trio

from dafka import Config
from dafka.http.server.messages import Request
from dafka.http.websocket.connection import Connection
from tests.http.running import open_web

PASSED = {"OK", "NON-STRICT", "INFORMATIONAL", "UNIMPLEMENTED"}
"""`UNIMPLEMENTED` are window sizes of compression that the broker does not agree to."""


KNOWN = {
    "7.1.5": "a close inside a fragmented message is answered with 1002 instead of its own code",
    **dict.fromkeys(("9.3.1", "9.3.2", "9.3.3", "9.4.1", "9.4.2", "9.4.3"), "a message has at most 4096 fragments"),
}
"""Cases that fail, and why."""


class EchoSession:
    def __init__(self, connection: Connection, _request: Request) -> None:
        self._connection = connection

    async def run(self) -> None:
        while True:
            await self._connection.send(await self._connection.recv())


async def run_cases(python: str, cases: list[str]) -> dict[str, Any]:
    config = Config().with_http(message_bytes_max="64 MiB", idle_ms=600_000)
    with tempfile.TemporaryDirectory() as reports, pytest.MonkeyPatch.context() as patch:
        patch.setattr("dafka.http.websocket.session.Session", EchoSession)
        async with open_web(config=config) as web:
            server = {"agent": "dafka", "url": f"ws://127.0.0.1:{web.port}/ws"}
            spec = Path(reports) / "spec.json"
            options = {"servers": [server], "outdir": reports, "cases": cases, "exclude-cases": []}
            spec.write_text(json.dumps(options))
            program = [python, "-c", "from autobahntestsuite.wstest import run; run()"]
            await trio.run_process([*program, "-m", "fuzzingclient", "-s", str(spec)], capture_stdout=True)
        index: dict[str, dict[str, Any]] = json.loads((Path(reports) / "index.json").read_text())
        return index["dafka"]


def main() -> None:
    found = trio.run(run_cases, sys.argv[1], sys.argv[2:] or ["*"])
    failed = {case: each for case, each in found.items() if {each["behavior"], each["behaviorClose"]} - PASSED}
    for case, each in failed.items():
        print(case, each["behavior"], each["behaviorClose"], f"(known: {KNOWN[case]})" if case in KNOWN else "")
    print(f"{len(found) - len(failed)} of {len(found)} cases passed")
    raise SystemExit(bool(failed.keys() - KNOWN))


if __name__ == "__main__":
    main()
