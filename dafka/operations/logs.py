"""Log lines as objects: what happened by name, with its fields, by structlog.

Nodes log sentences to stdlib loggers (`dafka.store`), and lay name and fields beside them. The `dafka` command takes
`json_formatter`; a program with a structlog configuration of its own puts `add_event` into its `ProcessorFormatter`.
"""

from __future__ import annotations

import json
import logging

import structlog
from structlog.typing import EventDict, WrappedLogger

UNNAMED = "log"
"""The event of a line that is only a sentence: other libraries'."""


def add_event(_: WrappedLogger, __: str, event_dict: EventDict) -> EventDict:
    """A structlog processor: `event` is the name of what happened, `message` the sentence, and the fields stand beside.

    For lines that came through stdlib loggers.
    """
    record: logging.LogRecord | None = event_dict.get("_record")
    fields = getattr(record, "dafka", {"event": UNNAMED})
    return {**event_dict, "message": event_dict["event"], **fields}


def json_formatter() -> logging.Formatter:
    """Formats a line of any stdlib logger as one JSON object: `timestamp` (UTC), `level`, `logger`, `event`, `message`.

    A dafka node's lines have `role`, `node` and the event's fields besides; an exception stands in `exception`.
    """
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
            _in_order,
            structlog.processors.JSONRenderer(serializer=json.dumps),
        ],
    )


def _in_order(_: WrappedLogger, __: str, event_dict: EventDict) -> EventDict:
    """What every line has comes first."""
    first = ("timestamp", "level", "logger", "event", "role", "node", "message")
    return {**{name: event_dict[name] for name in first if name in event_dict}, **event_dict}
