"""What `dafka cluster` and `dafka topic` ask a broker for, and what they print for its answers, which a test gives."""

from __future__ import annotations

import json
import random
import ssl
import threading
from base64 import b64decode
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import attrs
import pytest
from click.testing import CliRunner, Result

from dafka.cli import main
from dafka.cli.kafka import cluster as cluster_module
from dafka.cli.kafka import cluster_verify
from dafka.cli.kafka.cluster_verify import Difference
from tests.kafka.server.secured import Authority


class Broker(HTTPServer):
    """A server that answers requests in turn with a status and a text, and remembers the requests and their headers."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: list[tuple[int, str]] = []
        self.requests: list[Any] = []
        self.headers: list[Any] = []
        self.url = f"http://127.0.0.1:{self.server_port}"

    def run(self, command: str, *answers: Any, url: str = "", status: int = 200) -> Result:
        self.answers = [(status, json.dumps(each)) for each in answers]
        self.requests, self.headers = [], []
        return CliRunner().invoke(main, [*command.split(), "--http", url or self.url])


class Handler(BaseHTTPRequestHandler):
    server: Broker

    def do_GET(self) -> None:
        text = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.requests.append((self.command, self.path, *([json.loads(text)] if text else [])))
        self.server.headers.append(self.headers)
        status, answer = self.server.answers.pop(0)
        self.send_response(status)
        self.end_headers()
        self.wfile.write(answer.encode())

    do_POST = do_PUT = do_GET  # noqa: N815 (their names are those of methods)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.001,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(autouse=True)
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Notes how long a command sleeps in place of it."""
    noted: list[float] = []
    monkeypatch.setattr(cluster_module, "time", SimpleNamespace(sleep=noted.append, monotonic=lambda: sum(noted)))
    return noted


def broker_of(number: int, **changed: Any) -> dict[str, Any]:
    states = {"is_alive": True, "is_drained": False, "is_draining": False}
    places = {"rack": "", "kafka_listener": "h:1", "http_url": "", "free_bytes": 0, "logs_led": 2, "replicas": 3}
    levels = {"feature_level_min": 1, "feature_level_max": 1}
    counts = {"under_replicated_logs": 0, "damaged_logs": 0}
    return {"number": number, **states, **places, **levels, **counts, **changed}


MOVE = {"topic": "t", "log": 1, "replicas": [0, 2], "learners": [], "ordered": [2, 1], "reason": "ordered by anne"}
HELD = [
    {"topic": "t", "log": 0, "is_led": True, "others": [0, 2], "has_quorum": True},
    {"topic": "u", "log": 3, "is_led": False, "others": [], "has_quorum": False},
]
SHOWN_HELD = """topic log broker 1 others alive without it
t 0 leads 0, 2 has a quorum
u 3 stores none has no quorum: records can be lost"""
EPOCH = {"flags": ["first"], "epoch": 4, "parent_leader": None, "parent_leader_address": "", "leader": None}
EPOCHS = {"log": 2, "epochs": [{**EPOCH, "leader_address": "ABCDEFGHIJ", "start_offset": 9}]}
OTHER = {"flags": [], "epoch": 5, "parent_leader": 0, "parent_leader_address": "X", "leader": 1, "leader_address": "Y"}
EPOCHS["epochs"].append({**OTHER, "start_offset": 12})  # type: ignore[attr-defined]
CHANGE = {"offset": 7, "ordered_at": 0, "ordered_by": "anne", "description": "create x", "is_done": True, "reason": ""}
DRAINED = {"brokers": [broker_of(0), broker_of(1, is_drained=True)]}
NOT_DRAINED = {"brokers": [broker_of(0, is_drained=True), broker_of(1)]}
LEVELS = {"feature_level": 3, "feature_level_max": 5}
SUPPORT = [
    broker_of(0, feature_level_min=1, feature_level_max=5),
    broker_of(1, feature_level_min=5, feature_level_max=5),
]
OLDER = [*SUPPORT, broker_of(2, feature_level_max=6)]
LEVEL = ("POST", "/cluster/feature-level")
DRAIN, FORGET, RECOVER = "/brokers/1/drain", "/brokers/1/forget", "/topics/t/logs/0/recover"
WOULD = "log 0 of t would continue from broker 1: records that only {} had would be lost"
NO_TERMINAL = "Error: expected --yes, since standard input is not a terminal on which to ask"

