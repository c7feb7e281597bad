"""Waits for what a test needs to become true, where no event tells of it."""

from __future__ import annotations

import time
from collections.abc import Callable

import trio

DEADLINE_S = 60
"""The longest wait, in seconds. Machines that run tests can be slow."""


async def wait_until(is_true: Callable[[], bool], message: str = "", deadline_s: float = DEADLINE_S) -> None:
    """Wait until a condition is true; fail with the message if it does not become true."""
    with trio.move_on_after(deadline_s):
        while not is_true():  # noqa: ASYNC110 (no event is set)
            await trio.sleep(0.01)
        return
    raise AssertionError(message or f"the condition is not true after {deadline_s} s")


def poll_until(is_true: Callable[[], bool], deadline_s: float = DEADLINE_S) -> None:
    """Wait until a condition is true, in a test without Trio."""
    deadline = time.monotonic() + deadline_s
    while not is_true():
        assert time.monotonic() < deadline, f"the condition is not true after {deadline_s} s"
        time.sleep(0.02)
