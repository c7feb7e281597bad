"""Spark's Python workers: processes that `pyspark.daemon` forks, and in which the data source runs."""

from __future__ import annotations

import sys
from types import SimpleNamespace

_DAEMON = "pyspark.daemon"


def hide_closed_connections() -> None:
    """Make a worker end without a traceback if Spark has closed its connection.

    Spark closes the connection when it has the result, or does not need it. The daemon then prints a traceback of
    `BrokenPipeError`, although nothing has failed. It prints other exceptions as before. In a process that is not a
    worker, this changes nothing.
    """
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is None or spec.name != _DAEMON or isinstance(main.__dict__["traceback"], SimpleNamespace):
        return
    traceback = main.__dict__["traceback"]

    def print_exc() -> None:
        if not isinstance(sys.exception(), BrokenPipeError):
            traceback.print_exc()

    # Replaces only the daemon's name, not the module that other code uses.
    main.__dict__["traceback"] = SimpleNamespace(print_exc=print_exc, format_exc=traceback.format_exc)
