"""A WebSocket connection against a model: answers, and subscriptions that send what there is credit for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import attrs
import pytest

from dafka import Config
from dafka.batches import decode_batch, iter_batches
from dafka.http.websocket.binary import decode_records
from dafka.http.websocket.shared_reads import TEXT_CONTENT_BYTES
from tests.http.running import RunningWeb, SharedWeb, run_web
from tests.http.websocket.clients import BINARY, JSON, Client, open_client

SUBSCRIPTIONS_MAX = 3


@attrs.frozen
class Sent:
    """A message with records: the offset and the value of each."""

    id: int
    log: int
    offset: int
    next_offset: int
    records: list[tuple[int, str]]


def records_in(message: Any) -> Sent | None:
    """Return the records of a message; None if it is another one."""
    if isinstance(message, bytes):
        found = decode_records(message)
        data = bytes(found.batches)
        records = [
            (header.base_offset + place, (value or b"").decode())
            for start, header in iter_batches(data)
            for place, value in enumerate(decode_batch(data[start : start + header.size], bytes_max=2**24).values)
        ]
        return Sent(found.id, found.log, found.offset, found.next_offset, records)
    if message["type"] != "records":
        return None
    records = [(each["offset"], each["value"]) for each in message["records"]]
    return Sent(message["id"], message["log"], message["offset"], message["next_offset"], records)


@attrs.define
class ModelSubscription:
    """A subscription as the model has it: the next offset in each log that it reads, and its credit."""

    topic: str
    offsets: dict[int, int]
    credit: int


@attrs.define
class Model:
    """A connection and two topics in plain memory. It says which answers and records must come, and in which order."""

    web: RunningWeb
    client: Client
    random: Random
    logs: dict[str, list[list[str]]]
    starts: dict[str, list[int]]
    group: str
    is_binary: bool
    sent: Counter[str] = attrs.field(factory=Counter)
    """How many records of each topic have come."""
    committed: dict[str, dict[int, int]] = attrs.field(factory=dict)
    subscriptions: dict[int, ModelSubscription] = attrs.field(factory=dict)
    watches: set[int] = attrs.field(factory=set)

    def available(self, each: ModelSubscription) -> int:
        """Return how many records there are to send, if there were credit."""
        starts, logs = self.starts[each.topic], self.logs[each.topic]
        return sum(len(logs[log]) - max(offset, starts[log]) for log, offset in each.offsets.items())

    async def answer(self, kind: str, identifier: int | None) -> Any:
        """Return the answer to a request. Records that come before it are checked."""
        message = await self.client.receive()
        while (sent := records_in(message)) is not None:
            self.take(sent)
            message = await self.client.receive()
        assert (message["type"], message["id"]) == (kind, identifier), message
        return message

    def take(self, sent: Sent) -> None:
        """Check that records are the next ones of their log, and that there is credit for them."""
        subscription = self.subscriptions[sent.id]
        begin = max(subscription.offsets[sent.log], self.starts[subscription.topic][sent.log])
        values = self.logs[subscription.topic][sent.log][begin : sent.next_offset]
        assert (sent.offset, sent.records) == (begin, [*enumerate(values, begin)])
        assert subscription.credit >= (1 if self.is_binary else len(values)), "batches are never cut"
        assert self.is_binary or len(values) == 1 or sum(map(len, values)) <= TEXT_CONTENT_BYTES
        subscription.offsets[sent.log] = sent.next_offset
        subscription.credit -= len(values)
        self.sent[subscription.topic] += len(values)

    async def settle(self) -> None:
        """Wait for all records for which there is credit. No others come before the answer to a ping."""
        while any(min(each.credit, self.available(each)) > 0 for each in self.subscriptions.values()):
            sent = records_in(await self.client.receive())
            assert sent is not None
            self.take(sent)
        assert (await self.client.ask("ping"))["type"] == "pong"

    # What the client does

    async def publish(self, topic: str, log: int) -> None:
        sizes = self.random.choices([5, 5, 5, 50_000, TEXT_CONTENT_BYTES + 1], k=self.random.randrange(1, 5))
        values = [f"{self.random.random()}".ljust(size) for size in sizes]
        records, place = [{"value": each} for each in values], len(self.logs[topic][log])
        sent = await self.client.send("publish", topic=topic, log=log, records=records)
        self.logs[topic][log] += values
        answer = await self.answer("published", sent)
        assert answer["offsets"] == [{"log": log, "offset": place, "count": len(values)}]

    async def subscribe(self, topic: str, log: int) -> None:
        identifier, credit = self.random.randrange(6), self.random.randrange(4)
        chosen = [log] if self.random.random() < 0.5 else [*range(len(self.logs[topic]))]
        ends, starts = {each: len(self.logs[topic][each]) for each in chosen}, self.starts[topic]
        committed = {
            each: min(max(offset, starts[each]), ends[each])
            for each, offset in self.committed.get(topic, {}).items()
            if each in ends
        }
        positions: list[tuple[Any, dict[int, int]]] = [
            ("earliest", {each: starts[each] for each in chosen}),
            ("latest", ends),
            ({"group": self.group}, {each: committed.get(each, starts[each]) for each in chosen}),
            ({"group": self.group, "otherwise": "latest"}, ends | committed),
            ({"offsets": {f"{log}": ends[log]}}, {**{each: starts[each] for each in chosen}, log: ends[log]}),
            ({"time": 0}, {each: starts[each] for each in chosen}),
            ({"time": 2**52}, ends),
        ]
        position, offsets = self.random.choice(positions)
        options: dict[str, Any] = {"logs": chosen} if len(chosen) < len(self.logs[topic]) else {}
        await self.client.send("subscribe", id=identifier, topic=topic, from_=position, credit=credit, **options)
        if await self.is_refused(identifier):
            return
        answer = await self.answer("subscribed", identifier)
        places = [
            {"log": each, "offset": offsets[each], "start_offset": starts[each], "end_offset": ends[each]}
            for each in chosen
        ]
        assert answer["logs"] == places, position
        self.subscriptions[identifier] = ModelSubscription(topic, offsets, credit)

    async def is_refused(self, identifier: int) -> bool:
        """Return whether a subscription or a watch is refused, as it must be if its id is taken, or there are many."""
        if {identifier} & (self.subscriptions.keys() | self.watches):
            assert (await self.answer("error", identifier))["code"] == "conflict"
        elif len(self.subscriptions) + len(self.watches) >= SUBSCRIPTIONS_MAX:
            assert (await self.answer("error", identifier))["code"] == "too_many_requests"
        else:
            return False
        return True

    async def unsubscribe(self, _topic: str, _log: int) -> None:
        identifier = self.random.randrange(6)
        await self.client.send("unsubscribe", id=identifier)
        await self.answer("unsubscribed", identifier)
        self.subscriptions.pop(identifier, None)

    async def add_credit(self, _topic: str, _log: int) -> None:
        identifier, records = self.random.randrange(6), self.random.randrange(1, 8)
        await self.client.send("credit", id=identifier, records=records)
        if identifier in self.subscriptions:
            self.subscriptions[identifier].credit += records

    async def watch(self, _topic: str, _log: int) -> None:
        identifier = self.random.randrange(6)
        await self.client.send("watch", id=identifier, path="/session", interval_ms=500)
        if not await self.is_refused(identifier):
            assert (await self.answer("view", identifier))["status"] == 200
            self.watches.add(identifier)

    async def unwatch(self, _topic: str, _log: int) -> None:
        identifier = self.random.randrange(6)
        await self.client.send("unwatch", id=identifier)
        await self.answer("unwatched", identifier)
        self.watches.discard(identifier)

    async def commit(self, topic: str, log: int) -> None:
        offset = self.random.randrange(len(self.logs[topic][log]) + 4)  # also beyond the end
        sent = await self.client.send("commit", group=self.group, topic=topic, offsets={f"{log}": offset})
        await self.answer("committed", sent)
        self.committed.setdefault(topic, {})[log] = offset

    async def describe(self, topic: str, _log: int) -> None:
        sent = await self.client.send("describe", topic=topic)
        found = [
            (each["log"], each["start_offset"], each["end_offset"])
            for each in (await self.answer("described", sent))["logs"]
        ]
        assert found == [(log, self.starts[topic][log], len(values)) for log, values in enumerate(self.logs[topic])]

    async def delete_records(self, topic: str, log: int) -> None:
        await self.settle()
        before = self.random.randint(self.starts[topic][log], len(self.logs[topic][log]))
        target = f"/topics/{topic}/records?log={log}&before={before}"
        assert (await self.web.request("DELETE", target)).document["start_offset"] == before
        self.starts[topic][log] = before


@pytest.fixture(scope="module")
def limited() -> Iterator[SharedWeb]:
    """A broker that allows few subscriptions."""
    with run_web(config=Config().with_http(subscriptions_max=SUBSCRIPTIONS_MAX)) as running:
        yield running


@pytest.mark.parametrize(("subprotocol", "compression"), [(JSON, None), (JSON, "deflate"), (BINARY, None)])
@pytest.mark.parametrize("seed", range(3))
async def test_a_connection_behaves_as_its_model(
    limited: SharedWeb,
    name: str,
    seed: int,
    subprotocol: str,
    compression: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dafka.http.websocket.client_tasks.REFRESH_S", 10**6)  # nothing waits for the next look
    random, topics = Random(seed), {f"{name}a": 1, f"{name}b": 3}
    for topic, log_count in topics.items():
        await limited.request("POST", "/topics", document={"name": topic, "log_count": log_count})
    async with open_client(limited, subprotocol, compression=compression) as client:
        assert client.welcome["subscriptions_max"] == SUBSCRIPTIONS_MAX
        logs: dict[str, list[list[str]]] = {topic: [[] for _ in range(count)] for topic, count in topics.items()}
        starts = {topic: [0] * count for topic, count in topics.items()}
        model = Model(limited, client, random, logs, starts, name, subprotocol == BINARY)
        steps = [model.publish, model.publish, model.subscribe, model.subscribe, model.add_credit, model.add_credit]
        steps += [model.watch, model.unwatch, model.commit, model.commit, model.describe, model.delete_records]
        for _ in range(120):
            topic = random.choice([*topics])
            await random.choice([*steps, model.unsubscribe])(topic, random.randrange(topics[topic]))
            if random.random() < 0.5:
                await model.settle()
        await model.settle()
        produced, consumed = limited.server.counters.produced, limited.server.counters.consumed
        assert [consumed[each] for each in topics] == [model.sent[each] for each in topics]
        assert [produced[each] for each in topics] == [sum(map(len, model.logs[each])) for each in topics]


async def test_one_log_does_not_hold_up_another(web: SharedWeb, name: str) -> None:
    topic, found = web.create(name, 2), list[int]()
    async with open_client(web) as client:
        for log in (0, 1):
            await client.publish(topic, *(f"{number}" for number in range(50)), log=log)
        identifier = await client.subscribe(topic, credit=0)
        for _ in range(4):
            await client.send("credit", id=identifier, records=10)
            found += [each["log"] for each in await client.take(10, identifier)]
    assert found[::10] == [0, 1, 0, 1]


@pytest.mark.parametrize("is_made_again", [False, True])
async def test_an_idle_subscription_notices_logs_that_are_added_and_that_its_topic_is_deleted(
    web: SharedWeb, topic: str, is_made_again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dafka.http.websocket.client_tasks.REFRESH_S", 0.05)
    async with open_client(web) as client, open_client(web) as publisher:
        every, chosen = await client.subscribe(topic), await client.subscribe(topic, logs=[0])
        waiting = await client.subscribe(topic, credit=0)
        assert (await web.request("PATCH", f"/topics/{topic}", document={"log_count": 2})).status == 200
        await publisher.publish(topic, "a", log=1)
        assert [each["value"] for each in await client.take(1, every)] == ["a"]
        await publisher.publish(topic, "b", log=0)
        found = [await client.expect("records") for _ in range(2)]
        values = {(each["id"], each["log"], each["records"][0]["value"]) for each in found}
        assert values == {(each, 0, "b") for each in (every, chosen)}
        if is_made_again:
            web.call_sync(setattr, web.broker.node.logs(topic)[0], "is_gone", True)
        else:
            await web.request("DELETE", f"/topics/{topic}")
        errors = [await client.expect("error") for _ in range(3)]
        codes = {(each["id"], each["code"]) for each in errors}
        assert codes == {(each, "topic_not_found") for each in (every, chosen, waiting)}
