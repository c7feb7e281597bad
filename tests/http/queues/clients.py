"""Clients of queues, over HTTP and WebSocket. Each answer is held against its description."""

from __future__ import annotations

import itertools
from typing import Any

import attrs

from dafka.batches import decode_batch, read_header
from dafka.http.websocket.binary import decode_deliveries
from tests.http.api.test_openapi import check_answer
from tests.http.running import Answer, SharedWeb
from tests.http.websocket.clients import Client
from tests.waiting import poll_until

_names = itertools.count()
HOUR_MS = "3600000"
WEEK_MS = 7 * 86_400_000


@attrs.frozen
class Queue:
    """A queue, for clients of a broker."""

    web: SharedWeb
    topic: str

    @classmethod
    def make(cls, web: SharedWeb, log_count: int = 1, lock_ms: str = HOUR_MS, **settings: str) -> Queue:
        """Create a queue of a new topic with some settings. Its locks stay for an hour unless a time is given."""
        return cls.of(web, web.create(f"jobs-{next(_names)}", log_count, 1, **settings), lock_ms)

    @classmethod
    def of(cls, web: SharedWeb, topic: str, lock_ms: str) -> Queue:
        """Create a queue of a topic."""
        queue = cls(web, topic)
        answer = queue.create(settings={"share.record.lock.duration.ms": lock_ms})
        assert (answer.status, answer.document["lock_ms"]) == (200, int(lock_ms))
        return queue

    @property
    def name(self) -> str:
        return f"workers-{self.topic}"

    @property
    def path(self) -> str:
        return f"/topics/{self.topic}/queues/{self.name}"

    def at(self, web: SharedWeb) -> Queue:
        """Return the queue for clients of another broker."""
        return Queue(web, self.topic)

    def create(self, **document: Any) -> Answer:
        return self._check("PUT", "", self.web.ask("PUT", self.path, document=document))

    def publish(self, *values: str, log: int = 0) -> None:
        body = "\n".join(f'{{"value": "{each}"}}' for each in values).encode()
        answer = self.web.ask(
            "POST", f"/topics/{self.topic}/records?log={log}", body, Content_Type="application/x-ndjson"
        )
        assert answer.status == 200, answer.body

    def receive(self, records_max: int = 100, wait_ms: int = 0, **document: Any) -> tuple[str, list[dict[str, Any]]]:
        """Return the receipt and the records."""
        asked = {"records_max": records_max, "wait_ms": wait_ms, **document}
        answer = self._check("POST", "/receive", self.web.ask("POST", f"{self.path}/receive", document=asked))
        assert answer.status == 200, answer.body
        assert len(answer.document["records"]) <= records_max
        return answer.document["receipt"], answer.document["records"]

    def acknowledge(
        self, receipt: str, *said: tuple[int, int, str], others: str | None = None
    ) -> list[tuple[Any, ...]]:
        """Acknowledge ranges of offsets of the first log. Return what is refused."""
        document = {
            "receipt": receipt,
            "acknowledgements": [{"log": 0, "offset": first, "last": last, "type": kind} for first, last, kind in said],
            "others": others,
        }
        answer = self._check(
            "POST", "/acknowledge", self.web.ask("POST", f"{self.path}/acknowledge", document=document)
        )
        assert answer.status == 200, answer.body
        return [(each["offset"], each["last"], each["code"]) for each in answer.document["refused"]]

    def describe(self) -> tuple[int, int]:
        """Return how many records are available and locked."""
        found = self._check("GET", "", self.web.ask("GET", self.path)).document
        return found["available_count"], found["locked_count"]

    def wait_state(self, available: int, locked: int) -> None:
        """Wait until so many records are available and locked: leaders that have changed do not know it at first."""
        poll_until(lambda: self.describe() == (available, locked))

    def _check(self, method: str, path: str, answer: Answer) -> Answer:
        check_answer(method, "/topics/{topic}/queues/{queue}" + path, answer)
        return answer


def offsets(records: list[dict[str, Any]]) -> list[int]:
    return [each["offset"] for each in records]


def counts(records: list[dict[str, Any]]) -> dict[int, int]:
    return {each["offset"]: each["delivery_count"] for each in records}


@attrs.define
class Consumer:
    """A subscription to a queue."""

    client: Client
    queue: Queue
    identifier: int = 0
    receipt: str = ""
    early: list[dict[str, Any]] = attrs.field(factory=list)
    """Records that came before the answer to something else."""

    async def consume(self, credit: int) -> Consumer:
        self.identifier = await self.client.send("consume", **self.named, credit=credit)
        answer = await self.client.expect("consuming", self.identifier)
        self.receipt = answer["receipt"]
        return self

    @property
    def named(self) -> dict[str, str]:
        return {"topic": self.queue.topic, "queue": self.queue.name}

    async def take(self, count: int) -> list[dict[str, Any]]:
        """Return the next deliveries, which have as many records as this."""
        found, self.early = self.early, []
        while len(found) < count:
            found += read_deliveries(await self.client.receive(), self.identifier)
        assert len(found) == count
        return found

    async def acknowledge(self, *said: tuple[int, str], others: str | None = None) -> list[tuple[int, str]]:
        listed = [{"log": 0, "offset": offset, "type": kind} for offset, kind in said]
        identifier = await self.client.send(
            "acknowledge", **self.named, receipt=self.receipt, acknowledgements=listed, others=others
        )
        while isinstance(answer := await self.client.receive(), bytes) or answer["type"] == "deliveries":
            self.early += read_deliveries(answer, self.identifier)
        assert (answer["type"], answer["id"]) == ("acknowledged", identifier)
        return [(each["offset"], each["code"]) for each in answer["refused"]]


def read_deliveries(message: Any, identifier: int) -> list[dict[str, Any]]:
    """Return the records of a message, whatever its format."""
    if not isinstance(message, bytes):
        assert (message["type"], message["id"]) == ("deliveries", identifier), message
        found: list[dict[str, Any]] = message["records"]
        assert all(abs(each["locked_until"] - each["timestamp"]) < WEEK_MS for each in found)  # the wall clock may jump
        return found
    deliveries = decode_deliveries(message)
    assert deliveries.id == identifier
    values, data = dict[int, str](), bytes(deliveries.batches)
    while data:
        header = read_header(data)
        for number, value in enumerate(decode_batch(data[: header.size]).values):
            values[header.base_offset + number] = (value or b"").decode()
        data = data[header.size :]
    return [
        {"offset": offset, "value": values[offset], "delivery_count": count}
        for first, end, count in deliveries.ranges
        for offset in range(first, end)
    ]
