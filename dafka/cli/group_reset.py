"""Where a group continues after `dafka group reset`."""

from __future__ import annotations

import attrs

from dafka.kafka.protocol.constants import EARLIEST, LATEST
from dafka.text import parse_time


@attrs.frozen
class Target:
    """Where a group is reset to: a time as ListOffsets takes it, or an offset."""

    time_ms: int | None = None
    offset: int = 0


def parse_target(text: str) -> Target:
    """Return where a group is reset to; raise `ValueError` with what was expected."""
    if text in {"earliest", "latest"}:
        return Target(time_ms=EARLIEST if text == "earliest" else LATEST)
    if text.isascii() and text.isdecimal():
        return Target(offset=int(text))
    try:
        return Target(time_ms=max(parse_time(text), 0))
    except ValueError:
        expected = "expected earliest, latest, an offset, or a time such as 2026-11-23T07:00Z"
        raise ValueError(f"{expected}, not {text!r}") from None
