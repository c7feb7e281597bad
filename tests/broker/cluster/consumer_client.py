"""A member of a group of confluent-kafka that reads, and commits where it is every second, until SIGTERM.

    python -m tests.broker.cluster.consumer_client '{"servers": …, "topic": …, …}'

It begins each log that it is assigned where the group has committed to, so that the history tells of lost commits.

Calls of librdkafka that wait for a coordinator may never return when that moves (confluent-kafka-python, issue 1801),
and a member that waits for them reads no more. So each gets its own thread, and is given up after a while.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from threading import Thread
from typing import Any

import attrs
from confluent_kafka import OFFSET_INVALID, Consumer, KafkaException, TopicPartition

from tests.broker.cluster.history import HistoryWriter, Runs, now, unpack
from tests.broker.cluster.producer_client import QUICK

READY = "consumer is ready"

COMMIT_S = 1.0
BATCH = 5000

ANSWER_S = 10.0
"""How long a commit may take. The requests of one time out after two seconds."""

CLOSE_S = 20.0
"""How long closing may take."""


@attrs.frozen(kw_only=True)
class Options:
    """What a consumer does."""

    servers: str
    topic: str
    group: str
    member: str
    folder: str
    names_epochs: bool = False
    settings: dict[str, Any] = attrs.field(factory=dict)


class ConsumerClient:
    """A member."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._history = HistoryWriter(Path(options.folder), options.member)
        self._runs = Runs(self._write)
        self._positions: dict[int, tuple[int, int | None]] = {}
        self._committed: dict[int, tuple[int, int | None]] = {}
        self._is_ready = False
        self.is_stopped = False
        self._consumer = Consumer(
            {
                "bootstrap.servers": options.servers,
                "group.id": options.group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 500,
                "max.poll.interval.ms": 120_000,
                "fetch.wait.max.ms": 100,
                **{name: value for name, value in QUICK.items() if name in _OF_CONSUMERS},
                **options.settings,
            }
        )

    def run(self) -> None:
        """Read until stopped."""
        self._consumer.subscribe([self._options.topic], on_assign=self._assign, on_revoke=self._revoke)
        due = time.monotonic() + COMMIT_S
        while not self.is_stopped:
            for message in self._consumer.consume(BATCH, 0.1):
                self._take(message)
            self._runs.flush()
            self._history.flush()
            if time.monotonic() >= due:
                self._commit()
                due = time.monotonic() + COMMIT_S
        self._commit()
        self._history.flush()
        try:
            _call(self._consumer.close, CLOSE_S)
        except TimeoutError:
            self._history.add("note", now(), self._options.member, f"not closed after {CLOSE_S:.0f} s")
        self._history.flush()

    def _take(self, message: Any) -> None:
        if message.error() is not None:
            self._history.add("note", now(), self._options.member, str(message.error()))
            return
        log, offset = message.partition(), message.offset()
        record = unpack(message.value())
        if record is None or record[1] != log:
            text = f"the value is {message.value()!r:.80}"
            self._history.add("bad", now(), self._options.member, log, offset, text, log=log)
        else:
            self._runs.add(record, offset)
        self._positions[log] = offset + 1, message.leader_epoch()

    def _write(self, producer: int, log: int, first: int, count: int, offset: int) -> None:
        self._history.add("read", now(), self._options.member, log, offset, producer, first, count, log=log)

    def _commit(self) -> None:
        # An offset that is read again in another branch is another position.
        due = {log: each for log, each in self._positions.items() if self._committed.get(log) != each}
        offsets = {log: offset for log, (offset, _) in due.items()}
        if not offsets:
            return
        begun = now()
        self._history.add("note", begun, self._options.member, f"commits {offsets}")
        self._record_commit(begun, offsets, is_done=False)  # it may be done although no answer comes
        self._history.flush()
        topic = self._options.topic
        given = [
            TopicPartition(topic, log, offset, leader_epoch=self._told_epoch(log, epoch))
            for log, (offset, epoch) in due.items()
        ]
        try:
            answered = _call(lambda: self._consumer.commit(offsets=given, asynchronous=False), ANSWER_S)
        except TimeoutError:
            self._history.add("note", now(), self._options.member, f"no answer to a commit in {ANSWER_S:.0f} s")
            return
        except KafkaException as error:
            self._history.add("note", now(), self._options.member, f"not committed: {error}")
            return
        done = {each.partition: offsets[each.partition] for each in answered if each.error is None}
        self._record_commit(begun, done, is_done=True)
        self._committed.update((log, due[log]) for log in done)

    def _told_epoch(self, log: int, epoch: int | None) -> int:
        """Return the leader epoch to commit; in half of the logs none, as simple clients do, unless it is needed."""
        is_told = log % 2 == 1 or self._options.names_epochs
        return -1 if epoch is None or not is_told else epoch

    def _record_commit(self, begun: float, offsets: dict[int, int], *, is_done: bool) -> None:
        group, member = self._options.group, self._options.member
        for log, offset in offsets.items():
            self._history.add("commit", begun, now(), group, member, log, is_done, offset, log=log)

    def _assign(self, consumer: Any, partitions: list[Any]) -> None:
        """Begin at the committed offsets, which are asked for until they are told."""
        begun = now()
        while True:
            try:
                found = consumer.committed(partitions, timeout=5)
            except KafkaException as error:
                self._history.add("note", now(), self._options.member, f"committed offsets are not told: {error}")
                self._history.flush()
                if self.is_stopped:
                    return
                continue
            if all(each.error is None for each in found):
                break
            time.sleep(0.05)
        self._positions.clear()
        self._committed.clear()
        for each in found:
            offset = -1 if each.offset == OFFSET_INVALID else each.offset
            group, member, log = self._options.group, self._options.member, each.partition
            self._history.add("assign", begun, now(), group, member, log, offset, log=log)
            each.offset = max(offset, 0)
        self._history.flush()
        consumer.assign(found)
        if not self._is_ready:
            self._is_ready = True
            print(READY, flush=True)

    def _revoke(self, consumer: Any, partitions: list[Any]) -> None:
        self._runs.flush()
        self._commit()
        self._positions.clear()
        self._history.flush()


def _call(function: Callable[[], Any], limit_s: float) -> Any:
    """Return what a function returns. Raises `TimeoutError` if it has not returned in time; it may return later."""
    found: Future[Any] = Future()

    def run() -> None:
        try:
            found.set_result(function())
        except BaseException as error:
            found.set_exception(error)

    Thread(target=run, daemon=True).start()
    return found.result(limit_s)


_OF_CONSUMERS = {
    "socket.timeout.ms",
    "topic.metadata.refresh.interval.ms",
    "reconnect.backoff.ms",
    "reconnect.backoff.max.ms",
    "log_level",
}


def main() -> int:
    faulthandler.register(signal.SIGUSR1)
    client = ConsumerClient(Options(**json.loads(sys.argv[1])))

    def stop(*_: object) -> None:
        client.is_stopped = True

    signal.signal(signal.SIGTERM, stop)
    client.run()
    return 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # without waiting for calls that were given up
