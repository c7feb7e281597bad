"""The API for plain threads, with real nodes."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest
import trio

from dafka import Config, blocking
from dafka.clients import hosted_node
from dafka.errors import UnacknowledgedError, WrongContextError
from tests.clients.each_hosted_style import EachHostedStyle, hold
from tests.clients.styles import BLOCKING

DEADLINE_S = 60


def test_an_error_names_the_time_that_was_given_and_not_what_was_left_of_it(config: Config) -> None:
    with blocking.open_producer("hello", config) as producer:
        producer.wait_settled(timeout_s=DEADLINE_S)
        go_on = hold(producer)
        assert producer.send_many([b"1", b"2"]) == range(2)
        for timeout_s in (0.01, 1e-6):
            for wait in (partial(producer.send_many, [b"3"]), producer.wait_stored):
                with pytest.raises(TimeoutError) as caught:
                    wait(timeout_s=timeout_s)
                assert str(caught.value) == f"this has not ended within {timeout_s:g} s"
            with producer._sending, pytest.raises(TimeoutError, match=f"^this has not ended within {timeout_s:g} s$"):
                producer.send(b"3", timeout_s=timeout_s)  # another thread is sending
        go_on()
        assert producer.send(b"3", timeout_s=DEADLINE_S) == 2


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


class _InterruptedFuture(Future[Any]):
    """Ctrl-C interrupts the first wait for it."""

    was_interrupted = False

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if not self.was_interrupted:
            self.was_interrupted = True
            raise KeyboardInterrupt
        return super().exception(timeout)


def test_a_call_that_is_interrupted_has_ended_before_the_next_one_can_begin(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []

    async def work(number: int) -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(0.05)
            ended.append(number)

    with blocking.open_consumer(["nothing"], config) as consumer, monkeypatch.context() as patch:
        patch.setattr(hosted_node, "Future", _InterruptedFuture)
        for number in range(3):
            with pytest.raises(KeyboardInterrupt):
                consumer._wait(DEADLINE_S, partial(work, number))
            assert ended == [*range(number + 1)]


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


class TestAsInEachStyle(EachHostedStyle):
    style = BLOCKING