ROWS: list[tuple[str, list[Any], list[Any], str, int]] = [
    ("topic move o/1 --log 3 --replicas 2,0", [{}], [("PUT", "/topics/o%2F1/logs/3/replicas", {"replicas": [2, 0]})],
     "log 3 of o/1 moves to the brokers 2, 0", 0),
    ("topic move t --log 0 --replicas any", [{}], [("PUT", "/topics/t/logs/0/replicas", {"replicas": []})],
     "log 0 of t stays where the cluster chooses", 0),
    ("topic recover t --log 0 --from 1 --dry-run", [{"replicas": [0, 1, 2]}],
     [("POST", RECOVER, {"broker": 1, "dry_run": True})], WOULD.format("the brokers 0,2"), 0),
    ("topic recover t --log 0 --from 1 --yes", [{"replicas": [1, 2]}, {}],
     [("POST", RECOVER, {"broker": 1, "dry_run": True}), ("POST", RECOVER, {"broker": 1})],
     f"{WOULD.format('the broker 2')}\nlog 0 of t is recovered", 0),
    ("topic recover t --log 0 --from 1", [{"replicas": [1]}], [("POST", RECOVER, {"broker": 1, "dry_run": True})],
     f"{WOULD.format('lost brokers')}\n{NO_TERMINAL}", 2),
    ("topic moves", [{"moves": [MOVE]}], [("GET", "/moves")],
     "topic log replicas learners ordered reason\nt 1 0,2 2,1 ordered by anne", 0),
    ("topic moves --json", [{"moves": [MOVE]}], [("GET", "/moves")], json.dumps(MOVE), 0),
    ("topic epochs o/1", [{"logs": [EPOCHS]}], [("GET", "/topics/o%2F1/epochs")],
     "flags log epoch parent leader leader start offset\nfirst 2 4 - ABCDEFGH 9\n- 2 5 0 1 12", 0),
    ("topic epochs t --json", [{"logs": [EPOCHS]}], [("GET", "/topics/t/epochs")],
     json.dumps({"topic": "t", **EPOCHS}), 0),
    ("cluster brokers", [{"brokers": [
        broker_of(0, is_drained=True, is_draining=True), broker_of(1, is_alive=False, is_draining=True),
        broker_of(2, is_draining=True, rack="r", kafka_listener="", http_url="u", free_bytes=2_500_000)]}],
     [("GET", "/brokers")],
     "broker state rack kafka http free logs led replicas\n0 drained - h:1 - - 2 3\n1 dead - h:1 - - 2 3\n"
     "2 draining r - u 2.5 MB 2 3", 0),
    ("cluster drain 1", [{"is_needed_voter": False, "is_drained": False}], [("POST", DRAIN)],
     "broker 1 is being drained", 0),
    ("cluster drain 1 --dry-run", [{"logs": HELD}], [("GET", "/brokers/1/logs")], SHOWN_HELD, 0),
    ("cluster drain 1 --wait", [{"is_needed_voter": True, "is_drained": False}, NOT_DRAINED, DRAINED],
     [("POST", DRAIN), ("GET", "/brokers"), ("GET", "/brokers")],
     "broker 1 is being drained\nbroker 1 votes on metadata, and too few of the other voters stay: it is drained when "
     "another broker has become a voter in its place\nbroker 1 is drained: it can be taken away", 0),
    ("cluster drain 1 --wait --timeout 1s",
     [{"is_needed_voter": False, "is_drained": False}, NOT_DRAINED, {"brokers": [broker_of(1, is_needed_voter=True)]}],
     [("POST", DRAIN), ("GET", "/brokers"), ("GET", "/brokers")],
     "broker 1 is being drained\nError: broker 1 is not drained yet: it leads 2 and keeps 3 logs, and is needed to "
     "vote on metadata", 1),
    ("cluster undrain 1", [{}], [("POST", "/brokers/1/undrain")], "broker 1 takes logs again", 0),
    ("cluster forget 1", [], [], NO_TERMINAL, 2),
    ("cluster forget 1 --yes", [{}], [("POST", FORGET, {"accept_loss": False})], "broker 1 is forgotten", 0),
    ("cluster forget 1 --yes --accept-loss", [{}], [("POST", FORGET, {"accept_loss": True})],
     "broker 1 is forgotten", 0),
    ("cluster forget 1 --dry-run", [{"logs": HELD}, {}],
     [("GET", "/brokers/1/logs"), ("POST", FORGET, {"accept_loss": False, "dry_run": True})],
     f"{SHOWN_HELD}\nbroker 1 would be forgotten", 0),
    ("cluster log", [{"changes": [CHANGE, {**CHANGE, "is_done": False, "reason": "it exists"}]}],
     [("GET", "/cluster/log?limit=50")],
     "offset time ordered by change\n7 1970-01-01T00:00:00.000Z anne create x\n"
     "7 1970-01-01T00:00:00.000Z anne refused: create x: it exists", 0),
    ("cluster log --limit 2 --before 0 --json", [{"changes": [CHANGE]}], [("GET", "/cluster/log?limit=2&before=0")],
     json.dumps(CHANGE), 0),
    ("cluster upgrade --dry-run", [{**LEVELS, "brokers": SUPPORT}, {}],
     [("GET", "/cluster"), (*LEVEL, {"level": 5, "dry_run": True})],
     "broker state feature levels\n0 alive 1 to 5\n1 alive 5\nthe feature level would be raised from 3 to 5", 0),
    ("cluster upgrade --yes", [{**LEVELS, "brokers": OLDER}, {}, {}],
     [("GET", "/cluster"), (*LEVEL, {"level": 5, "dry_run": True}), (*LEVEL, {"level": 5})],
     "the cluster has the feature level 5\nno higher level is supported by brokers 0,1: update dafka there first", 0),
    ("cluster upgrade", [{**LEVELS, "feature_level": 5, "brokers": OLDER[1:]}, {}],
     [("GET", "/cluster"), (*LEVEL, {"level": 5, "dry_run": True})],
     "the cluster has the feature level 5 already\nno higher level is supported by broker 1: update dafka there first",
     0),
    ("cluster upgrade --yes --to 4", [{**LEVELS, "brokers": SUPPORT}, {}, {}],
     [("GET", "/cluster"), (*LEVEL, {"level": 4, "dry_run": True}), (*LEVEL, {"level": 4})],
     "the cluster has the feature level 4", 0),
    ("cluster upgrade --to 3", [{**LEVELS, "brokers": SUPPORT}, {}],
     [("GET", "/cluster"), (*LEVEL, {"level": 3, "dry_run": True})], "the cluster has the feature level 3 already", 0),
    ("cluster upgrade", [{**LEVELS, "brokers": SUPPORT}, {}],
     [("GET", "/cluster"), (*LEVEL, {"level": 5, "dry_run": True})], NO_TERMINAL, 2),
]  # fmt: skip
"""A command, the documents that a broker answers with, what it was asked, what is printed, and the exit status."""


