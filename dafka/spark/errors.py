"""What is said of an error that came through Spark: one sentence, without the way it took through Java.

Spark hands a Python exception from a worker on as text, a traceback inside a message of its own, and most often wraps
that twice. The last error of dafka's in that text is what happened.
"""

from __future__ import annotations

import re

from dafka import errors
from dafka.errors import DafkaError, LocalError

_OURS = re.compile(r"^[\s|]*dafka\.errors\.(\w+): ([^\n]*)", re.MULTILINE)
_TRACEBACK = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t|+][^\n]*\n)*([^\n]+)")
_CONDITION = re.compile(r"^\[[A-Z0-9_.]+\] ")
_STATE = re.compile(r"\s*SQLSTATE: \w+.*$", re.DOTALL)
_SQL = re.compile(r"\n== SQL.*$", re.DOTALL)
_CALL = re.compile(r"^An error occurred while calling [^\n]*\n: ")
_JAVA_NAME = re.compile(r"^(?:[a-z_$][\w$]*\.)+[A-Z][\w$]*: ")


class InputChangedError(LocalError):
    """A task that is tried again has not the rows that an earlier attempt has published."""


class PublishingError(LocalError):
    """Stores did not tell what they hold, or did not acknowledge what a task has published.

    The message names the options to change.
    """


class RowError(LocalError):
    """A row that is no record. The message names its column and what would be right."""


def find_dafka_error(error: BaseException) -> tuple[type[DafkaError], str] | None:
    """The error of dafka's that Spark reports with this one: its kind, and its sentence; None where there is none."""
    if isinstance(error, DafkaError):
        return type(error), str(error)
    found = _OURS.findall(str(error))
    if not found:
        return None
    name, sentence = found[-1]
    kind = getattr(errors, name, DafkaError)
    return kind, _STATE.sub("", sentence).strip()


def summarize_error(error: BaseException) -> str:
    """One sentence for an error: dafka's own, else the Python error that a worker ended with, else Spark's message."""
    ours = find_dafka_error(error)
    if ours is not None:
        return ours[1]
    text = str(error)
    raised = _TRACEBACK.search(text)
    if raised is not None:
        return _STATE.sub("", raised[1]).strip()
    text = _SQL.sub("", _CALL.sub("", text)).strip()
    first, _, _ = _STATE.sub("", text).partition("\n\tat ")
    lines = _JAVA_NAME.sub("", first).split("\n\n")[0]
    return _CONDITION.sub("", " ".join(lines.split())) or type(error).__name__


def find_worker_traceback(error: BaseException) -> str | None:
    """The traceback of a user's own function that failed in a worker; None where that is not what happened."""
    text = str(error)
    start = text.find("Traceback (most recent call last):")
    if start < 0 or find_dafka_error(error) is not None:
        return None
    end = text.find("\n=== Streaming Query ===", start)
    return _STATE.sub("", text[start : end if end > 0 else None].partition("\n\tat ")[0]).rstrip()
