"""Subscriptions send what there is credit for: every record once and in order, and none when nobody may read it."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import attrs
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from dafka.batches import check_crc, decode_batch, encode_batch, iter_batches
from dafka.broker.connections.memory import Memory
from dafka.broker.core.log.log import Log
from dafka.http.logs.log_access import ReadRecords
from dafka.http.server.errors import WebError
from dafka.http.server.http_server import HttpCounters
from dafka.http.websocket.client_tasks import REFRESH_S, Subscription
from dafka.http.websocket.messages import BINARY_PROTOCOL, JSON_PROTOCOL
from dafka.http.websocket.shared_reads import TEXT_CONTENT_BYTES, SharedReads
from dafka.records import Partition

TOPIC = "orders"
END_S = 1000.0


class Logs:
    """Stands for a broker and its logs, which hold batches of records, and for the client's connection."""

    def __init__(self, log_count: int, subprotocol: str = JSON_PROTOCOL) -> None:
        self.logs = [self._make_log(number) for number in range(log_count)]
        self.batches: dict[Log, list[tuple[int, bytes]]] = {log: [] for log in self.logs}
        self.ends = dict.fromkeys(self.logs, 0)
        self.subprotocol = subprotocol
        self.takes_deflated = False
        self.sent: list[Sent] = []
        self.may_read = True
        self.read_batches = 2
        self.counters = HttpCounters()
        self.reads = SharedReads(Memory(2**30).make_pool(2**29))
        self._changed = trio.Event()

    def _make_log(self, number: int) -> Log:
        place = Partition(TOPIC, "a" * 32)
        return Log(TOPIC, number, place, place)

    def add_log(self) -> None:
        log = self._make_log(len(self.logs))
        self.logs, self.batches[log], self.ends[log] = [*self.logs, log], [], 0

    def append(self, number: int, sizes: Sequence[int]) -> None:
        """Append a batch of records whose values tell their offset."""
        log = self.logs[number]
        first = self.ends[log]
        values = [f"{first + place}".encode().ljust(size) for place, size in enumerate(sizes)]
        self.batches[log].append((first, encode_batch(first, values, timestamps=5)))
        self.ends[log] += len(sizes)
        self._changed.set()
        self._changed = trio.Event()

    # The access to the logs

    def has_records(self, log: Log, offset: int) -> bool:
        return self.ends[log] > offset

    async def wait_records(self, offsets: Mapping[Log, int]) -> None:
        while not any(self.has_records(*each) for each in offsets.items()):
            await self._changed.wait()

    async def read(self, log: Log, offset: int, **_options: object) -> ReadRecords:
        """Return whole batches, as readers of logs do; of the first one only what was not read."""
        await trio.sleep(0.01)
        found = [data for first, data in self.batches[log] if first + check_crc(data).count > offset][
            : self.read_batches
        ]
        batches = [(check_crc(data), data) for data in found]
        if batches and batches[0][0].base_offset < offset:
            header, data = batches[0]
            values = decode_batch(data, bytes_max=2**20).values[offset - header.base_offset :]
            data = encode_batch(offset, values, timestamps=5)
            batches[0] = check_crc(data), data
        return ReadRecords(offset, batches[-1][0].end_offset if batches else offset, batches)

    # The connection

    async def send_shared_text(self, head: bytes, rest: bytes, deflated: bytes | None) -> None:
        assert deflated is None
        message = json.loads(head + rest)
        assert (message.pop("type"), message.pop("id")) == ("records", 7)
        await self._send(message["log"], message["offset"], message["next_offset"], message["records"])

    async def send_shared_binary(self, head: bytes, rest: bytes) -> None:
        _, _, _, log, identifier, offset, next_offset = struct.unpack(">BBHiqqq", head)
        assert identifier == 7
        records = [
            {"offset": header.base_offset + place, "value": (value or b"").decode()}
            for start, header in iter_batches(rest)
            for place, value in enumerate(decode_batch(rest[start : start + header.size], bytes_max=2**20).values)
        ]
        await self._send(log, offset, next_offset, records)

    async def _send(self, log: int, offset: int, next_offset: int, records: Sequence[Mapping[str, Any]]) -> None:
        assert all(int(each["value"]) == each["offset"] for each in records)
        self.sent.append(Sent(log, offset, next_offset, [each["offset"] for each in records], trio.current_time()))
        await trio.sleep(0.01)

    def check_read(self, topic: str) -> None:
        assert topic == TOPIC
        if not self.may_read:
            raise WebError("forbidden", "no")

    def subscribe(self, credit: int, *, chosen: Sequence[int] | None = None, offset: int = 0) -> Subscription:
        """Begin a subscription of all logs, or of chosen ones."""
        node = SimpleNamespace(
            logs=lambda _topic: self.logs,
            inventory=SimpleNamespace(record_count=lambda _topic: 0),
            log_table=SimpleNamespace(topics={}),
        )
        request: Any = SimpleNamespace(
            broker=SimpleNamespace(node=node),
            logs=self,
            web=SimpleNamespace(reads=self.reads, counters=self.counters),
            host="127.0.0.1",
            principal=self,
        )
        connection: Any = self
        logs = [log for log in self.logs if chosen is None or log.number in chosen]
        return Subscription(
            7, TOPIC, dict.fromkeys(logs, offset), credit, request, connection, has_all_logs=chosen is None
        )


