"""A reader of confluent-kafka without a group. It asks for the end of one log after another, or reads whole logs.

    python -m tests.broker.cluster.reader_client '{"servers": …, "topic": …, "logs": …, "folder": …}'

Without `is_whole`, it reads the last records of a log to its end, with a fetch that begins after the time it notes, and
asks for the end, until SIGTERM. With it, it reads every log from its first record to its end once, and ends.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

import attrs
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tests.broker.cluster.consumer_client import _OF_CONSUMERS
from tests.broker.cluster.history import HistoryWriter, Runs, now, unpack
from tests.broker.cluster.producer_client import QUICK

TRUNCATED = 3
"""The exit status if a log went on in another branch than the one that was being read."""

READY = "reader is ready"

TAIL = 100
"""How many of the last records are read each time."""

READ_S = 5.0
"""How long no record may come while a log is read to its end, before that is given up."""

PAUSE_S = 0.05
BATCH = 10_000


@attrs.frozen(kw_only=True)
class Options:
    """What a reader does."""

    servers: str
    topic: str
    logs: int
    folder: str
    name: str = "reader"
    is_whole: bool = False
    whole_s: float = 60.0
    settings: dict[str, Any] = attrs.field(factory=dict)


class ReaderClient:
    """A reader."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._history = HistoryWriter(Path(options.folder), options.name)
        self._runs = Runs(self._write)
        self._ends = [0] * options.logs
        self._is_truncated = False
        self.is_stopped = False
        self._consumer = Consumer(
            {
                "bootstrap.servers": options.servers,
                "group.id": options.name,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 20,
                **{name: value for name, value in QUICK.items() if name in _OF_CONSUMERS},
                **options.settings,
            }
        )

    def watch(self) -> None:
        """Ask for the ends of all logs in turn until stopped."""
        print(READY, flush=True)
        while not self.is_stopped:
            for log in range(self._options.logs):
                if self.is_stopped:
                    break
                self._ask_end(log)
                self._read(log, max(self._ends[log] - TAIL, 0), READ_S)
                time.sleep(PAUSE_S)
        self._consumer.close()

    def read_all(self) -> int:
        """Read every log once, and return 0 if each was read to its end, `TRUNCATED`, or 1."""
        print(READY, flush=True)
        done = [self._read(log, 0, self._options.whole_s) for log in range(self._options.logs)]
        self._consumer.close()
        return TRUNCATED if self._is_truncated else 0 if all(done) else 1

    def _ask_end(self, log: int) -> None:
        begun = now()
        try:
            partition = TopicPartition(self._options.topic, log)
            found = self._consumer.get_watermark_offsets(partition, timeout=2, cached=False)
        except KafkaException as error:
            self._history.add("note", now(), self._options.name, f"the end of log {log} is not told: {error}")
            return
        if found is not None:
            self._history.add("end", begun, now(), self._options.name, log, found[1], log=log)

    def _read(self, log: int, offset: int, limit_s: float) -> bool:
        """Read a log to its end, and return whether it was reached in time."""
        begun = now()
        self._consumer.assign([TopicPartition(self._options.topic, log, offset)])
        end: int | None = None
        is_done = False
        deadline = begun + limit_s
        while not (is_done or self.is_stopped or self._is_truncated) and now() < deadline:
            for message in self._consumer.consume(BATCH, 0.02):
                end = self._take(log, message)
                if message.error() is None:
                    deadline = now() + limit_s
            is_done = end is not None and (not self._options.is_whole or self._is_end(log, end))
        if is_done:
            self._runs.flush()
            self._history.add("end", begun, now(), self._options.name, log, end, log=log)
            self._ends[log] = end or 0
        self._consumer.unassign()
        self._runs.flush()
        self._history.flush()
        return is_done

    def _take(self, log: int, message: Any) -> int | None:
        """Take a message, and return where the log ends if it says so."""
        offset, error = message.offset(), message.error()
        if error is not None and error.code() == KafkaError._PARTITION_EOF:
            return int(offset)
        if error is not None:
            self._history.add("note", now(), self._options.name, f"log {log}: {error}")
            self._ends[log] = 0
            self._is_truncated = self._options.is_whole and error.code() == KafkaError._AUTO_OFFSET_RESET
            return None
        record = unpack(message.value())
        if record is None or record[1] != log:
            text = f"the value is {message.value()!r:.80}"
            self._history.add("bad", now(), self._options.name, log, offset, text, log=log)
        else:
            self._runs.add(record, offset)
        return None

    def _is_end(self, log: int, offset: int) -> bool:
        """Ask whether a log ends here: a new leader may know later what all replicas hold."""
        try:
            found = self._consumer.get_watermark_offsets(
                TopicPartition(self._options.topic, log), timeout=5, cached=False
            )
        except KafkaException:
            return False
        return found is not None and found[1] == offset

    def _write(self, producer: int, log: int, first: int, count: int, offset: int) -> None:
        self._history.add("read", now(), self._options.name, log, offset, producer, first, count, log=log)


def main() -> int:
    options = Options(**json.loads(sys.argv[1]))
    client = ReaderClient(options)

    def stop(*_: object) -> None:
        client.is_stopped = True

    signal.signal(signal.SIGTERM, stop)
    if options.is_whole:
        return client.read_all()
    client.watch()
    return 0


if __name__ == "__main__":
    sys.exit(main())
