"""Publishing for HTTP and WebSocket, and reading again what was published."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import trio

from dafka import Config
from dafka.batches import RecordColumns, encode_batch
from dafka.broker.broker import Broker
from dafka.broker.core.log.log import Log
from dafka.broker.core.log.partitioner import log_of_key
from dafka.http.logs.local_logs import LocalLogs
from dafka.http.logs.log_access import find_logs
from dafka.http.logs.publishing import ProducerSequence, Published, Publisher
from dafka.http.server.errors import WebError
from dafka.packed_bytes import Repeated
from tests.http.brokers import STORAGES, open_broker_service


@pytest.fixture(params=STORAGES, ids=["memory", "sqlite", "filelog"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(request.param).format(tmp_path)


def texts(*values: str, keys: Sequence[str | None] | None = None) -> RecordColumns:
    encoded = None if keys is None else [None if key is None else key.encode() for key in keys]
    return RecordColumns([value.encode() for value in values], encoded, None, Repeated(5, len(values)))


async def values_of(broker: Broker, log: Log) -> list[str]:
    found = []
    offset: int = log.index.start_offset
    while (read := await LocalLogs(broker).read(log, offset)).next_offset > offset:
        found += [str(each["value"]) for each in read.objects()]
        offset = read.next_offset
    return found


async def test_published_records_are_read_in_order(storage: str) -> None:
    async with open_broker_service(storage) as broker:
        publisher = Publisher(broker, LocalLogs(broker))
        assert await publisher.publish("orders", texts("a", "b")) == [Published(0, 0, 2)]
        assert await publisher.publish("orders", texts("c"), log=0) == [Published(0, 2, 1)]
        (log,) = find_logs(broker, "orders")
        assert await values_of(broker, log) == ["a", "b", "c"]


async def test_records_go_to_the_logs_of_their_keys() -> None:
    async with open_broker_service() as broker:
        broker.node.create_topic("orders", 3)
        publisher = Publisher(broker, LocalLogs(broker))
        keys = [f"key {number}" for number in range(20)]
        published = await publisher.publish("orders", texts(*keys, keys=keys))
        assert sum(each.count for each in published) == 20
        for log in find_logs(broker, "orders"):
            expected = [key for key in keys if log_of_key(key.encode(), 3) == log.number]
            assert expected
            assert await values_of(broker, log) == expected


async def test_records_without_key_go_to_all_logs_in_turn() -> None:
    async with open_broker_service() as broker:
        broker.node.create_topic("orders", 3)
        publisher = Publisher(broker, LocalLogs(broker))
        published = [await publisher.publish("orders", texts("a", "b")) for _ in range(6)]
        assert [[(each.log, each.count) for each in parts] for parts in published] == [
            [(number % 3, 2)] for number in range(6)
        ]


async def test_keyless_records_beside_others_stay_together() -> None:
    async with open_broker_service() as broker:
        broker.node.create_topic("orders", 2)
        published = await Publisher(broker, LocalLogs(broker)).publish(
            "orders", texts("a", "b", "c", keys=[None, "k", None])
        )
        assert sum(each.count for each in published) == 3


async def test_what_a_producer_sends_again_is_appended_once(storage: str) -> None:
    async with open_broker_service(storage) as broker:
        publisher = Publisher(broker, LocalLogs(broker))
        first = publisher.begin("orders", texts("a", "b"), producer=ProducerSequence(7, 0, 0))
        again = publisher.begin("orders", texts("a", "b"), producer=ProducerSequence(7, 0, 0))
        assert await again.wait() == await first.wait() == [Published(0, 0, 2)]
        late = [publisher.begin("orders", texts("x"), producer=ProducerSequence(7, 0, 2 + each)) for each in range(6)]
        for each in late:
            await each.wait()
        forgotten = publisher.begin("orders", texts("a", "b"), producer=ProducerSequence(7, 0, 0))
        assert await forgotten.wait() == [Published(0, None, 2)]
        (log,) = find_logs(broker, "orders")
        assert await values_of(broker, log) == ["a", "b", *"xxxxxx"]


async def test_a_producer_cannot_leave_records_out() -> None:
    async with open_broker_service() as broker:
        publisher = Publisher(broker, LocalLogs(broker))
        publisher.begin("orders", texts("a"), producer=ProducerSequence(7, 1, 0))
        with pytest.raises(WebError, match="records before these are missing") as caught:
            publisher.begin("orders", texts("c"), producer=ProducerSequence(7, 1, 2))
        assert caught.value.code == "conflict"
        with pytest.raises(WebError, match="the producer has a later epoch"):
            publisher.begin("orders", texts("a"), producer=ProducerSequence(7, 0, 1))


async def test_a_producer_with_an_id_names_the_log() -> None:
    async with open_broker_service() as broker:
        broker.node.create_topic("orders", 2)
        publisher = Publisher(broker, LocalLogs(broker))
        with pytest.raises(WebError, match="must name theirs") as caught:
            publisher.begin("orders", texts("a"), producer=ProducerSequence(7, 0, 0))
        assert caught.value.code == "bad_request"
        assert await publisher.begin("orders", texts("a"), log=1, producer=ProducerSequence(7, 0, 0)).wait() == [
            Published(1, 0, 1)
        ]


async def test_batches_are_appended_as_they_are(storage: str) -> None:
    async with open_broker_service(storage) as broker:
        publisher = Publisher(broker, LocalLogs(broker))
        batches = [encode_batch(0, [b"a", b"b"], timestamps=5), encode_batch(0, [b"c"], timestamps=6)]
        publication = await publisher.begin_batches("orders", 0, b"".join(batches), "127.0.0.1")
        assert await publication.wait() == [Published(0, 0, 3)]
        (log,) = find_logs(broker, "orders")
        assert await values_of(broker, log) == ["a", "b", "c"]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"garbage",
        encode_batch(0, [b"a"], timestamps=5)[:-1],
        encode_batch(0, [b"a"], timestamps=5)[:-1] + b"x",
        encode_batch(0, [b"a"], timestamps=5, producer_id=5, producer_epoch=0, base_sequence=0, is_transactional=True),
        encode_batch(0, [b"a"], timestamps=5, producer_id=5, producer_epoch=0, is_control=True),
    ],
)
async def test_batches_that_are_none_are_refused(data: bytes) -> None:
    async with open_broker_service() as broker:
        with pytest.raises(WebError) as caught:
            await Publisher(broker, LocalLogs(broker)).begin_batches("orders", 0, data, "127.0.0.1")
        assert caught.value.code == "bad_request"
        assert find_logs(broker, "orders")[0].high_watermark == 0


async def test_what_does_not_exist_is_refused() -> None:
    async with open_broker_service(config=Config().with_kafka(auto_create_topics="off")) as broker:
        publisher = Publisher(broker, LocalLogs(broker))
        with pytest.raises(WebError, match="there is no topic 'orders'"):
            publisher.begin("orders", texts("a"))
        broker.node.create_topic("orders", 2)
        with pytest.raises(WebError, match="the topic 'orders' has the logs 0 to 1, and not 2"):
            publisher.begin("orders", texts("a"), log=2)


async def test_topic_with_an_impossible_name_is_refused() -> None:
    async with open_broker_service() as broker:
        with pytest.raises(WebError) as caught:
            Publisher(broker, LocalLogs(broker)).begin("$logs", texts("a"))
        assert caught.value.code == "bad_request"


async def test_records_that_are_too_large_are_refused_whole() -> None:
    async with open_broker_service() as broker:
        broker.node.create_topic("orders", 2, {"max.message.bytes": "200"})
        publisher = Publisher(broker, LocalLogs(broker))
        keys = ["a", "b", "c", "d", "e"]
        with pytest.raises(WebError, match="expected at most 200 bytes of records") as caught:
            publisher.begin("orders", texts("small", "small", "small", "small", "l" * 300, keys=keys))
        assert caught.value.code == "too_large"
        await publisher.publish("orders", texts("small"))
        assert sum(log.high_watermark for log in find_logs(broker, "orders")) == 1


async def test_topic_that_is_deleted_before_records_are_durable_is_said() -> None:
    async with open_broker_service() as broker:
        publisher = Publisher(broker, LocalLogs(broker))
        await publisher.publish("orders", texts("a"))
        producer = ProducerSequence(7, 0, 0)
        publications = [publisher.begin("orders", texts("b"), producer=producer) for _ in range(2)]
        await broker.node.delete_topic("orders")
        for publication in publications:
            with trio.fail_after(30), pytest.raises(WebError, match="there is no topic 'orders'"):
                await publication.wait()
