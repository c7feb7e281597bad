"""Commands that speak Kafka's protocol: responses of several brokers, or of a broker with a fault."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
from click.testing import CliRunner

from dafka.broker.core.error_codes import ErrorCode
from dafka.cli import main
from dafka.cli.kafka import client as client_module
from dafka.cli.kafka import options
from dafka.cli.kafka.client import Access, KafkaClient
from dafka.cli.terminal import UsageMistake
from dafka.kafka.protocol.apis import ADVERTISED, TOPIC_ID_VERSIONS
from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.protocol.tables import VERSION_MAX
from tests.kafka.server.secured import Authority


class Scripted(KafkaClient):
    """A client whose connections answer with what `answers` returns."""

    answers: Callable[[Access, Any, int], Any]

    def _exchange(self, request: Any, version: int) -> Any:
        return type(self).answers(self._access, request, version)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> type[Scripted]:
    monkeypatch.setattr(client_module, "KafkaClient", Scripted)
    monkeypatch.setattr(options, "KafkaClient", Scripted)
    monkeypatch.setattr(client_module, "_connect", lambda _: SimpleNamespace(close=lambda: None))
    return Scripted


def known(*versions: tuple[int, int, int]) -> SimpleNamespace:
    keys = [SimpleNamespace(api_key=key, min_version=first, max_version=last) for key, first, last in versions]
    return SimpleNamespace(error_code=0, api_keys=keys)


def test_the_newest_version_that_both_sides_know_and_that_names_topics_is_used(scripted: type[Scripted]) -> None:
    for key in (ApiKey.METADATA, ApiKey.OFFSET_FETCH, ApiKey.FETCH):
        own = ADVERTISED[key]
        asked: Any = SimpleNamespace(API_KEY=key)
        for first, last in itertools.combinations_with_replacement(range(own.last + 3), 2):
            scripted.answers = answering(known((key, first, last)))
            client = scripted(Access("h", 1))
            scripted.answers = lambda *given: given[-1]
            limit = TOPIC_ID_VERSIONS.get(key, VERSION_MAX)
            usable = range(max(own.first, first), min(own.last, last, limit - 1) + 1)
            if usable:
                assert client.ask(asked) == usable[-1]
            else:
                with pytest.raises(UsageMistake, match=f"^the broker at h:1 does not serve {key.name}$"):
                    client.ask(asked)
            assert [client.serves(each) for each in (key, ApiKey.PRODUCE)] == [True, False]
            with pytest.raises(UsageMistake, match="does not serve PRODUCE"):
                client.ask(SimpleNamespace(API_KEY=ApiKey.PRODUCE))  # type: ignore[arg-type]


EVERYTHING = known(*((key, each.first, each.last) for key, each in ADVERTISED.items()))


def answering(*answers: Any) -> Callable[..., Any]:
    """Return what gives these answers in turn."""
    left = [*answers]
    return lambda *_: left.pop(0)


def result_of(code: int = 0, message: str | None = None, **fields: Any) -> Any:
    return SimpleNamespace(error_code=code, error_message=message, **fields)


HANDSHAKE = result_of(mechanisms=["PLAIN"])
LOGINS: list[tuple[str, list[Any], str, int]] = [
    ("PLAIN", [result_of(ErrorCode.ILLEGAL_SASL_STATE)], "the broker at h:1 expects no authentication: omit --user", 2),
    ("SCRAM-SHA-256", [result_of(ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=["A", "B"])],
     "the broker at h:1 does not know SCRAM-SHA-256: use --mechanism with A, B", 2),
    ("PLAIN", [HANDSHAKE, result_of(ErrorCode.SASL_AUTHENTICATION_FAILED)],
     "the broker at h:1 refuses the user 'anne': SASL_AUTHENTICATION_FAILED", 2),
    ("PLAIN", [HANDSHAKE, result_of(ErrorCode.SASL_AUTHENTICATION_FAILED, "wrong")],
     "the broker at h:1 refuses the user 'anne': wrong", 2),
    ("SCRAM-SHA-256", [HANDSHAKE, result_of(auth_bytes=b"r=x,s=QQ==,i=4096")],
     "the broker at h:1 does not prove that it knows the user", 2),
]  # fmt: skip
"""A mechanism, what a broker answers to a login, the sentence, and the exit status."""


def test_a_login_that_fails_is_one_sentence(scripted: type[Scripted], tmp_path: Path) -> None:
    (tmp_path / "password").write_text("secret")
    login = ["--user", "anne", "--password-file", str(tmp_path / "password"), "--kafka", "h:1"]
    for mechanism, answers, sentence, status in LOGINS:
        scripted.answers = answering(EVERYTHING, *answers)
        result = CliRunner().invoke(main, ["topic", "list", *login, "--mechanism", mechanism])
        assert (result.output, result.exit_code) == (f"Error: {sentence}\n", status)
    scripted.answers = answering(result_of(ErrorCode.UNSUPPORTED_VERSION))
    result = CliRunner().invoke(main, ["topic", "list", *login])
    assert (result.output, result.exit_code) == ("Error: the broker at h:1 refuses: UNSUPPORTED_VERSION\n", 1)


def answer_by_key(answers: dict[int, Any], _: Access, request: Any, __: int) -> Any:
    return answers[request.API_KEY]


def test_the_clients_certificate_and_its_key_are_one_file_or_two(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    both = authority.issue("anne")
    key, dashes, certificate = both.read_text().partition("-----BEGIN CERTIFICATE")
    for name, text in (("key", key), ("certificate", dashes + certificate)):
        (tmp_path / name).write_text(text)
    names = str(authority.path), str(tmp_path / "certificate"), str(tmp_path / "key")
    client_module.make_context(*names)
    client_module.make_context(str(authority.path), str(both))
    for wrong in (names[:2], (names[0], names[1], "none"), ("none",)):
        with pytest.raises(UsageMistake, match=f"^cannot load the certificates of {', '.join(wrong)}: "):
            client_module.make_context(*wrong)


@pytest.mark.parametrize("is_new", [True, False])
def test_a_password_that_is_typed_is_not_shown_and_a_new_one_is_typed_twice(
    is_new: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def show(text: str) -> str:
        asked.append(text)
        return next(typed)

    asked: list[str] = []
    typed = iter(["one", "other", "one", "one"]) if is_new else iter(["one"])
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("click.termui.hidden_prompt_func", show)
    assert options.read_password(None, is_new=is_new) == "one"
    assert len(asked) == (4 if is_new else 1)


def broker_at(number: int) -> Any:
    return SimpleNamespace(node_id=number, host=f"h{number}", port=number)


def test_each_request_goes_to_the_broker_that_answers_it(scripted: type[Scripted]) -> None:
    """A single broker answers all of them, whatever it calls itself."""
    closed: list[Access] = []
    parts = [SimpleNamespace(partition_index=0, leader_id=2), SimpleNamespace(partition_index=1, leader_id=-1)]
    metadata = SimpleNamespace(brokers=[], topics=[SimpleNamespace(name="t", partitions=parts)])
    coordinator = result_of(coordinators=[result_of(host="h2", port=2)])
    former = result_of(coordinators=[], host="h1", port=1)  # before version 4
    for count in (1, 2, 3):
        metadata.brokers = [broker_at(each) for each in range(count)]
        answers: dict[int, Any] = {ApiKey.API_VERSIONS: EVERYTHING, ApiKey.METADATA: metadata}
        scripted.answers = partial(answer_by_key, answers)
        own = Access("h1", 1, user="", tls=True)
        with scripted(own) as client:
            places = [str(each._access) for each in client.connect_all()]
            assert places == (["h1:1"] if count == 1 else [f"h{number}:{number}" for number in range(count)])
            for found, place in ((coordinator, "h2:2"), (former, "h1:1")):
                answers[ApiKey.FIND_COORDINATOR] = found
                assert str(client.connect_coordinator("g")._access) == ("h1:1" if count == 1 else place)
            leaders = client.connect_leaders([("t", 0), ("t", 1), ("t", 9)])
            assert [str(each._access) for each in leaders.values()] == [
                "h2:2" if count == 3 else "h1:1",
                "h1:1",
                "h1:1",
            ]
            assert [*leaders] == [("t", 0), ("t", 1), ("t", 9)]
            assert client.connect("h2", 2) is client.connect("h2", 2)
            assert client.connect("h2", 2)._access == attrs.evolve(own, host="h2", port=2)
            for each in (client, *client._others.values()):
                each._socket = SimpleNamespace(close=partial(closed.append, each._access))  # type: ignore[assignment]
            opened = len(client._others) + 1
        assert len(set(closed)) == len(closed) == opened
        closed.clear()
        answers[ApiKey.FIND_COORDINATOR] = result_of(coordinators=[result_of(ErrorCode.COORDINATOR_NOT_AVAILABLE)])
        if count > 1:
            with pytest.raises(UsageMistake, match=r"^group 'g': no broker coordinates it at present: try again$"):
                scripted(own).connect_coordinator("g")


def elected(topic: str, **codes: int) -> Any:
    parts = [SimpleNamespace(partition_id=int(name[1:]), error_code=code) for name, code in codes.items()]
    return SimpleNamespace(topic=topic, partition_result=parts)


def topic_of(name: str, *logs: int, code: int = 0) -> Any:
    return result_of(code, name=name, partitions=[SimpleNamespace(partition_index=each) for each in logs])


NOT_NEEDED, UNKNOWN = ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
ELECTIONS: list[tuple[list[str], list[Any], Any, str, int]] = [
    ([], [result_of(replica_election_results=[elected("t", _0=0, _1=NOT_NEEDED), elected("u", _4=0)])], None,
     "log 0 of t has its preferred leader\nlog 4 of u has its preferred leader\n", 0),
    (["t"], [SimpleNamespace(topics=[topic_of("t", 2, 0)]),
             result_of(replica_election_results=[elected("t", _0=ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, _2=0)])],
     [("t", [0, 2])],
     "log 2 of t has its preferred leader\nError: log 0 of the topic 't': PREFERRED_LEADER_NOT_AVAILABLE\n", 2),
    (["t"], [SimpleNamespace(topics=[topic_of("t", code=UNKNOWN)])], None,
     "Error: topic 't': there is no such topic\n", 2),
    ([], [result_of(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, replica_election_results=[])], None,
     "Error: all topics: the user is not permitted to do this (CLUSTER_AUTHORIZATION_FAILED)\n", 2),
]  # fmt: skip
"""Names, what a broker answers, the logs that are asked for, what is printed, and the exit status."""


def test_preferred_leaders_are_elected_again(scripted: type[Scripted]) -> None:
    for names, answers, logs, printed, status in ELECTIONS:
        requests: list[Any] = []
        left = [EVERYTHING, *answers]

        def answer(_: Access, request: Any, __: int, requests: Any = requests, left: Any = left) -> Any:
            requests.append(request)
            return left.pop(0)

        scripted.answers = answer
        result = CliRunner().invoke(main, ["topic", "elect", *names])
        assert (result.stdout, result.stderr, result.exit_code, left) == ("", printed, status, [])
        asked = getattr(requests[-1], "topic_partitions", None)
        assert (asked and [(each.topic, each.partitions) for each in asked]) == logs
