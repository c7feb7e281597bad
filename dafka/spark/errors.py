"""Errors of publishing tasks, and one-sentence summaries of errors that Spark has passed on.

Spark passes on a worker's Python exception as text: a traceback inside a message, usually wrapped twice. The last dafka
error in that text is the cause.
"""

from __future__ import annotations

import re

from dafka import errors
from dafka.errors import DafkaError, LocalError

_DAFKA_ERROR = re.compile(r"^[\s|]*dafka\.(?:spark\.)?errors\.(\w+): ([^\n]*)", re.MULTILINE)
_TRACEBACK = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t|+][^\n]*\n)*([^\n]+)")
_CONDITION = re.compile(r"^\[[A-Z0-9_.]+\] ")
_SQL_STATE = re.compile(r"\s*SQLSTATE: \w+.*$", re.DOTALL)
_SQL_TEXT = re.compile(r"\n== SQL.*$", re.DOTALL)
_PY4J_CALL = re.compile(r"^An error occurred while calling [^\n]*\n: ")
_JAVA_CLASS = re.compile(r"^(?:[a-z_$][\w$]*\.)+[A-Z][\w$]*: ")


class InputChangedError(LocalError):
    """A retried task has other rows than an earlier attempt has published.

    The query is not deterministic: persist its result before writing it.
    """


class PublishingError(LocalError):
    """The stores did not answer, or did not acknowledge a task's records, in time.

    The message names the options to change.
    """


class RowError(LocalError):
    """A row cannot become a record. The message names the column and the requirement."""


def find_dafka_error(error: BaseException) -> tuple[type[DafkaError], str] | None:
    """Return the class and the message of the dafka error that `error` reports, or None if there is none."""
    if isinstance(error, DafkaError):
        return type(error), str(error)
    found = _DAFKA_ERROR.findall(str(error))
    if not found:
        return None
    name, sentence = found[-1]
    kind = getattr(errors, name, None) or globals().get(name, DafkaError)
    return kind, _SQL_STATE.sub("", sentence).strip()


def summarize_error(error: BaseException) -> str:
    """Return one sentence for an error.

    It is the message of the dafka error, or else the last line of the worker's traceback, or else Spark's message
    without its error class, SQL text and Java frames.
    """
    ours = find_dafka_error(error)
    if ours is not None:
        return ours[1]
    text = str(error)
    raised = _TRACEBACK.search(text)
    if raised is not None:
        return _SQL_STATE.sub("", raised[1]).strip()
    text = _SQL_TEXT.sub("", _PY4J_CALL.sub("", text)).strip()
    first, _, _ = _SQL_STATE.sub("", text).partition("\n\tat ")
    lines = _JAVA_CLASS.sub("", first).split("\n\n")[0]
    return _CONDITION.sub("", " ".join(lines.split())) or type(error).__name__


def find_worker_traceback(error: BaseException) -> str | None:
    """Return the traceback of a user's function that failed in a worker, or None if that is not the cause."""
    text = str(error)
    start = text.find("Traceback (most recent call last):")
    if start < 0 or find_dafka_error(error) is not None:
        return None
    end = text.find("\n=== Streaming Query ===", start)
    return _SQL_STATE.sub("", text[start : end if end > 0 else None].partition("\n\tat ")[0]).rstrip()