def test_commands_ask_for_what_they_say_and_show_the_answer(broker: Broker, slept: list[float]) -> None:
    for command, answers, requests, printed, status in ROWS:
        slept.clear()
        result = broker.run(command, *answers)
        found = "\n".join(" ".join(line.split()) for line in result.output.splitlines())
        assert (broker.requests, found, result.exit_code) == (requests, printed, status), command
        assert slept == [1.0] * requests.count(("GET", "/brokers")) * (" --wait" in command), command
        is_result = "--json" in command or printed.startswith(("topic", "flags", "broker state", "offset"))
        assert bool(result.stdout) == is_result, command


FINE: dict[str, Any] = {
    "cluster_id": "C", "is_open": True, "controller": 1, "feature_level": 3, "feature_level_max": 3,
    "voters": [{"number": 1, "is_heard": True}, {"number": None, "is_heard": True}], "voters_needed": 2,
    "brokers": [broker_of(0), broker_of(1)], "log_count": 7, "leaderless_logs": 0, "under_replicated_logs": 0,
    "move_count": 0, "leaderless": [], "under_replicated": [], "moves": [],
}  # fmt: skip
LEADERLESS = {"topic": "t", "log": 0, "reason": "no broker"}
UNDER = {"topic": "t", "log": 1, "leader": 0, "replicas": [0, 1], "in_sync": None, "reason": "1 is dead"}
STATES: list[tuple[dict[str, Any], str, int]] = [
    ({}, "2 brokers, 0 dead; 7 logs, 0 without a leader, 0 under-replicated, 0 moving", 0),
    ({}, "cluster C: open, broker 1 is the controller", 0),
    ({}, "feature level: 3", 0),
    ({}, "voters on metadata: 1, forgotten; changes need 2 of 2", 0),
    ({"feature_level_max": 4}, "feature level: 3 (all brokers support 4: `dafka cluster upgrade` raises it)", 0),
    ({"moves": [MOVE], "move_count": 1}, "logs that move:\ntopic log replicas ordered reason\nt 1 0,2 2,1 ordered", 0),
    ({"is_open": False}, "cluster C: not open yet, broker 1", 1),
    ({"controller": None}, "cluster C: open, no controller", 1),
    ({"voters": [{"number": 0, "is_heard": True}, {"number": 1, "is_heard": False}]}, ": 0, 1 (not heard); changes", 1),
    ({"brokers": [broker_of(0, is_alive=False), broker_of(1)]}, "2 brokers, 1 dead (0); 7 logs", 1),
    ({"brokers": [broker_of(0), broker_of(1, under_replicated_logs=None)]}, "1 alive", 1),
    ({"brokers": [broker_of(0), broker_of(1, damaged_logs=2)]}, "\n\nbroker 1 has damaged records of 2 logs\n", 1),
    ({"leaderless_logs": 1, "leaderless": [LEADERLESS]},
     "1 without a leader, 0 under-replicated, 0 moving", 1),
    ({"leaderless_logs": 1, "leaderless": [LEADERLESS]},
     "\n\nlogs without a leader:\ntopic log reason\nt 0 no broker\n", 1),
    ({"under_replicated_logs": 2, "under_replicated": [UNDER]}, "0 without a leader, 2 under-replicated, 0 moving", 1),
    ({"under_replicated_logs": 2, "under_replicated": [UNDER]},
     "\n\nunder-replicated logs:\ntopic log leader replicas in sync reason\nt 1 0 0,1 - 1 is dead\n", 1),
]  # fmt: skip
"""What differs from a cluster without faults, a part of what is printed, and the exit status."""


