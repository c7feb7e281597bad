"""Random histories by number: a test that runs once for each of many seeds, and says which of them has failed."""

from __future__ import annotations

from collections.abc import Callable, Iterable


def each_seed(seeds: int | Iterable[int]) -> Callable[[Callable[[int], None]], Callable[[], None]]:
    """Run a test with some seeds, or as many from 0 on. It costs far less than as many tests of their own."""
    chosen = range(seeds) if isinstance(seeds, int) else [*seeds]

    def decorate(test: Callable[[int], None]) -> Callable[[], None]:
        def run() -> None:
            for seed in chosen:
                try:
                    test(seed)
                except BaseException as error:
                    error.add_note(f"seed {seed}")
                    raise

        run.__doc__ = test.__doc__
        return run

    return decorate
