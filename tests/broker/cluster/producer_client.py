"""A producer of confluent-kafka, idempotent and with acks=all, that sends at a steady rate until SIGTERM.

    python -m tests.broker.cluster.producer_client '{"servers": …, "topic": …, …}'

It sends bursts of records to one log after another. The fields are those of `Options`.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
from confluent_kafka import KafkaError, KafkaException, Producer

from tests.broker.cluster.history import VALUE_BYTES_MIN, HistoryWriter, Runs, now, pack, unpack

READY = "producer is ready"

LIVES_STEP = 100
"""The numbers of one producer's lives differ by this: each has idempotence and records of its own."""

WAITING_MAX = 400_000
"""How many records may wait to be acknowledged."""

POLL_S = 0.005

QUICK = {
    "socket.timeout.ms": 2000,
    "request.timeout.ms": 1500,
    "topic.metadata.refresh.interval.ms": 1000,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "retry.backoff.ms": 50,
    "retry.backoff.max.ms": 200,
    "log_level": 3,
}
"""With these settings, a client notices soon that a broker is away, and asks another for the new leader."""


@attrs.frozen(kw_only=True)
class Options:
    """What a producer does."""

    servers: str
    topic: str
    logs: int
    number: int
    rate: float
    folder: str
    burst: int = 50
    value_bytes: int = 100
    compression: str = "lz4"
    flush_s: float = 120.0
    settings: dict[str, Any] = attrs.field(factory=dict)


class ProducerClient:
    """One process, which may be several producers, one after another."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._history = HistoryWriter(Path(options.folder), f"producer-{options.number}")
        self._acknowledged = Runs(lambda *run: self._history.add("ok", now(), *run, log=run[1]))
        self._unknown = Runs(lambda *run: self._history.add("unknown", now(), *run[:4], self._reason, log=run[1]))
        self._reason = ""
        self._lives = Path(options.folder) / f"producer-{options.number}.lives"
        self._number = self._next_number()
        self._next = [0] * options.logs
        self._padding = bytes(range(256)) * (options.value_bytes // 256 + 1)
        self._padding = self._padding[: max(options.value_bytes - VALUE_BYTES_MIN, 0)]
        self._waiting = 0
        self._fatal = ""
        self._is_ready = False
        self._producer = self._open()
        self.is_stopped = False

    def run(self) -> int:
        """Send until stopped, and return the number of records that remain unacknowledged."""
        options = self._options
        due, log = time.monotonic(), options.number
        while not self.is_stopped:
            self._poll(max(min(due - time.monotonic(), POLL_S), 0))
            while time.monotonic() >= due and not self.is_stopped:
                if self._waiting < WAITING_MAX:
                    self._send(log % options.logs)
                    log += 1
                due += options.burst / options.rate
                if time.monotonic() > due + 1:  # it has been stopped, or cannot keep up: do not hurry to make up for it
                    due = time.monotonic()
        deadline = time.monotonic() + options.flush_s
        while self._waiting and time.monotonic() < deadline:
            self._poll(0.05)
        self._close("it was stopped")
        return self._waiting

    def _next_number(self) -> int:
        """Return the number of the next life."""
        before = self._lives.stat().st_size if self._lives.exists() else 0
        with self._lives.open("a") as file:
            file.write(".")
        return self._options.number + LIVES_STEP * before

    def _open(self) -> Any:
        self._fatal = ""
        return Producer(
            {
                "bootstrap.servers": self._options.servers,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 20,
                "compression.type": self._options.compression,
                "message.timeout.ms": 0,
                "queue.buffering.max.messages": 2 * WAITING_MAX,
                "queue.buffering.max.kbytes": 2**20,
                "error_cb": self._noticed,
                **QUICK,
                **self._options.settings,
            }
        )

    def _send(self, log: int) -> None:
        """Send one burst to a log."""
        options, first = self._options, self._next[log]
        self._history.add("send", now(), self._number, log, first, options.burst, log=log)
        self._history.flush()
        self._next[log] = first + options.burst
        for number in range(first, first + options.burst):
            value = pack(self._number, log, number, self._padding)
            try:
                self._producer.produce(options.topic, value, partition=log, on_delivery=self._delivered)
            except KafkaException as error:
                self._fatal = str(error)
                return
            self._waiting += 1

    def _poll(self, seconds: float) -> None:
        try:
            self._producer.poll(seconds)
        except KafkaException as error:
            self._fatal = str(error)
        self._acknowledged.flush()
        self._unknown.flush()
        self._history.flush()
        if self._fatal:
            print(f"producer {self._number} gives up: {self._fatal}", flush=True)
            self._history.add("fatal", now(), self._number, self._fatal)
            self._close(self._fatal)
            self._number = self._next_number()
            self._next = [0] * self._options.logs
            self._producer = self._open()

    def _close(self, reason: str) -> None:
        """Give up what is not acknowledged."""
        self._reason = reason
        self._producer.purge()
        with suppress(KafkaException):
            self._producer.flush(1)
        self._acknowledged.flush()
        self._unknown.flush()
        self._history.flush()

    def _delivered(self, error: KafkaError | None, message: Any) -> None:
        record = unpack(message.value())
        assert record is not None
        if error is None:
            offset = message.offset()  # None if the broker had the record already, and did not say where
            self._acknowledged.add(record, -1 if offset is None else offset)
            self._waiting -= 1
            if not self._is_ready:
                self._is_ready = True
                print(READY, flush=True)
            return
        self._reason = self._reason or str(error)
        self._unknown.add(record, -1)
        if not self.is_stopped:
            self._waiting -= 1

    def _noticed(self, error: KafkaError) -> None:
        if error.fatal():
            self._fatal = str(error)
        elif error.code() == KafkaError._FATAL:
            self._fatal = str(self._producer)


def main() -> int:
    options = Options(**json.loads(sys.argv[1]))
    client = ProducerClient(options)

    def stop(*_: object) -> None:
        client.is_stopped = True

    signal.signal(signal.SIGTERM, stop)
    left = client.run()
    if left:
        print(f"{left} records remain unacknowledged", flush=True)
    return 3 if left else 0


if __name__ == "__main__":
    sys.exit(main())
