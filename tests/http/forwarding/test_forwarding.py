"""Forwarding: clients of one broker use logs that another one leads."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from random import Random

import pytest
import trio
import trio.testing

from dafka import Config
from dafka.batches import encode_batch
from dafka.broker.core.metadata.brokers import BrokerRegistration
from dafka.broker.core.replication.records import NO_EPOCH_END, EpochStart, LeaderAndEpoch
from dafka.http.forwarding.broker_client import BrokerClient
from dafka.http.forwarding.broker_link import BrokerLink
from dafka.http.server.errors import WebError
from tests.broker.core.entries import epoch_end
from tests.http.api.events import EventSource
from tests.http.running import TOPIC, Pair, RunningWeb, log_of, open_pair
from tests.http.secured import create_with_secret
from tests.http.websocket.clients import open_client


def lines(*values: str) -> bytes:
    return b"\n".join(json.dumps({"value": each}).encode() for each in values)


def values_in(body: bytes) -> list[str]:
    return [json.loads(each)["value"] for each in body.splitlines()]


async def post(web: RunningWeb, *values: str, log: int = 0) -> list[dict[str, int]]:
    target = f"/topics/{TOPIC}/records?log={log}"
    answer = await web.request("POST", target, lines(*values), Content_Type="application/x-ndjson")
    assert answer.status == 200, answer.body
    found: list[dict[str, int]] = answer.document["offsets"]
    return found


@pytest.mark.parametrize("seed", range(2))
async def test_clients_miss_nothing_while_leaders_move(seed: int) -> None:
    """Publishing waits while nobody leads the log. One subscription gets the records of logs with different leaders."""
    random, values = Random(seed), count()
    async with open_pair(log_count=2) as pair, open_client(pair.first) as client, open_client(pair.first) as publisher:
        webs, leaders = (pair.first, pair.second), [1, 1]
        logs: list[list[str]] = [[], []]
        copied = [[0, 0], [0, 0]]  # for each broker, how many records of each log it has
        await client.subscribe(TOPIC)
        for _ in range(40):
            number, new = random.randrange(2), [f"{next(values)}" for _ in range(random.randrange(1, 4))]
            step, offset = random.choice(["move", "HTTP", "WebSocket", "wait", "read"]), len(logs[number])
            if step == "move":
                leaders[number] = leader = random.randrange(2)
                pair.lead(number, webs[leader])
                missing, new = logs[number][copied[leader][number] :], []
                if missing:  # both have the same records, as replicas do
                    await post(webs[leader], *missing, log=number)
            elif step == "read":
                answer = await pair.first.get(f"/topics/{TOPIC}/records?log={number}")
                assert values_in(answer.body) == logs[number]
                new = []
            elif step == "wait":
                pair.lead(number, None)
                records = [[{"value": each}] for each in new]
                sent = [await publisher.send("publish", topic=TOPIC, log=number, records=each) for each in records]
                assert (await publisher.ask("ping"))["type"] == "pong"
                pair.lead(number, webs[leaders[number]])
                for place, identifier in enumerate(sent):
                    answered = await publisher.expect("published", identifier)
                    assert answered["offsets"] == [{"log": number, "offset": offset + place, "count": 1}]
            else:
                published = post(pair.first, *new, log=number)
                if step == "WebSocket":
                    published.close()
                    published = publisher.publish(TOPIC, *new, log=number)
                assert await published == [{"log": number, "offset": offset, "count": len(new)}]
            logs[number] += new
            copied[leaders[number]][number] = len(logs[number])
            found = [(each["log"], each["offset"], each["value"]) for each in await client.take(len(new))]
            assert found == [(number, offset + place, value) for place, value in enumerate(new)]


async def test_a_record_that_a_client_may_publish_reaches_a_leader_that_takes_smaller_messages_only() -> None:
    async with open_pair(config=Config().with_http(message_bytes_max=2000)) as pair:
        answer = await pair.first.request("POST", f"/topics/{TOPIC}/records", b"x" * 100_000)
        assert answer.document == {"offsets": [{"log": 0, "offset": 0, "count": 1}]}


async def test_subscription_goes_back_to_where_the_branches_part(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_pair() as pair, open_client(pair.first) as client, AsyncExitStack() as stack:
        for web, values in ((pair.first, "abC"), (pair.second, "abcd")):
            await web.broker.node.admin.change_topic(TOPIC, settings={"availability": "branch"})
            pair.lead(0, web)
            await post(pair.first, *values)
        await client.subscribe(TOPIC)
        assert await client.values(4) == ["a", "b", "c", "d"]
        source = EventSource()
        stream = await stack.enter_async_context(source.connect(pair.first, f"/topics/{TOPIC}/records"))
        await source.read(stream, 4)
        webs = enumerate((pair.second, pair.first), 1)
        second, first = (LeaderAndEpoch(epoch, web.broker.node.address) for epoch, web in webs)
        rows = [EpochStart("", second, NO_EPOCH_END, ()), EpochStart("", first, epoch_end(second, 2), ())]
        monkeypatch.setattr(pair.first.broker.node, "epoch_starts", lambda _topic: [rows])
        pair.leaderships.lead(0, pair.first, epoch=2)
        (record,) = await client.take(1)
        assert (record["offset"], record["value"]) == (2, "C")
        await post(pair.first, "D")
        assert await client.values(1) == ["D"]
        await source.read(stream, 6)
        assert [each["value"] for each in source.records] == [*"abcdCD"]


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


async def test_the_lag_of_a_group_is_the_same_at_each_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_pair(log_count=2) as pair:
        pair.lead(0, pair.first)
        for log in range(2):
            await post(pair.first, "a", "b", "c", log=log)
        commit = {"topic": TOPIC, "offsets": {"0": 1, "1": 2}}
        await pair.first.request("PUT", "/groups/billing/offsets", document=commit)
        coordinator = pair.second.broker.node.brokers.find(pair.first.broker.node.address)
        monkeypatch.setattr(pair.second.broker.broker, "coordinator_of", lambda _group: coordinator)
        for web in (pair.first, pair.second):
            group = (await web.get("/groups/billing")).document
            assert [(each["end_offset"], each["lag"]) for each in group["offsets"]] == [(3, 2), (3, 1)]
            assert group["lag"] == 3


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


FORGED = ({"Dafka_Forwarded_By": "x"}, {"Forwarded": "by=x", "X_Forwarded_For": "x", "Via": "1.1 x"})


async def test_no_header_of_a_client_makes_it_a_broker() -> None:
    """Credentials that it makes up are refused."""
    target = f"/topics/{TOPIC}/records"
    for headers in FORGED:
        async with open_pair() as pair, open_client(pair.first, **headers) as client:
            assert (await pair.first.request("POST", target, b"a", **headers)).document["offsets"][0]["offset"] == 0
            assert (await client.ask("publish", topic=TOPIC, records=[{"value": "b"}]))["type"] == "published"
            assert values_in((await pair.first.get(target, **headers)).body) == ["a", "b"]
            described = await client.ask("describe", topic=TOPIC)
            assert described["logs"] == [{"log": 0, "start_offset": 0, "end_offset": 2}]
    async with open_pair() as pair:
        for given in ("x", f"{pair.second.broker.node.address}.1.{'0' * 64}", ""):
            answer = await pair.first.get(target, Authorization=f"Dafka-Broker {given}")
            assert (answer.status, answer.code) == (401, "unauthenticated")
            assert answer.headers["WWW-Authenticate"].startswith("Dafka-Broker ") == (given == "")


async def test_brokers_without_secrets_do_not_trust_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither can prove that it is a broker."""
    monkeypatch.setattr("dafka.http.forwarding.remote_appends.LEADER_WAIT_S", 0.3)
    account, config = create_with_secret(tmp_path)
    async with open_pair(config=config.with_broker(secret_file="")) as pair:
        answer = await pair.first.request("POST", f"/topics/{TOPIC}/records", b"a", **account.root)
        assert answer.code == "leader_unavailable"
        assert "secret_file" in answer.document["error"]["message"]
        assert log_of(pair.second).high_watermark == 0