@attrs.frozen
class Sent:
    """A message with records, which are named by their offsets."""

    log: int
    offset: int
    next_offset: int
    records: list[int]
    at: float


async def play(logs: Logs, subscription: Subscription, steps: Sequence[tuple[float, Any]]) -> str:
    """Take steps, each some time after the one before, until nothing happens any more. Return the error's code."""
    code = ""

    async def run() -> None:
        nonlocal code
        try:
            await subscription.run()
        except WebError as error:
            code = error.code

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        for wait_s, step in steps:
            await trio.sleep(wait_s)
            step()
        await trio.sleep(END_S)
        subscription.stop()
    return code


def check_contiguous(logs: Logs) -> None:
    """Check that the messages of each log follow each other, and have all records between."""
    for log in logs.logs:
        expected = 0
        for each in logs.sent:
            if each.log == log.number:
                assert each.offset == expected
                assert each.records == [*range(each.offset, each.next_offset)]
                expected = each.next_offset


SIZES = st.lists(st.sampled_from([5, 5, 5, 50_000, TEXT_CONTENT_BYTES + 1]), min_size=1, max_size=6)
STEPS = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.005, 0.02, 3.0]), st.one_of(st.integers(1, 12), st.tuples(st.integers(0, 1), SIZES))
    ),
    max_size=10,
)


@settings(max_examples=40)
@given(st.integers(0, 8), STEPS, st.booleans())
def test_records_are_sent_as_far_as_there_is_credit(
    credit: int, steps: list[tuple[float, int | tuple[int, list[int]]]], is_binary: bool
) -> None:
    async def main() -> None:
        logs = Logs(2, BINARY_PROTOCOL if is_binary else JSON_PROTOCOL)
        subscription = logs.subscribe(credit)
        granted = [(0.0, credit)]

        def take(step: int | tuple[int, list[int]]) -> None:
            if isinstance(step, int):
                granted.append((trio.current_time(), step))
                subscription.add_credit(step)
            else:
                logs.append(*step)

        actions = [(wait_s, lambda step=step: take(step)) for wait_s, step in steps]
        assert await play(logs, subscription, actions) == ""
        check_contiguous(logs)
        total = 0
        for each in logs.sent:
            allowed = sum(records for at, records in granted if at <= each.at)
            assert total < allowed, "a message was sent without credit"
            total += len(each.records)
            assert is_binary or total <= allowed
        all_credit, available = sum(records for _, records in granted), sum(logs.ends.values())
        assert total >= min(all_credit, available)
        assert is_binary or total == min(all_credit, available)
        assert subscription.credit == all_credit - total
        assert logs.counters.consumed[TOPIC] == total

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


