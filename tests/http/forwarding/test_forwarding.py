"""Forwarding: clients of one broker use logs that another one leads."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import quote

import pytest
import trio
import trio.testing

from dafka import Config
from dafka.batches import encode_batch
from dafka.broker.access.credentials import DEFAULT_ITERATIONS, MECHANISMS, derive_credential
from dafka.broker.access.permissions import Permissions
from dafka.broker.access.users_file import User, write_users
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.log.log import Log
from dafka.broker.core.metadata.brokers import BrokerRegistration
from dafka.broker.core.replication.records import NO_EPOCH_END, EpochStart, LeaderAndEpoch
from dafka.broker.log.appending import AppendRefusedError, ClientAppender
from dafka.http.forwarding.broker_client import CONNECTIONS_MAX, BrokerClient
from dafka.http.forwarding.broker_link import BrokerLink
from dafka.http.forwarding.leaders import Leaders
from dafka.http.forwarding.remote_reads import RemoteRead, RemoteReads
from dafka.http.server.errors import WebError
from dafka.http.server.http_server import HttpServer
from tests.broker.core.entries import epoch_end
from tests.http.forwarding.pair import TOPIC, Pair, coordinate_elsewhere, log_of, open_pair
from tests.http.running import RunningWeb
from tests.http.websocket.clients import open_client

DEADLINE_S = 60

FIRST_ID = 100
"""The id of a client's first message that has records."""


def lines(*values: str) -> bytes:
    return b"\n".join(json.dumps({"value": each}).encode() for each in values)


def values_in(body: bytes) -> list[str]:
    return [json.loads(each)["value"] for each in body.splitlines()]


async def publish(pair: Pair, *values: str, log: int = 0) -> list[dict[str, int]]:
    target = f"/topics/{TOPIC}/records?log={log}"
    answer = await pair.first.request("POST", target, lines(*values), Content_Type="application/x-ndjson")
    assert answer.status == 200, answer.body
    found: list[dict[str, int]] = answer.document["offsets"]
    return found


async def test_http_clients_publish_and_read_at_a_broker_that_does_not_lead() -> None:
    async with open_pair() as pair:
        assert await publish(pair, "a", "b") == [{"log": 0, "offset": 0, "count": 2}]
        assert await publish(pair, "c") == [{"log": 0, "offset": 2, "count": 1}]
        assert log_of(pair.second).high_watermark == 3
        assert log_of(pair.first).high_watermark == 0
        assert values_in((await pair.first.get(f"/topics/{TOPIC}/records")).body) == ["a", "b", "c"]
        assert values_in((await pair.first.get(f"/topics/{TOPIC}/records?from=1&limit=1")).body) == ["b"]
        assert (await pair.first.get(f"/topics/{TOPIC}/records?from=9")).code == "offset_out_of_range"
        assert values_in((await pair.first.get(f"/topics/{TOPIC}/records?from=latest")).body) == []


async def test_offsets_and_times_come_from_the_leader() -> None:
    async with open_pair() as pair, open_client(pair.first) as client:
        records = [{"value": f"{number}", "timestamp": 1000 + number} for number in range(4)]
        await client.ask("publish", topic=TOPIC, records=records)
        found = (await pair.first.get(f"/topics/{TOPIC}/offsets?time=1002")).document["offsets"]
        assert found == [{"log": 0, "start_offset": 0, "end_offset": 4, "offset": 2}]
        assert values_in((await pair.first.get(f"/topics/{TOPIC}/records?from=time:1003")).body) == ["3"]
        described = await client.ask("describe", topic=TOPIC)
        assert described["logs"] == [{"log": 0, "start_offset": 0, "end_offset": 4}]


async def test_records_are_deleted_at_the_leader() -> None:
    async with open_pair() as pair:
        await publish(pair, "a", "b", "c")
        answer = await pair.first.request("DELETE", f"/topics/{TOPIC}/records?before=2")
        assert answer.document == {"log": 0, "start_offset": 2}
        assert log_of(pair.second).index.start_offset == 2
        assert values_in((await pair.first.get(f"/topics/{TOPIC}/records")).body) == ["c"]


async def test_one_subscription_gets_records_of_logs_with_different_leaders() -> None:
    async with open_pair(log_count=3) as pair, open_client(pair.first) as client:
        pair.lead(1, pair.first)
        identifier = await client.subscribe(TOPIC)
        for number in range(3):
            await publish(pair, f"{number}", log=number)
            (record,) = await client.take(1, identifier)
            assert (record["log"], record["offset"], record["value"]) == (number, 0, f"{number}")
        assert [log_of(pair.first, number).high_watermark for number in range(3)] == [0, 1, 0]


