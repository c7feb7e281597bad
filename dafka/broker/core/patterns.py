"""Regular expressions for names, such as those of topics, in the syntax of RE2, which Kafka's brokers use, too.

RE2 takes time in proportion to the text, whatever the expression: no client can stop a broker with one.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

LENGTH_MAX = 1000
"""The largest length of a regular expression, in characters."""

_MEMORY_MAX = 2**20


class PatternError(ValueError):
    """A text is not a regular expression. The message says why."""


@lru_cache(maxsize=1024)
def compile_pattern(pattern: str) -> Any:
    """Return a compiled regular expression. Raise `PatternError` if the text is none, or too long."""
    import re2  # noqa: PLC0415 (only requests with a regular expression need it)

    if len(pattern) > LENGTH_MAX:
        raise PatternError(f"a regular expression has at most {LENGTH_MAX} characters, not {len(pattern)}")
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MEMORY_MAX
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0] if error.args else ""
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise PatternError(f"{pattern!r} is not a regular expression of RE2: {text}") from None


def find_matching(pattern: str, names: Iterable[str]) -> frozenset[str]:
    """Return the names that match a regular expression as a whole. Raise `PatternError` if it is none."""
    compiled = compile_pattern(pattern)
    return frozenset(name for name in names if compiled.fullmatch(name) is not None)
