"""Queues that administrators delete, create again and move: no request after that sees what was before."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import attrs
import pytest
import trio

from dafka.broker.coordinator.share_store import COORDINATOR_ERRORS
from dafka.broker.core.error_codes import ErrorCode
from dafka.http.queues import local_queues
from dafka.kafka.protocol.constants import ApiKey
from tests.http.queues.clients import HOUR_MS, Queue
from tests.http.queues.cluster import spread, webs
from tests.http.running import DEADLINE_S, SharedWeb
from tests.kafka.apis.door import Client
from tests.waiting import poll_until, wait_until

__all__ = ["webs"]

RECORDS, STEPS, SEEDS = 4, 60, 3
RECEIVE = "/topics/{topic}/queues/{queue}/receive"

Record = tuple[int, int]
"""The log and the offset of a record."""


@pytest.fixture(autouse=True)
def only_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have leaders never compare queues with the coordinator on their own."""
    monkeypatch.setattr(local_queues, "VERIFIED_S", float("inf"))


@attrs.define
class History:
    """A queue, and what it has to be: where it begins, what is locked by which receipt, and what has ended."""

    queue: Queue
    webs: Sequence[SharedWeb]
    logs: int
    draw: Random
    start: int | None = 0
    delivered: dict[Record, int] = attrs.field(factory=dict)
    locks: dict[str, set[Record]] = attrs.field(factory=dict)
    ended: set[Record] = attrs.field(factory=set)

    @property
    def any(self) -> Queue:
        return self.queue.at(self.draw.choice(self.webs))

    def locked(self) -> set[Record]:
        return set().union(*self.locks.values())

    def available(self) -> set[Record]:
        assert self.start is not None
        records = {(log, offset) for log in range(self.logs) for offset in range(self.start, RECORDS)}
        return records - self.ended - self.locked()

    def begin(self, start: int | None) -> None:
        """Note that the state was replaced. Receipts that had records have none."""
        self.start = start
        self.delivered.clear()
        self.ended.clear()
        self.locks = {receipt: set() for receipt in self.locks}

    def check(self) -> None:
        """Compare what brokers answer with what it has to be."""
        for web in self.webs:
            answer = web.ask("GET", self.queue.path)
            if self.start is None:
                assert answer.code == "group_not_found"
                continue
            for each in answer.document["logs"]:
                expected = [sum(log == each["log"] for log, _ in some) for some in (self.available(), self.locked())]
                assert [each["available_count"], each["locked_count"]] in (expected, [None, None])

    def receive(self) -> None:
        if self.start is None:
            assert self.any.web.ask("POST", f"{self.queue.path}/receive", document={}).code == "group_not_found"
            return
        wait_ms = 60_000 if self.available() else 0  # leaders may not answer promptly
        receipt, records = self.any.receive(self.draw.randint(1, RECORDS), wait_ms)
        found = {(each["log"], each["offset"]): each["delivery_count"] for each in records}
        assert found.keys() <= self.available()
        assert records or not self.available()
        self.delivered.update({each: self.delivered.get(each, 0) + 1 for each in found})
        assert found.items() <= self.delivered.items()
        self.locks[receipt] = set(found)

    def acknowledge(self) -> None:
        """Acknowledge with any receipt, also one of a former queue."""
        kind = self.draw.choice(("accept", "accept", "release", "reject"))
        receipt = self.draw.choice([*self.locks, "none"])
        assert self.any.acknowledge(receipt, others=kind) == []
        held = self.locks.pop(receipt, set())
        if kind != "release":
            self.ended |= held

    def delete(self) -> None:
        answer = self.any.web.ask("DELETE", f"/groups/{self.queue.name}")
        assert answer.status == (404 if self.start is None else 204)
        self.begin(None)

    def delete_by_kafka(self) -> None:
        (result,) = self.ask_kafka(ApiKey.DELETE_GROUPS, 2, "results", groups_names=[self.queue.name])
        assert result["error_code"] == (ErrorCode.GROUP_ID_NOT_FOUND if self.start is None else ErrorCode.NONE)
        self.begin(None)

    def create(self) -> None:
        offset = self.draw.randint(0, RECORDS)
        answer = self.any.create(**{"from": {"offsets": {str(log): offset for log in range(self.logs)}}})
        assert answer.status == 200, answer.body
        if self.start is None:
            self.begin(offset)
            assert {each["start_offset"] for each in answer.document["logs"]} <= {offset, None}

    def move(self) -> None:
        self.move_to(self.draw.randint(0, RECORDS))

    def move_to(self, offset: int) -> None:
        partitions = [{"partition_index": log, "start_offset": offset} for log in range(self.logs)]
        assert self.administrate(ApiKey.ALTER_SHARE_GROUP_OFFSETS, {"partitions": partitions}) == ErrorCode.NONE
        self.begin(offset)  # it is created if it does not exist

    def forget(self) -> None:
        """Delete the offsets, and set where the queue begins."""
        error = self.administrate(ApiKey.DELETE_SHARE_GROUP_OFFSETS, {})
        assert error == (ErrorCode.GROUP_ID_NOT_FOUND if self.start is None else ErrorCode.NONE)
        self.start = None
        self.create()

    def administrate(self, api: ApiKey, fields: dict[str, Any]) -> int:
        """Return the error of a request of Kafka's about the queue's offsets."""
        topics = [{"topic_name": self.queue.topic, **fields}]
        (result,) = self.ask_kafka(api, 0, "", group_id=self.queue.name, topics=topics)
        error: int = result["error_code"]
        return error

    def ask_kafka(self, api: ApiKey, version: int, field: str, **values: Any) -> list[Any]:
        """Return the results of a request of Kafka's at the coordinator."""
        found = list[Any]()

        def ask() -> bool:
            for web in self.webs:
                with Client(web.broker.bootstrap_servers) as client:
                    answer = client.ask(api, version, **values)
                found[:] = answer[field] if field else [answer]
                if not COORDINATOR_ERRORS.intersection(each["error_code"] for each in found):
                    return True
            return False

        poll_until(ask)
        return found

    def play(self) -> None:
        steps = (self.receive, self.acknowledge, self.delete, self.delete_by_kafka, self.create, self.move, self.forget)
        for step in self.draw.choices(steps, (8, 6, 1, 1, 3, 2, 1), k=STEPS):
            step()
            self.check()


