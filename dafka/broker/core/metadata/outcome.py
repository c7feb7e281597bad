"""What becomes of a command when it is applied."""

from __future__ import annotations

from typing import NamedTuple

from dafka.broker.core.error_codes import ErrorCode


class Outcome(NamedTuple):
    """What became of a command: NONE, or the error with its reason."""

    error: ErrorCode = ErrorCode.NONE
    reason: str = ""


DONE = Outcome()
"""The outcome of a command that has taken effect, now or before."""