async def test_waiting_clients_get_records_when_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = trio.Event()
    begin = RemoteReads.begin

    def begin_and_tell(reads: RemoteReads, log: Log, offset: int) -> RemoteRead:
        begun.set()
        return begin(reads, log, offset)

    monkeypatch.setattr(RemoteReads, "begin", begin_and_tell)
    async with open_pair() as pair, trio.open_nursery() as nursery:

        async def publish_later() -> None:
            await begun.wait()
            await publish(pair, "a")

        nursery.start_soon(publish_later)
        answer = await pair.first.get(f"/topics/{TOPIC}/records?wait_ms=30000")
        assert values_in(answer.body) == ["a"]


async def test_events_stream_from_the_leader() -> None:
    async with open_pair() as pair:
        await publish(pair, "a")
        head = f"GET /topics/{TOPIC}/records HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"
        with trio.fail_after(DEADLINE_S):
            stream = await trio.open_tcp_stream("127.0.0.1", pair.first.port)
            async with stream:
                await stream.send_all(head.encode())
                received = b""
                while b'"value":"a"' not in received:
                    received += await stream.receive_some()
                await publish(pair, "b")
                while b'"value":"b"' not in received:
                    received += await stream.receive_some()
        assert b"id: 0=2" in received


async def test_subscription_goes_on_at_the_next_leader_and_at_this_broker() -> None:
    async with open_pair() as pair, open_client(pair.first) as client:
        for web in (pair.first, pair.second):  # both have the same records, as replicas do
            pair.lead(0, web)
            await publish(pair, "a", "b")
        await client.subscribe(TOPIC)
        assert await client.values(2) == ["a", "b"]
        pair.lead(0, pair.first)
        await publish(pair, "c")
        assert await client.values(1) == ["c"]
        pair.lead(0, pair.second)
        await pair.second.request("POST", f"/topics/{TOPIC}/records", b"x")
        await pair.second.request("POST", f"/topics/{TOPIC}/records", b"d")
        assert await client.values(1) == ["d"]


