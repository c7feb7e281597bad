"""Start and wait for streaming queries, on machines of any load.

A test waits for an event, with `HANG_S` only as the limit after which something has hung. A busy machine needs minutes
for what a quiet one does in seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

HANG_S = 300
"""How long a wait may take, in seconds, before the test counts as hung. It is below the timeout of Spark's tests."""

_INITIALIZING = "Initializing sources"
_NO_WORKER = "Python worker failed to connect back"
"""Spark gives each query's Python process 10 seconds to start, which cannot be changed."""


def start_query(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Start a query, and again if its Python process took too long; return it once its source is running."""
    while True:
        query = start()
        while query.isActive and query.status["message"] == _INITIALIZING:
            time.sleep(0.02)
        error = query.exception()
        if error is None or _NO_WORKER not in str(error):
            return query


def finish_query(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Start a query that ends by itself, and wait for its end."""
    query = start_query(start)
    try:
        assert query.awaitTermination(HANG_S), f"the query does not end: {query.status}"
    finally:
        query.stop()
    return query
