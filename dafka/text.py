"""Text for people: names that are safe to show on a terminal, and times."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def escape_unprintable(text: str) -> str:
    r"""Return a text with its line ends and control characters escaped, as in `\x1b`.

    A name that a peer chose can then neither end a line nor move the cursor of a terminal.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in text)


def format_time(time_ms: int) -> str:
    """Return a time in ISO 8601, UTC; a time outside the calendar stays a number of milliseconds since 1970."""
    try:
        time = EPOCH + timedelta(milliseconds=time_ms)
    except OverflowError:
        return str(time_ms)
    return time.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"
