"""A ledger of what clients of a cluster are answered: each record is accepted or rejected once, whatever they do.

Clients of HTTP and WebSocket take records through any broker. They accept, release, reject and renew them, say nothing,
are late, and close their sockets. Meanwhile logs move to other leaders.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from random import Random
from typing import Any

import attrs
import pytest
import trio

from dafka.http.websocket.binary import decode_deliveries
from tests.http.queues.clients import Consumer, Queue, read_deliveries
from tests.http.queues.cluster import LOGS, spread, webs
from tests.http.running import DEADLINE_S, SharedWeb
from tests.http.websocket.clients import BINARY, JSON, open_client

__all__ = ["webs"]

RECORDS = 90
SEEDS = 3
LOCK_S = 1.0
SAID = {"accept": 60, "release": 10, "reject": 8, "renew": 10, "": 12}
"""How often clients say what; nothing leaves the record locked."""

Record = tuple[int, int]
"""The log and the offset of a record."""


@attrs.define
class Ledger:
    """What clients were answered. Of what is `unsure`, the answer was that nobody knows it."""

    queue: Queue
    webs: list[SharedWeb]
    draw: Random
    ended: set[Record] = attrs.field(factory=set)
    unsure: set[Record] = attrs.field(factory=set)

    @property
    def is_done(self) -> bool:
        return len(self.ended | self.unsure) == RECORDS

    def answer(self, said: Mapping[Record, str], refused: list[dict[str, Any]]) -> None:
        """Take down the answer to acknowledgements."""
        left = {record: kind for record, kind in said.items() if kind in {"accept", "reject"}}
        for each in refused:
            for offset in range(each["offset"], each["last"] + 1):
                kind = left.pop((each["log"], offset), None)
                if kind is not None and each["code"] != "lock_lost":
                    self.unsure.add((each["log"], offset))
        assert not left.keys() & self.ended
        self.ended |= left.keys()

    def choose(self, records: list[Record]) -> dict[Record, str]:
        kinds = self.draw.choices(list(SAID), list(SAID.values()), k=len(records))
        return {record: kind for record, kind in zip(records, kinds, strict=True) if kind}

    async def work(self, web: SharedWeb) -> None:
        """Receive records over HTTP, and acknowledge them, perhaps twice, perhaps late."""
        before, asked = set(self.ended), {"records_max": self.draw.randint(1, 12), "wait_ms": 500}
        answer = await web.request("POST", f"{self.queue.path}/receive", document=asked)
        assert answer.status == 200, answer.body
        records = [(each["log"], each["offset"]) for each in answer.document["records"]]
        assert not before & set(records), "records that have ended are not delivered"
        said = self.choose(records)
        if self.draw.random() < 0.1:
            await trio.sleep(LOCK_S)
        for _ in range(self.draw.choice((1, 1, 2))):
            document = {"receipt": answer.document["receipt"], "acknowledgements": listed(said)}
            other = self.draw.choice(self.webs)
            answered = await other.request("POST", f"{self.queue.path}/acknowledge", document=document)
            assert answered.status == 200, answered.body
            self.answer(said, answered.document["refused"])
            said = {record: "accept" for record, kind in said.items() if kind == "renew"}

    async def listen(self, web: SharedWeb) -> None:
        """Take records over WebSocket for a while, then close the socket."""
        async with open_client(web, self.draw.choice((JSON, BINARY))) as client:
            before, one = set(self.ended), await Consumer(client, self.queue).consume(self.draw.randint(1, 12))
            said = dict[int, Mapping[Record, str]]()
            for _ in range(self.draw.randint(0, 6)):
                received: Any = None
                with trio.move_on_after(LOCK_S / 2):
                    received = await client.connection.recv()
                message = json.loads(received) if isinstance(received, str) else received
                if isinstance(message, dict) and message["type"] == "acknowledged":
                    self.answer(said.pop(message["id"]), message["refused"])
                elif message is not None:
                    log = message["log"] if isinstance(message, dict) else decode_deliveries(message).log
                    records = [(log, each["offset"]) for each in read_deliveries(message, one.identifier)]
                    assert not before & set(records), "records that have ended are not delivered"
                    chosen = self.choose(records)
                    identifier = await client.send(
                        "acknowledge", **one.named, receipt=one.receipt, acknowledgements=listed(chosen)
                    )
                    said[identifier] = chosen
                    await client.send("credit", id=one.identifier, records=len(records))
            for each in said.values():
                self.unsure |= {record for record, kind in each.items() if kind in {"accept", "reject"}}


def listed(said: Mapping[Record, str]) -> list[dict[str, Any]]:
    return [{"log": log, "offset": offset, "type": kind} for (log, offset), kind in said.items()]


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_each_record_ends_once(webs: list[SharedWeb], seed: int) -> None:
    draw = Random(seed)
    queue = await trio.to_thread.run_sync(spread, webs, str(int(LOCK_S * 1000)))
    many = {"settings": {"share.delivery.count.limit": "1000"}}
    assert (await webs[0].request("PUT", queue.path, document=many)).status == 200
    ledger = Ledger(queue, webs, draw)

    async def publish() -> None:
        for number in range(0, RECORDS, LOGS * 5):
            for log in range(LOGS):
                values = map(str, range(number, number + 5))
                await trio.to_thread.run_sync(partial(queue.publish, *values, log=log))

    async def move() -> None:
        """Have another broker lead a log."""
        document = {"replicas": [draw.randrange(len(webs))]}
        target = f"/topics/{queue.topic}/logs/{draw.randrange(LOGS)}/replicas"
        assert (await webs[0].request("PUT", target, document=document)).status == 200

    async def work(action: Any) -> None:
        while not ledger.is_done:
            await action(draw.choice(webs))

    with trio.fail_after(2 * DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish)
            for action in (ledger.work, ledger.work, ledger.work, ledger.listen, ledger.listen):
                nursery.start_soon(work, action)
            for _ in range(seed):
                await trio.sleep(LOCK_S)
                await move()
        while (await trio.to_thread.run_sync(queue.at(draw.choice(webs)).describe)) != (0, 0):
            await ledger.work(draw.choice(webs))
    assert ledger.is_done
