"""Virtual time: what happens next, in an order that a seed determines."""

import heapq
import itertools
from collections.abc import Callable


class ViolationError(AssertionError):
    """A promise that a coordinator has broken."""


class Events:
    """Calls to make at virtual times, in milliseconds."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.count = 0
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._ticket = itertools.count()

    def call_in(self, delay_ms: int, function: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (self.now_ms + delay_ms, next(self._ticket), function))

    def run_until(self, end_ms: int, advance: Callable[[], int | None]) -> None:
        """Run everything until a time.

        Args:
            end_ms: The time.
            advance: Is called when time has passed; returns when to call it again at the latest.
        """
        while True:
            deadline_ms = advance()
            next_ms = min(
                (each for each in (deadline_ms, self._heap[0][0] if self._heap else None) if each is not None),
                default=end_ms + 1,
            )
            if next_ms > end_ms:
                self.now_ms = end_ms
                return
            self.now_ms = max(self.now_ms, next_ms)
            while self._heap and self._heap[0][0] <= self.now_ms:
                self.count += 1
                heapq.heappop(self._heap)[2]()
