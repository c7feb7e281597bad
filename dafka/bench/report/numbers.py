"""How figures are written."""

from __future__ import annotations

from dafka.bench.model import Spread


def figure(value: float) -> str:
    """With three digits that count, at least."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def spread(values: Spread) -> str:
    """From the lowest to the highest."""
    return f"{figure(values.low)} - {figure(values.high)}"