@pytest.fixture(params=["alone", "cluster"])
def history(request: pytest.FixtureRequest, web: SharedWeb, webs: list[SharedWeb]) -> History:
    """A queue in one log of a broker, or in a log at each of three."""
    running = [web] if request.param == "alone" else webs
    queue = Queue.make(web) if request.param == "alone" else spread(webs, HOUR_MS)
    for log in range(len(running)):
        queue.publish(*map(str, range(RECORDS)), log=log)
    assert queue.create(settings={"share.delivery.count.limit": "1000"}).status == 200
    found = History(queue, running, len(running), Random())
    found.forget()
    return found


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_request_gets_by_the_state_before(history: History, seed: int) -> None:
    history.draw.seed(seed)
    history.play()


async def test_clients_that_wait_get_the_records_to_which_a_queue_is_moved_back(history: History) -> None:
    await trio.to_thread.run_sync(history.move_to, RECORDS)
    waiting, target = [web.server.counters.requests for web in history.webs], f"{history.queue.path}/receive"
    before = [each["POST", RECEIVE] for each in waiting]

    async def receive(web: SharedWeb) -> None:
        answer = await web.request("POST", target, document={"wait_ms": 60_000})
        assert answer.document["records"]

    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            for web in history.webs:
                nursery.start_soon(receive, web)
            await wait_until(
                lambda: all(each["POST", RECEIVE] > known for each, known in zip(waiting, before, strict=True))
            )
            nursery.start_soon(trio.to_thread.run_sync, history.move_to, 0)
