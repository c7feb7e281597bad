"""Log lines for operators: sentences, or JSON objects with the name and the fields of each event.

Nodes log sentences to loggers of the standard library (`dafka.store`). The name and the fields of the event are in
`record.dafka`. `json_formatter` and `add_event` need the extra `dafka[json-logs]`.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

from dafka.extras import require_extra
from dafka.text import escape_unprintable

if TYPE_CHECKING:
    from structlog.typing import EventDict, WrappedLogger

OTHER_EVENT = "log"
"""The event name of a line that is not an event of dafka, such as a line of another library."""


class SentenceFormatter(logging.Formatter):
    """A formatter that writes each record on one line: line ends and control characters are escaped."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (the base class's name)
        """See `logging.Formatter.formatMessage`."""
        record.message = escape_unprintable(record.message)
        return super().formatMessage(record)


def add_event(_: WrappedLogger, __: str, event_dict: EventDict) -> EventDict:
    """Add the name and the fields of dafka's event to a log line; a structlog processor.

    Use it in the `foreign_pre_chain` of a `structlog.stdlib.ProcessorFormatter`, which formats log records of the
    standard library. The sentence moves from `event` to `message`, `event` becomes the name of the event, and each
    field gets a key.
    """
    record: logging.LogRecord | None = event_dict.get("_record")
    fields = getattr(record, "dafka", {"event": OTHER_EVENT})
    return {**event_dict, "message": event_dict["event"], **fields}


def json_formatter() -> logging.Formatter:
    """Return a formatter that writes each record of any logger as a JSON object on one line.

    Every line has `timestamp` (UTC), `level`, `logger`, `event` and `message`. A line of a dafka node also has `role`,
    `node` and the fields of the event. A traceback is in `exception`.

    Returns:
        The formatter.

    Raises:
        MissingExtraError: The extra `dafka[json-logs]` is not installed.
    """
    with require_extra("json-logs", "JSON logging"):
        import structlog  # noqa: PLC0415 (optional, and slow to load)

    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            add_event,
        ],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            _order_keys,
            structlog.processors.JSONRenderer(serializer=json.dumps),
        ],
    )


def _order_keys(_: WrappedLogger, __: str, event_dict: EventDict) -> EventDict:
    """Put the keys that every line has first."""
    first = ("timestamp", "level", "logger", "event", "role", "node", "message")
    return {**{name: event_dict[name] for name in first if name in event_dict}, **event_dict}
