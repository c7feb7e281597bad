"""Text for humans: names that are safe to print on a terminal, numbers of things, and times."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def counted(count: int, noun: str) -> str:
    """Return `1 record`, or `1,000 records`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def escape_unprintable(text: str) -> str:
    r"""Return a text with its line ends and control characters escaped, as in `\x1b`.

    A name that a peer chose can then neither end a line nor move the cursor of a terminal.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in text)


def parse_time(text: str) -> int:
    """Return the milliseconds since 1970 of a date, with or without a time of day, in ISO 8601; negative before 1970.

    It is UTC if it has no offset, as in the result of `format_time`. Raise `ValueError` if it is not such a time.
    """
    try:
        time = datetime.fromisoformat(text.strip())
        return ((time if time.tzinfo else time.replace(tzinfo=UTC)) - EPOCH) // timedelta(milliseconds=1)
    except OverflowError as error:
        raise ValueError(str(error)) from None


def format_time(time_ms: int, precision: str = "milliseconds") -> str:
    """Return a time in ISO 8601, UTC; a time outside the calendar stays a number of milliseconds since 1970.

    The precision is "milliseconds" or "seconds".
    """
    try:
        time = EPOCH + timedelta(milliseconds=time_ms)
    except OverflowError:
        return str(time_ms)
    return time.replace(tzinfo=None).isoformat(timespec=precision) + "Z"