def test_one_fault_of_a_cluster_is_its_status(broker: Broker) -> None:
    titles = ("damaged", "logs without", "under-replicated logs", "logs that move")
    for changed, part, status in STATES:
        document = {**FINE, **changed}
        result = broker.run("cluster status", document)
        shown = "\n".join(" ".join(line.split()) for line in f"{result.stdout}\n".split("\n"))
        assert (part in shown, result.exit_code) == (True, status), shown
        assert sum(title in shown for title in titles) == sum(title in part for title in titles) or changed
        result = broker.run("cluster status --json", document)
        assert (json.loads(result.stdout), result.exit_code, broker.requests) == (
            document,
            status,
            [("GET", "/cluster")],
        )


def refusal(message: object) -> str:
    return json.dumps({"error": {"message": message}})


ANSWERS: list[tuple[int, str, str, int]] = [
    *((status, refusal("no"), "no", 2) for status in (400, 404, 499)),
    *((status, refusal("no"), "no", 1) for status in (399 + 101, 503)),
    *((200, text, "does not answer as a broker (status 200)", 1) for text in ("", "null", "<html>")),
    *((400, text, "does not answer as a broker (status 400)", 1) for text in ("[]", "{}", '{"error": "x"}', "5")),
    (404, refusal(None), "does not answer as a broker (status 404)", 1),
]


def test_what_a_broker_refuses_is_a_mistake_and_what_it_cannot_do_is_none(broker: Broker) -> None:
    for status, text, message, expected in ANSWERS:
        broker.answers, broker.requests = [(status, text)], []
        result = CliRunner().invoke(main, ["cluster", "undrain", "1", "--http", broker.url])
        about = f"{broker.url} " if message.startswith("does") else ""
        assert (result.output, result.exit_code) == (f"Error: {about}{message}\n", expected)


