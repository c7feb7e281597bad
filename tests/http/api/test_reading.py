"""What routes return about records is what the logs hold: positions, limits, times, deletions and pages of names."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from random import Random
from typing import Any
from urllib.parse import quote

import attrs
import pytest
import trio

from dafka import open_producer
from dafka.batches import RecordColumns, encode_batch
from dafka.broker.core.log.partitioner import log_of_key
from dafka.http.api.record_documents import split_records
from tests.http.api.events import EventSource
from tests.http.running import DEADLINE_S, STEADY, Answer, SharedWeb, open_web, run_web, run_webs, wait_answer
from tests.http.secured import lead_elsewhere
from tests.waiting import poll_until

LINES, REST = "application/x-ndjson", "application/vnd.kafka.json.v2+json"


@contextmanager
def run_beside_leader() -> Iterator[SharedWeb]:
    """Run two brokers of a cluster: yield the second one, which forwards what concerns the first one."""
    with run_webs(2, STEADY.with_broker(heartbeat_ms=50)) as webs:
        yield max(webs, key=lambda web: web.broker.node.brokers.own.number)


@pytest.fixture(scope="module", params=[run_web, run_beside_leader], ids=["leading", "forwarding"])
def served(request: pytest.FixtureRequest) -> Iterator[SharedWeb]:
    """A broker that is asked about logs that it leads, or about those of another one."""
    with request.param() as running:
        yield running


@pytest.fixture
def topic(served: SharedWeb, name: str) -> str:
    """A new topic with one log, which the first broker leads."""
    served.create(name)
    lead_elsewhere(served, name, {})
    return name


TIMES = [1000, 1003, 1001, 1005, 1005, 1009]


@attrs.define
class Model:
    """The logs of a topic: the records of each, from its start on."""

    logs: list[list[dict[str, Any]]]
    starts: list[int]

    def position(self, text: str, log: int) -> int | None:
        """Return the offset in a log that a position stands for; None if there is none."""
        kind, _, rest = text.partition(":")
        end = len(self.logs[log])
        if text == "latest":
            return end
        if kind == "time":
            later = [each["offset"] for each in self.logs[log][self.starts[log] :] if each["timestamp"] >= int(rest)]
            return min(later, default=end)
        wanted = 0
        if kind == "offsets":
            wanted = {int(each[0]): int(each[2:]) for each in rest.split(",")}.get(log, 0)
        elif text != "earliest":
            wanted = int(text)
        return None if wanted > end else max(wanted, self.starts[log])

    def read(self, logs: Sequence[int], begin: str, end: str | None, limit: int) -> list[dict[str, Any]] | None:
        """Return the records of a range, log by log; None if it is not there."""
        found: list[dict[str, Any]] = []
        for log in logs:
            first, last = self.position(begin, log), self.position(end or "latest", log)
            if first is None or last is None:
                return None
            found += self.logs[log][first:last]
        return found[:limit]


def publish(web: SharedWeb, topic: str, log_count: int) -> Model:
    """Publish a record for each time to each log."""
    logs: list[list[dict[str, Any]]] = []
    for log in range(log_count):
        records = [{"value": f"{log}-{number}", "timestamp": time} for number, time in enumerate(TIMES)]
        body = "\n".join(map(json.dumps, records)).encode()
        answer = web.ask("POST", f"/topics/{topic}/records?log={log}", body, Content_Type=LINES)
        assert answer.document == {"offsets": [{"log": log, "offset": 0, "count": len(TIMES)}]}
        logs.append([{"log": log, "offset": number, **each} for number, each in enumerate(records)])
    return Model(logs, [0] * log_count)


def lines_of(answer: Answer) -> list[dict[str, Any]]:
    assert (answer.status, answer.headers["Content-Type"]) == (200, LINES), answer.body
    return [json.loads(line) for line in answer.body.splitlines()]


@pytest.mark.parametrize("start", [0, 2])
def test_a_range_of_a_log_is_what_the_log_holds(served: SharedWeb, topic: str, start: int) -> None:
    model = publish(served, topic, 1)
    if start:
        served.ask("DELETE", f"/topics/{topic}/records?before={start}")
        model.starts = [start]
    times = [f"time:{each}" for each in (0, 1001, 1004, 1006, 1010)]
    positions = ["earliest", "latest", *map(str, range(len(TIMES) + 2)), *times]
    for begin in positions:
        for end, limit in [(None, 1000), (None, 2), *((each, 1000) for each in positions[::2])]:
            query = f"from={begin}&limit={limit}" + (f"&to={end}" if end else "")
            answer = served.ask("GET", f"/topics/{topic}/records?{query}")
            expected = model.read([0], begin, end, limit)
            if expected is None:
                assert (answer.status, answer.code) == (400, "offset_out_of_range"), query
            else:
                assert lines_of(answer) == expected, query


def test_a_range_of_several_logs_is_what_the_logs_hold(served: SharedWeb, name: str) -> None:
    topic = served.create(name, 3)
    model = publish(served, topic, 3)
    served.ask("DELETE", f"/topics/{topic}/records?log=1&before=4")
    model.starts[1] = 4
    ranges = [("earliest", None), ("time:1001", "time:1005"), ("offsets:0=5,1=0", "offsets:2=3,1=6"), ("latest", None)]
    for begin, end in ranges:
        for log in (None, 0, 1, 2):
            if log is not None and "offsets" in begin:
                continue
            for limit in (1, 5, 7, 1000):
                query = f"from={begin}&limit={limit}" + (f"&to={end}" if end else "")
                query += "" if log is None else f"&log={log}"
                found = lines_of(served.ask("GET", f"/topics/{topic}/records?{query}"))
                assert found == model.read([0, 1, 2] if log is None else [log], begin, end, limit), query
    for before, start in (("time:1003", 1), ("1", 1), ("0", 1), ("latest", 6)):
        answer = served.ask("DELETE", f"/topics/{topic}/records?log=0&before={before}")
        assert answer.document == {"log": 0, "start_offset": start}
    assert lines_of(served.ask("GET", f"/topics/{topic}/records?log=0")) == []


def test_offsets_are_those_of_the_logs(served: SharedWeb, name: str) -> None:
    topic = served.create(name, 2)
    model = publish(served, topic, 2)
    served.ask("DELETE", f"/topics/{topic}/records?log=1&before=3")
    model.starts[1] = 3
    bounds = [{"log": log, "start_offset": model.starts[log], "end_offset": len(TIMES)} for log in (0, 1)]
    assert served.ask("GET", f"/topics/{topic}/offsets").document == {"offsets": bounds}
    for time in ("0", "1001", "1005", "1010", "1970-01-01T00:00:01.003Z"):
        milliseconds = "1003" if "Z" in time else time
        expected = [{**each, "offset": model.position(f"time:{milliseconds}", each["log"])} for each in bounds]
        assert served.ask("GET", f"/topics/{topic}/offsets?time={time}").document == {"offsets": expected}


def test_topics_are_described_with_the_sizes_of_their_logs(web: SharedWeb, name: str) -> None:
    topic = web.create(name, 2)
    publish(web, topic, 2)
    web.ask("DELETE", f"/topics/{topic}/records?log=1&before=3")
    described = web.ask("GET", f"/topics/{topic}?times=true").document
    assert described["record_count"] == 9
    found = [(each["start_offset"], each["end_offset"], each["last_timestamp"]) for each in described["logs"]]
    assert found == [(0, 6, 1009), (3, 6, 1009)]
    assert "last_timestamp" not in web.ask("GET", f"/topics/{topic}").document["logs"][0]
    (listed,) = web.ask("GET", f"/topics?prefix={topic}").document["topics"]
    assert (listed["log_count"], listed["record_count"], listed["end_offset"]) == (2, 9, 12)
    assert "bytes" not in listed
    target = f"/topics?prefix={topic}&sizes=true"
    poll_until(lambda: web.ask("GET", target).document["topics"][0]["bytes"] == 9 * len("0-0"))


def test_positions_of_groups_are_what_they_have_committed(served: SharedWeb, topic: str, name: str) -> None:
    publish(served, topic, 1)
    target = f"/topics/{topic}/records"
    assert len(lines_of(served.ask("GET", f"{target}?from=group:{name}"))) == 6, "it has committed nothing"
    for offset in (4, 0, 6):
        commit = {"topic": topic, "offsets": {"0": offset}}
        group = served.ask("PUT", f"/groups/{name}/offsets", document=commit).document
        assert [(each["offset"], each["end_offset"], each["lag"]) for each in group["offsets"]] == [
            (offset, 6, 6 - offset)
        ]
        assert (group["lag"], group["state"], group["members"]) == (6 - offset, "Empty", [])
        found = lines_of(served.ask("GET", f"{target}?from=group:{name}"))
        assert [each["offset"] for each in found] == [*range(offset, 6)]
        found = lines_of(served.ask("GET", f"{target}?to=group:{name}"))
        assert [each["offset"] for each in found] == [*range(offset)]
    served.ask("PUT", f"/groups/{name}/offsets", document={"topic": topic, "offsets": {"0": 1}})
    served.ask("DELETE", f"{target}?before=3")
    assert len(lines_of(served.ask("GET", f"{target}?from=group:{name}"))) == 3


def test_offsets_of_groups_are_deleted_with_the_topic(web: SharedWeb, name: str) -> None:
    for _ in range(2):
        web.create(name)
        publish(web, name, 1)
        assert len(lines_of(web.ask("GET", f"/topics/{name}/records?from=group:{name}"))) == 6
        web.ask("PUT", f"/groups/{name}/offsets", document={"topic": name, "offsets": {"0": 1}})
        web.ask("DELETE", f"/topics/{name}")


def test_a_reset_is_to_where_its_position_is(served: SharedWeb, topic: str, name: str) -> None:
    publish(served, topic, 1)
    other = f"other.{name}"
    served.ask("PUT", f"/groups/{other}/offsets", document={"topic": topic, "offsets": {"0": 5}})
    resets: list[tuple[Any, int]] = [("earliest", 0), ("latest", 6), ({"time": 1003}, 1), ({"time": 1010}, 6)]
    for to, offset in [*resets, ({"group": other}, 5), ({"offset": 2}, 2)]:
        answer = served.ask("PUT", f"/groups/{name}/offsets", document={"topic": topic, "to": to})
        assert [each["offset"] for each in answer.document["offsets"]] == [offset], to
    assert served.ask("DELETE", f"/groups/{name}").status == 204
    assert served.ask("GET", f"/groups/{name}").code == "group_not_found"


def test_pages_have_all_topics_once_and_in_order(web: SharedWeb, name: str) -> None:
    names = [f"{name}{each}" for each in ("a", "a.b", "b", "b-1", "c")]
    for each in reversed(names):
        web.create(each)

    def pages(query: str) -> Iterator[dict[str, Any]]:
        after: str | None = ""
        while after is not None:
            page = web.ask("GET", f"/topics?{query}&after={quote(after)}").document
            yield page
            after = page["next"]

    for prefix in (name, f"{name}b", f"{name}none"):
        expected = [each for each in names if each.startswith(prefix)]
        for limit in range(1, len(names) + 2):
            found = list(pages(f"prefix={quote(prefix)}&limit={limit}"))
            assert [each["name"] for page in found for each in page["topics"]] == expected
            assert [len(page["topics"]) for page in found[:-1]] == [limit] * (len(found) - 1)
            assert {page["topic_count"] for page in found} == {len(expected)}
    after = web.ask("GET", f"/topics?prefix={quote(name)}&after={quote(f'{name}a0')}").document
    assert [each["name"] for each in after["topics"]] == names[2:]


async def test_a_stream_begins_after_the_last_event_and_has_each_record_once(served: SharedWeb, name: str) -> None:
    topic = await trio.to_thread.run_sync(served.create, name, 2)
    model = await trio.to_thread.run_sync(publish, served, topic, 2)
    target = f"/topics/{topic}/records"
    source = EventSource()
    for begin, last, expected in (
        ("earliest", None, [0, 0]),
        ("latest", "0=2,1=6", [2, 6]),
        ("time:1005", None, [3, 3]),
        ("earliest", "1=5", [0, 5]),
    ):
        source = EventSource(last)
        with trio.fail_after(DEADLINE_S):
            async with source.connect(served, f"{target}?from={begin}&limit=1&to=earliest") as stream:
                await source.read(stream, 12 - sum(expected))
        assert source.values() == [each["value"] for log in (0, 1) for each in model.logs[log][expected[log] :]]
        assert source.last_event_id == "0=6,1=6"
    for last in ("0=7", "7=0", "x", "0=-1", ""):
        answer = await served.get(target, Accept="text/event-stream", Last_Event_ID=last)
        assert answer.status in {400, 404}, last


async def test_topics_whose_names_only_nodes_can_use_are_listed_without_logs(web: SharedWeb) -> None:
    for name in ("<script>", "a/b", "€ %2F", "..", "a b?c=d#e"):
        path = f"/topics/{quote(name, safe='')}"
        with trio.fail_after(DEADLINE_S):
            async with open_producer(name, web.config) as producer:
                await producer.send(b"x")
                await producer.wait_acknowledged()
        target = f"/topics?sizes=true&prefix={quote(name)}"  # sizes are measured now and then
        found = await wait_answer(partial(web.get, target), lambda found: found["topics"][0]["bytes"] == 1)
        assert [(each["name"], each["log_count"], each["record_count"]) for each in found["topics"]] == [(name, 0, 1)]
        described = (await web.get(path)).document
        assert (described["name"], described["logs"], described["record_count"]) == (name, [], 1)
        (partition,) = (await web.get(f"{path}/partitions")).document["partitions"]
        assert (partition["end_sequence"], partition["head_sequence"], partition["lag"]) == (1, 1, 0)
        refused = await web.get(f"{path}/records")
        assert refused.code == "topic_not_found"
        assert "has no logs" in refused.document["error"]["message"]
        for method, target in (("PATCH", path), ("DELETE", path), ("POST", f"{path}/records")):
            answer = await web.request(method, target, b"{}", Content_Type="application/json")
            assert answer.code in {"topic_not_found", "bad_request"}


async def test_records_of_native_producers_are_read_in_their_log(web: SharedWeb, name: str) -> None:
    with trio.fail_after(DEADLINE_S):
        async with open_producer(name, web.config) as producer:
            await producer.send(b"native", key=b"k")
            await producer.wait_acknowledged()
        while b"native" not in (await web.get(f"/topics/{name}/records")).body:
            pass
    assert (await web.request("POST", f"/topics/{name}/records", b"http")).document["offsets"][0]["offset"] == 1
    partitions = (await web.get(f"/topics/{name}/partitions")).document["partitions"]
    assert sorted(each["is_own"] for each in partitions) == [False, True]


def test_records_are_split_into_few_batches_that_the_topic_takes() -> None:
    for seed in range(200):
        random, contents = Random(seed), [None, b"x", b"x" * 300, b"x" * 600]
        count = random.randrange(1, 20)
        keys, values = (random.choices(contents, k=count) for _ in range(2))
        headers = [random.choice([(), (("ä" * 20, each),)]) for each in random.choices(contents, k=count)]
        records = RecordColumns(values, random.choice([None, keys]), random.choice([None, headers]), [*range(count)])
        found = [*split_records(records, 3000)]
        assert [number for each in found for number in each.timestamps] == [*range(count)], seed
        sizes = [
            len(encode_batch(0, each.values, keys=each.keys, headers=each.headers, timestamps=1)) for each in found
        ]
        assert max(sizes) <= 3000, seed
        for (first, one), (second, other) in pairwise(zip(found, sizes, strict=True)):
            assert one + other + 64 * (len(first) + len(second)) > 3000 - 128, f"{seed}: they would fit into one"


@pytest.mark.parametrize("is_large", [False, True])
def test_records_of_all_forms_are_counted_and_go_where_their_keys_belong(
    web: SharedWeb, name: str, is_large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large bodies are parsed in a thread."""
    monkeypatch.setattr("dafka.http.api.records.THREAD_BYTES", 0 if is_large else 2**20)
    target = f"/topics/{web.create(name, 3)}/records"
    keys = [None, "anne", "bob", "carl", "dora", None]
    body = json.dumps({"records": [{"key": key, "value": 1, "timestamp": 5} for key in keys]}).encode()
    offsets = web.ask("POST", target, body, Content_Type=REST).document["offsets"]
    keyless = offsets[0]["partition"]
    chosen = [keyless if key is None else log_of_key(f'"{key}"'.encode(), 3) for key in keys]
    places = [(log, chosen[:number].count(log)) for number, log in enumerate(chosen)]
    assert [(each["partition"], each["offset"]) for each in offsets] == places
    (offset,) = web.ask("POST", f"{target}?log=2", body.replace(b"}, {", b"},\n{"), Content_Type=REST).document[
        "offsets"
    ][-1:]
    assert (offset["partition"], offset["offset"]) == (2, chosen.count(2) + len(keys) - 1)
    web.ask("POST", target, b'{"value": "a"}\n{"value": "b"}', Content_Type=LINES)
    (placed,) = web.ask("POST", f"{target}?key=anne", b"one").document["offsets"]
    assert placed["log"] == log_of_key(b"anne", 3)
    assert {each["timestamp"] for each in lines_of(web.ask("GET", f"{target}?log=2&limit=5"))} == {5}
    counters = web.server.counters
    assert (counters.produced[name], counters.consumed[name]) == (2 * len(keys) + 3, 5)
    many = [web.ask("POST", target, b'{"records": [{"value": 1}]}', Content_Type=REST) for _ in range(20)]
    assert len({each.document["offsets"][0]["partition"] for each in many}) > 1, "bodies without keys are spread"