async def test_one_log_does_not_hold_up_another(autojump_clock: trio.testing.MockClock) -> None:
    logs = Logs(2)
    logs.read_batches = 1
    for _ in range(5):
        logs.append(0, [5] * 10)
        logs.append(1, [5] * 10)
    subscription = logs.subscribe(0)
    await play(logs, subscription, [(1, lambda: subscription.add_credit(10))] * 4)
    assert [each.log for each in logs.sent] == [0, 1, 0, 1]


async def test_credit_that_comes_while_a_part_is_sent_skips_nothing(autojump_clock: trio.testing.MockClock) -> None:
    logs = Logs(1)
    logs.append(0, [5] * 4 + [TEXT_CONTENT_BYTES] * 3)
    subscription = logs.subscribe(1)
    await play(logs, subscription, [(0.015, lambda: subscription.add_credit(100))])
    check_contiguous(logs)
    assert [each.records for each in logs.sent[:2]] == [[0], [1, 2, 3]]
    assert sum(len(each.records) for each in logs.sent) == 7


async def test_large_records_come_in_several_messages(autojump_clock: trio.testing.MockClock) -> None:
    logs = Logs(1)
    logs.append(0, [TEXT_CONTENT_BYTES // 2] * 4 + [5] * 3 + [TEXT_CONTENT_BYTES * 2])
    await play(logs, logs.subscribe(100), [])
    assert [each.records for each in logs.sent] == [[0], [1], [2], [3, 4, 5, 6], [7]]


async def test_a_subscription_ends_when_its_user_may_not_read_any_more(autojump_clock: trio.testing.MockClock) -> None:
    """Idle ones, without credit or without records, end soon. Nothing is sent before."""
    lost_s = 2 * REFRESH_S + 1
    for credit, has_record, is_idle in ((0, True, True), (100, False, True), (0, False, False), (100, False, False)):
        logs, begun_s, ended_s = Logs(1), trio.current_time(), list[float]()
        if has_record:
            logs.append(0, [5])
        subscription = logs.subscribe(credit)

        def lose(logs: Logs = logs, subscription: Subscription = subscription, is_idle: bool = is_idle) -> None:
            logs.may_read = False
            if not is_idle:
                logs.append(0, [5])
                subscription.add_credit(1)

        async def note_end(subscription: Subscription = subscription, ended_s: list[float] = ended_s) -> None:
            await subscription.ended.wait()
            ended_s.append(trio.current_time())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(note_end)
            assert await play(logs, subscription, [(lost_s, lose)]) == "forbidden"
        assert lost_s <= ended_s[0] - begun_s <= (3 * REFRESH_S if is_idle else lost_s)
        assert logs.sent == []


async def test_logs_that_are_added_are_sent_to_those_who_want_all(autojump_clock: trio.testing.MockClock) -> None:
    for chosen, found in ((None, {0, 1}), ([0], {0})):
        logs, begun_s = Logs(1), trio.current_time()
        steps = [(1, logs.add_log), (0, partial(logs.append, 1, [5])), (2 * REFRESH_S, partial(logs.append, 0, [5]))]
        await play(logs, logs.subscribe(100, chosen=chosen), steps)
        assert {each.log for each in logs.sent} == found
        assert all(each.at - begun_s < 2 * REFRESH_S for each in logs.sent if each.log == 1)


async def test_a_deleted_topic_ends_its_subscriptions(autojump_clock: trio.testing.MockClock) -> None:
    for delete in (lambda logs: logs.logs.clear(), lambda logs: setattr(logs.logs[0], "is_gone", True)):
        logs = Logs(1)
        assert await play(logs, logs.subscribe(100), [(1, partial(delete, logs))]) == "topic_not_found"


async def test_a_subscription_that_is_stopped_sends_nothing_else(autojump_clock: trio.testing.MockClock) -> None:
    logs = Logs(1)
    for _ in range(10):
        logs.append(0, [5] * 3)
    subscription = logs.subscribe(1000)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(subscription.run)
        await trio.sleep(0.015)
        subscription.stop()
        await subscription.ended.wait()
        count = len(logs.sent)
        await trio.sleep(END_S)
    assert len(logs.sent) == count <= 1
    waiting = logs.subscribe(0)
    waiting.stop()
    await waiting.run()
    assert waiting.ended.is_set()