def test_requests_name_the_user_and_what_is_expected(broker: Broker, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("s\u00e9cret\n")
    broker.run(f"cluster forget 1 --yes --user anne --password-file {tmp_path}/password", {})
    broker.answers = [(200, "{}")]
    CliRunner().invoke(main, ["cluster", "undrain", "1", "--http", broker.url.removeprefix("http://")])
    first, second = broker.headers
    kind, _, encoded = first["Authorization"].partition(" ")
    assert (kind, b64decode(encoded).decode()) == ("Basic", "anne:s\u00e9cret")
    assert (second["Authorization"], first["Accept"]) == (None, "application/json")
    assert (first["Content-Type"], second["Content-Type"]) == ("application/json", None)


def test_a_broker_with_tls_is_trusted_if_its_authority_is(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(authority.issue("127.0.0.1"))
    with Broker() as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        url = server.url.replace("http:", "https:")
        for arguments, output in (
            (["--tls-ca", str(authority.path)], "broker 1 takes logs again"),
            ([], f"Error: the certificate of {url} is not accepted: "),
        ):
            server.answers = [(200, "{}")]
            thread = threading.Thread(target=server.handle_request)
            thread.start()
            result = CliRunner().invoke(main, ["cluster", "undrain", "1", "--http", url, *arguments])
            thread.join()
            assert result.output.startswith(output)


# `dafka cluster verify` against a model: lists of records


@attrs.define
class Disk:
    """A broker that answers requests for checksums. `dropped` records are lost while they are compared."""

    first: int
    records: list[int]
    damaged: int = 10**9
    dropped: int = 0

    def ask(self, method: str, target: str) -> Any:
        parts = urlsplit(target)
        if parts.path == "/topics/t":
            return {"settings": [{"name": "cleanup.policy", "value": "delete"}, {"name": "x", "value": "compact"}]}
        if parts.path == "/topics/t/partitions":
            return {
                "partitions": [{"address": "P", "earliest_sequence": self.first, "end_sequence": len(self.records)}]
            }
        query = parse_qs(parts.query)
        assert (query["topic"], query["partition"]) == (["t"], ["P"])
        first, count = int(query["first"][0]), int(query["count"][0])
        assert self.first <= first < first + count <= len(self.records)
        error = "damaged" if first <= self.damaged < first + count else ""
        begun = max(first, self.dropped)
        return {"first_sequence": begun, "checksum": str(self.records[begun : first + count]), "error": error}


def test_the_first_difference_of_a_partition_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_verify, "CHUNK_RECORDS", chunk := 7)
    for seed in range(150):
        draw = random.Random(seed)
        disks = {number: Disk(draw.randrange(6), [0] * draw.randint(6, 30)) for number in range(draw.randint(2, 4))}
        first = max(each.first for each in disks.values())
        end = min(len(each.records) for each in disks.values())
        for disk in disks.values():
            if draw.random() < 0.4:
                disk.records[draw.randrange(len(disk.records))] = 1
            if draw.random() < 0.1:
                disk.damaged = draw.randrange(len(disk.records))
        if draw.random() < 0.2:
            disks[0].dropped = draw.randrange(end)
        first_compared = max(first, disks[0].dropped)
        comparison = cluster_verify._Comparison(disks)  # type: ignore[arg-type]
        expected, compared = None, 0
        while first < end and expected is None:
            part = slice(first, min(first + chunk, end))
            damaged = [number for number, each in disks.items() if part.start <= each.damaged < part.stop]
            contents = {number: str(each.records[part]) for number, each in disks.items()}
            differing = cluster_verify.find_differing(contents)
            if damaged:
                expected = Difference("t", "P", first, damaged, "damaged")
            elif first < first_compared:
                first = first_compared
                continue
            elif differing:
                at = next(n for n in range(first, end) if len({each.records[n] for each in disks.values()}) > 1)
                expected = Difference("t", "P", at, differing, "the records differ from those of other brokers")
            else:
                compared += part.stop - part.start
                first = part.stop
        assert list(comparison.compare_topic("t")) == ([] if expected is None else [expected]), seed
        assert (comparison.records, comparison.partitions) == (compared, 1)


def test_all_topics_are_compared_page_by_page_and_every_broker_is_needed(broker: Broker) -> None:
    at = broker_of(0, http_url=broker.url)
    compacted = {"settings": [{"name": "cleanup.policy", "value": "compact"}]}
    pages = [{"topics": [{"name": "a/b"}], "next": "a/b"}, {"topics": [{"name": "c"}], "next": None}]
    result = broker.run("cluster verify", {"brokers": [at, broker_of(1, is_alive=False)]}, pages[0], compacted,
                        pages[1], compacted)  # fmt: skip
    assert [each[1] for each in broker.requests] == [
        "/brokers", "/topics?limit=1000", "/topics/a%2Fb", "/topics?limit=1000&after=a%2Fb", "/topics/c",
    ]  # fmt: skip
    assert result.stderr == "compared 0 records of 0 partitions at the brokers 0: 0 differences\n"
    result = broker.run("cluster verify", {"brokers": [at, broker_of(1), broker_of(2)]})
    sentence = "the brokers 1, 2 do not listen to HTTP: their records are not compared"
    assert (result.exit_code, result.stderr) == (2, f"Error: {sentence}\n")