def test_a_large_record_is_refused_and_none_beside_it_is_published(web: SharedWeb, name: str) -> None:
    topic = web.create(name, max_message_bytes="1000")
    small, large = {"value": "a"}, {"value": "x" * 1000}
    body = "\n".join(json.dumps(each) for each in [small, large]).encode()
    answer = web.ask("POST", f"/topics/{topic}/records", body, Content_Type="application/x-ndjson")
    assert answer.code == "too_large"
    assert web.ask("GET", f"/topics/{topic}").document["record_count"] == 0
    body = "\n".join([json.dumps({"value": "x" * 100})] * 100).encode()
    answer = web.ask("POST", f"/topics/{topic}/records", body, Content_Type="application/x-ndjson")
    assert sum(each["count"] for each in answer.document["offsets"]) == 100


@pytest.mark.parametrize("is_made_again", [False, True])
async def test_a_topic_that_is_deleted_while_it_is_described_is_not_found(
    is_made_again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_web() as web:
        assert (await web.request("POST", "/topics", document={"name": "orders"})).status == 201
        broker = web.broker.broker
        measure = broker.node.inventory.log_bytes

        async def delete_and_measure(topic: str) -> list[int]:
            await broker.delete_topic(topic)
            if is_made_again:
                await broker.node.admin.create_topic(topic)
            return await measure(topic)

        monkeypatch.setattr(broker.node.inventory, "log_bytes", delete_and_measure)
        answer = await web.get("/topics/orders")
        assert (answer.status, answer.code) == (404, "topic_not_found")
