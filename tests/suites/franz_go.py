"""franz-go's tests: those of its client, and its ports of Kafka's tests of clients, which start brokers themselves."""

from __future__ import annotations

import itertools
import json
import threading
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import parse_qsl

from tests.suites.running import Outcome, Outcomes, Run, Suite, Verdict, add_users, run_go

STAND_IN = Path(__file__).parent / "stand_in" / "kfake" / "kfake.go"
USERS = {"tester": {"SCRAM-SHA-256": "secret"}}
SETTINGS = "[kafka]\nsession_timeout_min_ms = 100\n"
NAMES = {
    "group.consumer.heartbeat.interval.ms": "consumer_heartbeat_interval_ms",
    "group.consumer.session.timeout.ms": "consumer_session_timeout_ms",
    "group.min.session.timeout.ms": "session_timeout_min_ms",
}
"""Kafka's names of settings, and ours. Those without one are ignored, and their tests fail."""
FAKE_ONLY = ("Test848FencedEpochRecovery", "Test848SessionTimeout")
"""Tests that have the fake broker give wrong answers. They do not run, and count as failed."""


def _run_client(run: Run) -> Outcomes:
    users = f'[clients]\nusers = "{add_users(run.folder, USERS)}"\n'
    with (
        run.brokers("127.0.0.1:0", settings=SETTINGS) as servers,
        run.brokers("127.0.0.1:0", settings=SETTINGS + users) as secured,
    ):
        return run_go(
            run,
            "pkg/kgo",
            KGO_SEEDS=servers,
            KGO_TEST_RF="1",
            KGO_TEST_RECORDS="50000",
            KGO_LOG_LEVEL="none",
            KGO_TEST_SCRAM="tester:secret",
            KGO_TEST_SCRAM_SEEDS=secured,
        )


class _Clusters(HTTPServer):
    """Starts and stops clusters for the stand-in of the package `kfake`."""

    def __init__(self, run: Run) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self._run = run
        self._open: dict[str, ExitStack] = {}
        self._names = (f"/{number}" for number in itertools.count())

    def start(self, settings: dict[str, str]) -> tuple[str, str]:
        """Start a cluster; return its name, and its addresses."""
        name = next(self._names)
        listen = ["127.0.0.1:0"] * int(settings.pop("brokers"))
        lines = [f"{NAMES[key]} = {value}" for key, value in settings.items() if key in NAMES]
        self._open[name] = ExitStack()
        return name, self._open[name].enter_context(self._run.brokers(*listen, settings="\n".join(["[kafka]", *lines])))

    def stop(self, name: str) -> None:
        """Stop a cluster, unless it is stopped."""
        self._open.pop(name, ExitStack()).close()

    def close(self) -> None:
        for name in [*self._open]:
            self.stop(name)
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: _Clusters

    def do_POST(self) -> None:
        name, servers = self.server.start(
            dict(parse_qsl(self.rfile.read(int(self.headers["Content-Length"])).decode()))
        )
        self._answer(servers, name)

    def do_DELETE(self) -> None:
        self.server.stop(self.path)
        self._answer()

    def _answer(self, text: str = "", location: str = "/") -> None:
        self.send_response(200)
        self.send_header("Location", location)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        pass


def _run_ports(run: Run) -> Outcomes:
    package = run.checkout / "pkg" / "kfake"
    replaced = {str(each): "" for each in package.glob("*.go")}
    overlay = run.folder / "overlay.json"
    overlay.write_text(json.dumps({"Replace": {**replaced, str(package / STAND_IN.name): str(STAND_IN)}}), "utf-8")
    clusters = _Clusters(run)
    thread = threading.Thread(target=clusters.serve_forever)
    thread.start()
    try:
        options = ("-parallel=2", f"-overlay={overlay}", "-skip", "|".join(FAKE_ONLY))
        url = f"http://127.0.0.1:{clusters.server_port}"
        found = run_go(run, "pkg/kfake/kafka_tests", *options, DAFKA_CLUSTERS=url)
        return {**found, **dict.fromkeys(FAKE_ONLY, Outcome(Verdict.FAILED))}
    finally:
        clusters.shutdown()
        thread.join()
        clusters.close()


CLIENT = Suite("franz-go", "`pkg/kgo`, with 50,000 records, not 500,000, a broker, and one with users", _run_client)
PORTS = Suite("franz-go", "`pkg/kfake/kafka_tests`: ports of the tests of Kafka's own clients", _run_ports)
