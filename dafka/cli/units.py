"""Durations and sizes as an operator writes them: `7d`, `1.5h`, `512KiB`, `10GB`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from decimal import Decimal

import click
from click.types import FuncParamType

_DURATION_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}

_BYTE_UNITS = {
    "": 1,
    "b": 1,
    **{f"{prefix}b": 1000**power for power, prefix in enumerate("kmgtp", 1)},
    **{f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgtp", 1)},
}

_QUANTITY = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?) ?([a-zA-Z]*)")


def parse_duration_ms(text: str) -> int:
    """Reads `90s`, `15m`, `12h`, `7d`, `2w`, `500ms`: milliseconds, at least 1. Raises `ValueError`."""
    return _parse(text, _DURATION_UNITS_MS, "a duration above 0, such as 90s, 15m, 12h or 7d")


def parse_bytes(text: str) -> int:
    """Reads `512KiB`, `1GB`, `10GiB`, or plain octets: octets, at least 1. Raises `ValueError`.

    `kB`, `MB`, `GB`, `TB` and `PB` count by 1000, `KiB` to `PiB` by 1024; capitals do not matter.
    """
    return _parse(text, _BYTE_UNITS, "a size above 0, such as 512KiB, 1GB, 10GiB or 1048576")


def _parse(text: str, units: Mapping[str, int], expected: str) -> int:
    found = _QUANTITY.fullmatch(text.strip())
    factor = units.get(found[2].lower()) if found else None
    number = int(Decimal(found[1]) * factor) if found and factor else 0
    if not number:
        raise ValueError(f"expected {expected}, not {text!r}")
    return number


def _option_type(parse: Callable[[str], int]) -> Callable[[str], int]:
    def convert(text: str) -> int:
        try:
            return parse(text)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None

    return convert


DURATION = FuncParamType(_option_type(parse_duration_ms))
"""An option's type: gives milliseconds."""

BYTES = FuncParamType(_option_type(parse_bytes))
"""An option's type: gives octets."""
