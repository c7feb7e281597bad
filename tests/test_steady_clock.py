"""A clock that shows the time of the wall clock, and passes as time does when that one jumps."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

import dafka
from dafka.steady_clock import steady_now_ms

PACKAGE = Path(dafka.__file__).parent


@pytest.mark.parametrize("jump_ns", [0, 10**14, -(10**14)])
def test_a_jump_of_the_wall_clock_is_not_shown(jump_ns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    before, begun_ns, read = steady_now_ms(), time.monotonic_ns(), time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: read() + jump_ns)
    monkeypatch.setattr(time, "time", lambda: (read() + jump_ns) / 1e9)
    time.sleep(0.01)
    passed_ms = steady_now_ms() - before
    assert 9 <= passed_ms <= (time.monotonic_ns() - begun_ns) // 1_000_000 + 1


WALL_CLOCK = {
    "broker/access/credentials.py": "a user sets when a token expires",
    "broker/access/oauth.py": "a token says when it expires",
    "broker/coordinator/coordinator_log.py": "timestamps of records",
    "broker/log/compaction.py": "ages of stored records",
    "broker/log/reader.py": "ages of stored records",
    "broker/log/retention.py": "ages of stored records",
    "broker/metadata/controller.py": "when a command was ordered",
    "broker/metadata/recovery.py": "timestamps of records",
    "broker/replication/leases.py": "compared with the clocks of other brokers, so that a wrong one deletes nothing",
    "http/api/overview.py": "shown",
    "http/api/queues.py": "timestamps of records",
    "http/api/records.py": "timestamps of records",
    "http/forwarding/broker_link.py": "shown",
    "http/server/http_server.py": "shown",
    "http/server/storage_state.py": "shown",
    "http/websocket/session.py": "timestamps of records",
    "kafka/apis/quorum.py": "shown",
    "kafka/server/sasl.py": "a token says when it expires; the wait for that follows the steady clock",
}
"""The files of a broker and its servers that read the wall clock, with the reason. It may jump: no wait follows it."""


def test_nothing_in_a_broker_waits_by_the_wall_clock() -> None:
    found = {
        path.relative_to(PACKAGE).as_posix()
        for folder in ("broker", "kafka", "http", "http1", "protocol", "wire", "transport")
        for path in (PACKAGE / folder).rglob("*.py")
        if re.search(r"(?<!_)now_ms\(|\btime\.time(_ns)?\(|datetime\.now\(", path.read_text(encoding="utf-8"))
    }
    assert found == WALL_CLOCK.keys()
