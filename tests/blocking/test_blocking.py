"""The API for plain threads, with real nodes."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
import trio

from dafka import Config, blocking, events
from dafka.errors import (
    StorageLostError,
    UnacknowledgedError,
    WrongContextError,
)
from tests.clients.each_style import EachStyle
from tests.clients.styles import BLOCKING
from tests.roles.helpers import contents

DEADLINE_S = 60


def test_a_call_whose_time_is_over_loses_no_record(config: Config) -> None:
    with blocking.open_consumer(["hello"], config) as consumer, blocking.open_producer("hello", config) as producer:
        received: list[bytes | None] = []
        sending = threading.Thread(target=lambda: [producer.send(value) for value in contents(0, 300)])
        sending.start()
        while len(received) < 300:
            try:
                received.append(consumer.next_record(timeout_s=0.0001).value)
            except TimeoutError as error:
                assert "within 0.0001 s" in str(error)  # noqa: PT017 (the other outcome is a record)
        sending.join()
        assert received == contents(0, 300)


def test_several_threads_share_a_producer(config: Config) -> None:
    with blocking.open_producer("hello", config) as producer, ThreadPoolExecutor(8) as threads:
        sequences = sorted(threads.map(producer.send, contents(0, 200)))
    assert sequences == [*range(200)]


def test_events_end_with_the_node(config: Config) -> None:
    found: list[object] = []
    consumer = blocking.open_consumer(["hello"], config)
    watcher = threading.Thread(target=lambda: found.extend(consumer.events))
    watcher.start()
    for event in consumer.events:
        if isinstance(event, events.PeerJoined):
            break
    consumer.wait_settled(timeout_s=DEADLINE_S)
    assert (consumer.unheard_towers(), consumer.health().unready, consumer.discarded()) == ((), "", {})
    consumer.close()
    watcher.join()
    assert any(isinstance(event, events.PeerJoined) for event in found)
    assert list(consumer.events) == found


def test_batches_of_several_threads_have_the_sequences_that_are_returned(config: Config) -> None:
    sent: dict[int, bytes] = {}

    def send(thread: int) -> None:
        for number in range(100):
            values = [b"%d %d %d" % (thread, number, each) for each in range(5000 if number == 50 else 5)]
            sent.update(zip(producer.send_many(values, timeout_s=DEADLINE_S), values, strict=True))

    with blocking.open_consumer(["hello"], config) as consumer:
        with blocking.open_producer("hello", config) as producer:
            threads = [threading.Thread(target=send, args=(number,)) for number in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        found: list[bytes | None] = []
        while len(found) < 3 * (99 * 5 + 5000):
            found += consumer.next_batch(timeout_s=DEADLINE_S).values
    assert dict(enumerate(found)) == sent


def hold(producer: blocking.Producer) -> Callable[[], None]:
    """Keep a producer from publishing until the returned function is called; a new partition does the same."""
    may_go_on = trio.Event()

    async def wait() -> None:
        async with producer._role._publishing:
            held.set()
            await may_go_on.wait()

    held = threading.Event()
    producer._hosted.start(wait)
    held.wait()
    return lambda: producer._hosted.thread.submit(may_go_on.set)


def test_batches_that_were_handed_over_are_waited_for(config: Config) -> None:
    with blocking.open_producer("hello", config) as producer:
        producer.wait_settled(timeout_s=DEADLINE_S)
        go_on = hold(producer)
        assert producer.send_many([b"1", b"2"]) == range(2)
        # The error names the time that was given, not what was left of it after a first wait.
        for timeout_s in (0.01, 1e-6):
            for wait in (partial(producer.send_many, [b"3"]), producer.wait_stored):
                with pytest.raises(TimeoutError) as caught:
                    wait(timeout_s=timeout_s)
                assert str(caught.value) == f"this has not ended within {timeout_s:g} s"
        go_on()
        producer.wait_stored(timeout_s=DEADLINE_S)
        statistics = producer.statistics()
        assert (statistics.records, statistics.unacknowledged) == (2, 0)
        go_on = hold(producer)
        assert producer.send_many([b"3"]) == range(2, 3)
        going_on = threading.Timer(0.1, go_on)  # while it is closed
        going_on.start()
    going_on.join()
    with blocking.open_consumer(["hello"], config) as consumer:
        assert [consumer.next_record(timeout_s=DEADLINE_S).value for _ in range(3)] == [b"1", b"2", b"3"]


def test_leaving_the_block_waits_for_acks_unless_it_is_left_by_an_exception(
    config: Config, capfd: pytest.CaptureFixture[str]
) -> None:
    alone = config.with_beacon(tower_sub=("tcp://127.0.0.1:1",), tower_pub=("tcp://127.0.0.1:1",)).with_producer(
        close_timeout_ms=200
    )
    producer = blocking.open_producer("hello", alone)
    producer.send(b"1")
    with pytest.raises(UnacknowledgedError):
        producer.close()
    producer.close()
    with pytest.raises(KeyError), blocking.open_producer("hello", alone) as producer:  # noqa: PT012
        producer.send(b"1")
        raise KeyError
    assert isinstance(producer._hosted.closed.exception(DEADLINE_S), UnacknowledgedError)
    assert capfd.readouterr().err.startswith("dafka: 1 record of topic hello is not stored: ")


def test_an_unclosed_node_warns_and_is_closed(config: Config) -> None:
    consumer = blocking.open_consumer(["hello"], config)
    hosted = consumer._hosted
    with pytest.warns(ResourceWarning, match="unclosed consumer"):  # noqa: PT031
        del consumer
        gc.collect()
    hosted.closed.result(DEADLINE_S)


def test_closing_in_one_thread_ends_the_wait_of_another(config: Config) -> None:
    consumer = blocking.open_consumer(["nothing"], config)
    caught: list[BaseException] = []

    def wait() -> None:
        try:
            consumer.next_record()
        except BaseException as error:
            caught.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    consumer.close()
    waiting.join()
    (error,) = caught
    assert isinstance(error, trio.ClosedResourceError)


def test_a_node_that_ends_by_itself_says_why(config: Config, tmp_path: Path) -> None:
    store = blocking.serve_store(config.with_store(storage=f"sqlite:{tmp_path}/s.db"))
    (tmp_path / "s.db").unlink()
    with pytest.raises(StorageLostError):
        list(store.events)
    with pytest.raises(StorageLostError):
        store.statistics()
    with pytest.raises(StorageLostError):
        store.close()


class _PublishingHandler(logging.Handler):
    def __init__(self, producer: blocking.Producer) -> None:
        super().__init__()
        self._producer = producer
        self.errors: list[BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._producer.send(record.getMessage().encode())
        except WrongContextError as error:
            self.errors.append(error)


def test_a_call_in_the_thread_of_trio_does_not_wait_for_itself(config: Config) -> None:
    with blocking.open_producer("logs", config) as producer:
        handler = _PublishingHandler(producer)
        logger = logging.getLogger("dafka")
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        try:
            with blocking.open_consumer(["hello"], config):
                pass
        finally:
            logger.removeHandler(handler)
            logger.setLevel(logging.NOTSET)
        assert "wait for itself" in str(handler.errors[0])


class TestAsInEachStyle(EachStyle):
    style = BLOCKING
