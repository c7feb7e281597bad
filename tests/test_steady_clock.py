"""A clock that shows the time of the wall clock, and passes as time does when that one jumps."""

from __future__ import annotations

import time

import pytest

from dafka.steady_clock import steady_now_ms


@pytest.mark.parametrize("jump_ns", [0, 10**14, -(10**14)])
def test_a_jump_of_the_wall_clock_is_not_shown(jump_ns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    before, begun_ns, read = steady_now_ms(), time.monotonic_ns(), time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: read() + jump_ns)
    monkeypatch.setattr(time, "time", lambda: (read() + jump_ns) / 1e9)
    time.sleep(0.01)
    passed_ms = steady_now_ms() - before
    assert 9 <= passed_ms <= (time.monotonic_ns() - begun_ns) // 1_000_000 + 1
