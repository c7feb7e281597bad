"""JSON in which something is missing, or is not what it should be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

WRONG: list[Any] = [None, "y", 2, True, 1.5, [], {}, [{}], {"a": 1}, 2**63, 10**400, float("inf"), float("nan")]


def spoil_fields(found: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield an object with one thing in it, at any depth, that is missing, or of another type or size."""
    for name, each in found.items():
        yield {key: value for key, value in found.items() if key != name}
        yield from ({**found, name: other} for other in _spoil(each))


def _spoil(found: Any) -> Iterator[Any]:
    if isinstance(found, dict):
        yield from spoil_fields(found)
    elif isinstance(found, list):
        for place, each in enumerate(found):
            yield from ([*found[:place], other, *found[place + 1 :]] for other in _spoil(each))
    is_empty = found in ([], {})
    yield from (
        each
        for each in WRONG
        if type(each) is not type(found)
        or (type(each) is int and each >= 2**63)
        or (isinstance(each, list | dict) and each and not is_empty)
    )