async def test_subscription_goes_back_to_where_the_branches_part(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_pair() as pair, open_client(pair.first) as client:
        for web, values in ((pair.first, "abC"), (pair.second, "abcd")):
            web.broker.node.change_topic(TOPIC, settings={"availability": "branch"})
            pair.lead(0, web)
            await publish(pair, *values)
        await client.subscribe(TOPIC)
        assert await client.values(4) == ["a", "b", "c", "d"]
        second, first = (
            LeaderAndEpoch(1, pair.second.broker.node.address),
            LeaderAndEpoch(2, pair.first.broker.node.address),
        )
        rows = [EpochStart("", second, NO_EPOCH_END, ()), EpochStart("", first, epoch_end(second, 2), ())]
        monkeypatch.setattr(pair.first.broker.node, "epoch_starts", lambda _topic: [rows])
        pair.leaderships.lead(0, pair.first, epoch=2)
        (record,) = await client.take(1)
        assert (record["offset"], record["value"]) == (2, "C")
        await publish(pair, "D")
        assert await client.values(1) == ["D"]


async def test_publishing_waits_for_a_leader() -> None:
    async with open_pair() as pair, open_client(pair.first) as client:
        pair.lead(0, None)
        identifiers = [await client.send("publish", topic=TOPIC, records=[{"value": f"{each}"}]) for each in range(5)]
        pong = await client.ask("ping")
        assert pong["type"] == "pong"
        pair.lead(0, pair.second)
        for number, identifier in enumerate(identifiers):
            answer = await client.expect("published", identifier)
            assert answer["offsets"] == [{"log": 0, "offset": number, "count": 1}]


async def test_without_a_leader_the_answer_is_503(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("leaders", "remote_appends", "remote_logs"):
        monkeypatch.setattr(f"dafka.http.forwarding.{module}.LEADER_WAIT_S", 0.3)
    monkeypatch.setattr(Leaders.ask, "__kwdefaults__", {"wait_s": 0.3})
    async with open_pair() as pair:
        pair.lead(0, None)
        for method, target, body in (
            ("POST", "records?log=0", b"x"),
            ("GET", "records", None),
            ("GET", "offsets", None),
        ):
            answer = await pair.first.request(method, f"/topics/{TOPIC}/{target}", body)
            assert (answer.status, answer.code) == (503, "leader_unavailable")
            assert "log 0 of the topic 'orders' has no leader" in answer.document["error"]["message"]


def web_of(running: RunningWeb) -> HttpServer:
    return next(each for each in running.broker.broker.listeners if isinstance(each, HttpServer))


async def test_refusal_for_the_moment_is_not_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader has too few replicas at first."""
    refused: list[Log] = []
    check = ClientAppender._check_replicas

    def refuse(appender: ClientAppender, log: Log) -> None:
        if appender is pair.second.broker.broker.appender and len(refused) < 3:
            refused.append(log)
            raise AppendRefusedError(ErrorCode.NOT_ENOUGH_REPLICAS, "1 of 3 replicas are alive, which is no majority")
        check(appender, log)

    monkeypatch.setattr(ClientAppender, "_check_replicas", refuse)
    async with open_pair() as pair:
        assert await publish(pair, "a") == [{"log": 0, "offset": 0, "count": 1}]
        assert len(refused) == 3
        refused.clear()
        answer = await pair.second.request("POST", f"/topics/{TOPIC}/records?log=0", b"x")
        assert (answer.status, answer.code) == (503, "leader_unavailable")
        assert "1 of 3 replicas are alive" in answer.document["error"]["message"]


def client_of(pair: Pair) -> tuple[BrokerClient, BrokerRegistration]:
    """Return what the second broker asks the first one with, and the description of the first one."""
    first, second = (each.broker.node for each in (pair.first, pair.second))
    description = second.brokers.find(first.address)
    assert description is not None
    return BrokerClient(pair.second.config, second.address, ""), description


async def test_forwarded_requests_are_not_forwarded_again() -> None:
    async with open_pair() as pair, trio.open_nursery() as nursery:
        for web in (pair.first, pair.second):  # each believes that the other one leads
            other = pair.second if web is pair.first else pair.first
            log_of(web).leadership = type(log_of(web).leadership)(other.broker.node.address, 1, False)
        client, first = client_of(pair)
        nursery.start_soon(client.run)
        for _ in range(2):  # over the same connection
            with pytest.raises(WebError, match="does not lead log 0") as refused:
                await client.request(first, "GET", f"/topics/{TOPIC}/records")
            assert refused.value.code == "not_leader"
        nursery.cancel_scope.cancel()


async def test_topics_are_not_created_for_forwarded_records() -> None:
    async with open_pair() as pair, trio.open_nursery() as nursery:
        client, first = client_of(pair)
        link = BrokerLink(client, first)
        nursery.start_soon(link.run)
        data = encode_batch(0, [b"a"], timestamps=5)
        reply = link.publish("new", 0, data, lambda: None)
        await reply.arrived.wait()
        with pytest.raises(WebError, match="there is no topic 'new'"):
            reply.result()
        assert pair.first.broker.node.find_topic("new") is None
        nursery.cancel_scope.cancel()


FORGED = (
    {"Dafka_Forwarded_By": "x"},
    {"Forwarded": "by=x", "X_Forwarded_For": "x", "Via": "1.1 x"},
)


@pytest.mark.parametrize("headers", FORGED)
async def test_no_header_of_a_client_makes_it_a_broker(headers: dict[str, str]) -> None:
    async with open_pair() as pair, open_client(pair.first, **headers) as client:
        target = f"/topics/{TOPIC}/records"
        assert (await pair.first.request("POST", target, b"a", **headers)).document["offsets"][0]["offset"] == 0
        assert (await client.ask("publish", topic=TOPIC, records=[{"value": "b"}]))["type"] == "published"
        assert values_in((await pair.first.get(target, **headers)).body) == ["a", "b"]
        described = await client.ask("describe", topic=TOPIC)
        assert described["logs"] == [{"log": 0, "start_offset": 0, "end_offset": 2}]


async def test_credentials_that_a_client_makes_up_are_refused() -> None:
    async with open_pair() as pair:
        address = pair.second.broker.node.address
        for given in ("Dafka-Broker x", f"Dafka-Broker {address}.1.{'0' * 64}"):
            answer = await pair.first.get(f"/topics/{TOPIC}/records", Authorization=given)
            assert (answer.status, answer.code) == (401, "unauthenticated")
        answer = await pair.first.get("/topics", Authorization="Dafka-Broker")
        assert answer.status == 401
        assert answer.headers["WWW-Authenticate"].startswith("Dafka-Broker ")


async def test_clients_use_up_no_connections_between_brokers(users: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s" * 32)
    config = Config().with_clients(users=str(users)).with_broker(secret_file=str(secret))
    config = config.with_http(connections_max=60)
    async with open_pair(config=config) as pair:
        quotas = web_of(pair.second).quotas
        writer = {"Authorization": "Basic d3JpdGVyOnB3"}
        assert (await pair.first.request("POST", f"/topics/{TOPIC}/records", b"a", **writer)).status == 200
        peak = 0

        async def watch() -> None:
            nonlocal peak
            while True:
                peak = max(peak, len(quotas))
                await trio.sleep(0.01)

        async with trio.open_nursery() as watching:
            watching.start_soon(watch)
            async with trio.open_nursery() as nursery:
                for _ in range(50):
                    nursery.start_soon(get_often, pair, "/topics?sizes=true", 2, writer)
            watching.cancel_scope.cancel()
        assert CONNECTIONS_MAX <= peak <= 3 * CONNECTIONS_MAX, "the limit, and those that are being closed"
        assert quotas.refused == 0
        assert (await pair.first.request("POST", f"/topics/{TOPIC}/records", b"a", **writer)).status == 200


async def get_often(pair: Pair, target: str, count: int, headers: dict[str, str]) -> None:
    for _ in range(count):
        assert (await pair.first.get(target, **headers)).status == 200


@pytest.fixture
def users(tmp_path: Path) -> Path:
    path = tmp_path / "users.toml"
    credentials = {each: derive_credential(each, "pw", DEFAULT_ITERATIONS) for each in MECHANISMS}
    everyone = {
        "writer": User("writer", credentials, Permissions(write=("*",))),
        "reader": User("reader", credentials, Permissions(read=("*",))),
    }
    write_users(path, everyone)
    return path


async def test_permissions_are_those_of_the_user_at_the_first_broker(users: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s" * 32)
    config = Config().with_clients(users=str(users)).with_broker(secret_file=str(secret))
    async with open_pair(config=config) as pair:
        writer, reader = "Basic d3JpdGVyOnB3", "Basic cmVhZGVyOnB3"
        target = f"/topics/{TOPIC}/records"
        assert (await pair.first.request("POST", target, b"a", Authorization=writer)).status == 200
        assert (await pair.first.request("POST", target, b"a", Authorization=reader)).code == "forbidden"
        assert values_in((await pair.first.get(target, Authorization=reader)).body) == ["a"]
        assert (await pair.first.get(target)).code == "unauthenticated"
        # A session of a browser ends at the first broker, and its requests are forwarded nevertheless.
        answer = await pair.first.request("POST", "/session", document={"user": "reader", "password": "pw"})
        cookie = answer.headers["Set-Cookie"].partition(";")[0]
        assert values_in((await pair.first.get(target, Cookie=cookie)).body) == ["a"]


async def test_brokers_with_different_secrets_do_not_trust_each_other(
    users: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dafka.http.forwarding.remote_appends.LEADER_WAIT_S", 0.3)
    async with open_pair(config=Config().with_clients(users=str(users))) as pair:
        # Neither broker has a secret, so that none can prove that it is one.
        answer = await pair.first.request("POST", f"/topics/{TOPIC}/records", b"a", Authorization="Basic d3JpdGVyOnB3")
        assert answer.code == "leader_unavailable"
        assert "secret_file" in answer.document["error"]["message"]
        assert log_of(pair.second).high_watermark == 0


async def test_groups_are_reached_at_the_broker_that_coordinates_them() -> None:
    async with open_pair() as pair, open_client(pair.first) as client:
        await publish(pair, "a", "b", "c")
        here = {"topic": TOPIC, "offsets": {"0": 1}}
        assert (await pair.first.request("PUT", "/groups/here/offsets", document=here)).status == 200
        coordinate_elsewhere(pair)
        assert (await client.ask("commit", group="e/b", topic=TOPIC, offsets={"0": 2}))["type"] == "committed"
        latest = {"topic": TOPIC, "to": "latest"}
        assert (await pair.first.request("PUT", "/groups/e%2Fa/offsets", document=latest)).document["lag"] == 0
        found = await pair.second.broker.broker.groups.fetch_offsets("e/b")
        assert [each.offset for each in found.values()] == [2]
        described = (await pair.first.get("/groups/e%2Fb")).document
        assert (described["group"], described["lag"], described["offsets"][0]["offset"]) == ("e/b", 1, 2)
        assert values_in((await pair.first.get(f"/topics/{TOPIC}/records?from=group:e%2Fb")).body) == ["c"]
        assert (await pair.first.get("/groups/nothing")).code == "group_not_found"
        listed = []
        target = "/groups?limit=1"
        while True:
            page = (await pair.first.get(target)).document
            listed += [each["group"] for each in page["groups"]]
            assert page["group_count"] == 3
            if page["next"] is None:
                break
            target = f"/groups?limit=1&after={quote(page['next'], safe='')}"
        assert listed == ["e/a", "e/b", "here"]
        assert (await pair.first.request("DELETE", "/groups/e%2Fa")).status == 204
        assert (await pair.first.request("DELETE", "/groups/e%2Fa")).code == "group_not_found"
