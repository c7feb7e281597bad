"""Log lines as sentences."""

from __future__ import annotations

import logging


class SentenceFormatter(logging.Formatter):
    """One record, one line: what a peer chose, a topic's name say, can neither end it nor draw on a terminal."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (the base class's name)
        """See `logging.Formatter.formatMessage`."""
        record.message = printable(record.message)
        return super().formatMessage(record)


def printable(text: str) -> str:
    """With escapes in the place of line ends and control characters."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
