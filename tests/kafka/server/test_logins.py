"""Logins on a connection: nothing is served without one, behind one that failed, or for a user that was removed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import trio

from dafka.batches import encode_batch
from dafka.broker.broker import Broker
from dafka.broker.core.error_codes import ErrorCode
from dafka.config import Config
from dafka.kafka.protocol.apis import REQUESTS
from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.protocol.frames import encode_request, encode_token
from tests.kafka.apis.door import Door, build, open_door
from tests.kafka.apis.test_authorization import (
    ABSENT,
    BESIDE,
    CALLS,
    CREATED,
    EVERYTHING,
    EXISTING,
    NOTHING,
    WRITE,
    Values,
    errors_in,
    exactly,
    fill,
    first_calls,
    state_of,
)


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    # A connection that should have ended would stay open for a while.
    config = Config().with_kafka(auto_create_topics="off").with_clients(login_ms=600_000)
    with open_door(config, users=tmp_path_factory.mktemp("door") / "users") as found:
        found.permit(anne=EVERYTHING)
        with found.connect("anne") as client:
            client.create_topics(EXISTING.topic, BESIDE.topic)
        yield found


def pipelined(*requests: tuple[ApiKey, int, Values]) -> bytes:
    return b"".join(encode_request(build(REQUESTS[api], values), version, 1) for api, version, values in requests)


SHAKE = (ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
HEADERLESS = (ApiKey.SASL_HANDSHAKE, 0, {"mechanism": "PLAIN"})
WRONG, RIGHT = b"\0eve\0wrong", b"\0anne\0right"


FAILED = (ApiKey.SASL_AUTHENTICATE, 1, {"auth_bytes": WRONG})
RIGHT_LOGIN = (ApiKey.SASL_AUTHENTICATE, 1, {"auth_bytes": RIGHT})
UNKNOWN = (ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "GSSAPI"})


LOGINS: dict[str, tuple[bytes, int]] = {
    "nothing": (b"", 0),
    "versions": (pipelined((ApiKey.API_VERSIONS, 0, {})), 1),
    "handshake": (pipelined(SHAKE), 1),
    "wrong password": (pipelined(SHAKE, FAILED), 2),
    "right password behind a wrong one": (pipelined(SHAKE, FAILED, RIGHT_LOGIN), 2),
    "wrong token": (pipelined(HEADERLESS) + encode_token(WRONG), 1),
    "right token behind a wrong one": (pipelined(HEADERLESS) + encode_token(WRONG) + encode_token(RIGHT), 1),
    "wrong mechanism": (pipelined(UNKNOWN), 1),
    "login behind a wrong mechanism": (pipelined(UNKNOWN, SHAKE, RIGHT_LOGIN), 1),
    "two handshakes": (pipelined(SHAKE, SHAKE, RIGHT_LOGIN), 2),
    "no handshake": (pipelined(RIGHT_LOGIN), 1),
}


@pytest.mark.parametrize("name", LOGINS)
def test_nothing_is_served_without_a_login_or_behind_one_that_failed(door: Door, name: str) -> None:
    """Each API comes on a connection of its own, in the same piece as what is before it."""
    login, answers = LOGINS[name]
    door.permit(anne=EVERYTHING, eve=EVERYTHING)
    before = state_of(door)
    connected = []
    for call in first_calls():
        connected.append(door.connect())
        request = (call.api, call.versions[-1], call.values([EXISTING]))
        connected[-1].socket.sendall(login + pipelined(request, request))
    for each in connected:
        with each:
            assert len(list(iter(each.receive, None))) == answers
    assert state_of(door) == before


def test_requests_behind_a_login_in_the_same_piece_are_served(door: Door) -> None:
    door.permit(anne=EVERYTHING)
    asked = (ApiKey.METADATA, 1, {"topics": [{"name": EXISTING.topic}]})
    for login, answers in ((pipelined(SHAKE, RIGHT_LOGIN), 2), (pipelined(HEADERLESS) + encode_token(RIGHT), 2)):
        with door.connect() as other:
            other.socket.sendall(login + pipelined(asked, asked))
            frames = [other.receive() for _ in range(answers + 2)]
            assert [EXISTING.topic.encode() in (each or b"") for each in frames[answers:]] == [True, True]


def test_a_second_login_on_a_connection_is_refused_and_changes_nobody(door: Door) -> None:
    door.permit(anne=EVERYTHING, bob=NOTHING)
    with door.connect("bob") as other:
        assert errors_in(other.ask(SHAKE[0], SHAKE[1], **SHAKE[2])) == {ErrorCode.ILLEGAL_SASL_STATE}
        found = other.ask(ApiKey.SASL_AUTHENTICATE, 1, auth_bytes=RIGHT)
        assert errors_in(found) == {ErrorCode.ILLEGAL_SASL_STATE}
        assert other.ask(ApiKey.METADATA, 1, topics=None)["topics"] == []


def test_removed_user_is_served_no_further_request(door: Door) -> None:
    door.permit(anne=EVERYTHING, bob=EVERYTHING)
    with door.connect("bob") as other:
        assert other.ask(ApiKey.METADATA, 1, topics=[])["topics"] == []
        door.permit(anne=EVERYTHING)
        other.socket.sendall(
            pipelined((ApiKey.METADATA, 1, {"topics": []}), (ApiKey.CREATE_TOPICS, 4, fill(CREATED, [ABSENT])))
        )
        assert other.receive() is None
    assert ABSENT.topic not in state_of(door)[0]


def test_refused_records_without_acknowledgement_end_the_connection(door: Door) -> None:
    (call,) = (each for each in CALLS if each.api is ApiKey.PRODUCE and each.needs == (WRITE,))
    door.permit(anne=exactly((WRITE,), ("write",), EXISTING))
    for asked, is_refused in (([EXISTING], False), ([EXISTING, BESIDE], True), ([BESIDE, EXISTING], True)):
        before = state_of(door)[0]
        with door.connect("anne") as client:
            client.send(call.api, 7, **{**call.values(asked), "acks": 0})
            client.send(ApiKey.API_VERSIONS, 0)
            assert (client.receive() is None) is is_refused
        after = state_of(door)[0]
        assert {name for name in after if after[name] != before[name]} == {EXISTING.topic}


def test_limits_count_what_a_user_does(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    sources, reads_of = list[str](), Broker.reads_of

    def record(broker: Broker, source: str) -> trio.CapacityLimiter:
        sources.append(source)
        return reads_of(broker, source)

    monkeypatch.setattr(Broker, "reads_of", record)
    door.permit(anne=EVERYTHING, bob=EVERYTHING)
    for user in ("anne", "bob"):
        with door.connect(user) as client:
            client.append(EXISTING.topic, encode_batch(0, [b"x"], timestamps=1))
            client.ask_logs(ApiKey.FETCH, 11, {(EXISTING.topic, 0): {}})
    assert sources == ["anne", "bob"]
