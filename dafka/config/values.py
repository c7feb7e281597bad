"""The values of settings: durations and sizes with units, and the checks of each kind of value.

The settings, the command line's options and the environment variables share one parser for durations (`10s`, `7d`) and
one for sizes (`64MiB`, `10GB`). The checks are attrs validators. They raise `ConfigError` with the setting's name, what
was expected, and what was given.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from decimal import Decimal
from typing import Any

import attrs

from dafka.endpoints import is_endpoint, is_host, parse_tower
from dafka.errors import ConfigError
from dafka.text import parse_time

Validator = Callable[[Any, "attrs.Attribute[Any]", Any], None]
"""An attrs validator: gets the section, the attribute and the value."""

DURATION_EXPECTED = "a duration such as 500ms, 10s or 7d"
TIME_EXPECTED = "a duration such as 90s, 2h or 7d, or a time such as 2026-11-23T08:00:00Z"
SIZE_EXPECTED = "a size such as 64MiB or 10GB"

_DURATION_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}

_SIZE_UNITS = {
    "": 1,
    "b": 1,
    **{f"{prefix}b": 1000**power for power, prefix in enumerate("kmgtp", 1)},
    **{f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgtp", 1)},
}

_QUANTITY = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?) ?([a-zA-Z]*)")


def parse_duration_ms(text: str) -> int:
    """Convert a text such as `500ms`, `90s`, `1.5h`, `7d` or `2w`, in capitals or not, to milliseconds.

    Raise `ValueError` if the unit is missing or unknown, or the duration is less than a millisecond but not 0.
    """
    try:
        return _parse_quantity(text, _DURATION_UNITS_MS, DURATION_EXPECTED)
    except ValueError as error:
        raise ValueError(f"{error}{_advise_unit(text)}") from None


def format_duration_ms(duration_ms: int) -> str:
    """Return the shortest text that `parse_duration_ms` converts to this number of milliseconds."""
    whole = [unit for unit, factor in _DURATION_UNITS_MS.items() if duration_ms >= factor and duration_ms % factor == 0]
    unit = (whole or ["ms"])[-1]
    return f"{duration_ms // _DURATION_UNITS_MS[unit]}{unit}"


def parse_time_ms(text: str, now_ms: int) -> int:
    """Convert a text to milliseconds since 1970: `2h` ago, or an ISO 8601 time such as `2026-11-23T08:00Z`.

    Earlier times become 0. Raise `ValueError` if it is neither.
    """
    with suppress(ValueError):
        return max(now_ms - _parse_quantity(text, _DURATION_UNITS_MS, DURATION_EXPECTED), 0)
    try:
        return max(parse_time(text), 0)
    except ValueError:
        raise ValueError(f"expected {TIME_EXPECTED}, not {text!r}{_advise_unit(text)}") from None


def parse_size_bytes(text: str) -> int:
    """Convert a text such as `512KiB`, `1GB`, `10GiB` or `1048576`, in capitals or not, to bytes.

    `kB` to `PB` are powers of 1000, `KiB` to `PiB` of 1024. Raise `ValueError` if the unit is unknown, or the size is
    less than a byte but not 0.
    """
    return _parse_quantity(text, _SIZE_UNITS, SIZE_EXPECTED)


def _advise_unit(text: str) -> str:
    """Return advice for a duration without a unit; empty for any other text."""
    number = text.strip()
    return f": write {number}s or {number}ms" if number.isdecimal() and number.isascii() and int(number) else ""


def _parse_quantity(text: str, units: Mapping[str, int], expected: str) -> int:
    found = _QUANTITY.fullmatch(text.strip())
    factor = units.get(found[2].lower()) if found else None
    if found is None or factor is None:
        raise ValueError(f"expected {expected}, not {text!r}")
    number = Decimal(found[1]) * factor
    if 0 < number < 1:  # 0 means "no limit" for some settings: a tiny value must not become 0
        raise ValueError(f"expected {expected}, not {text!r}")
    return int(number)


def to_milliseconds(value: int | str) -> int:
    """Convert a setting in milliseconds: a number, or text with a number or a duration."""
    return _convert(value, parse_duration_ms)


def to_bytes(value: int | str) -> int:
    """Convert a setting in bytes: a number, or text with a number or a size."""
    return _convert(value, parse_size_bytes)


def _convert(value: int | str, parse: Callable[[str], int]) -> int:
    """Convert a setting. A value that cannot be converted stays unchanged, and the setting's validator refuses it."""
    if not isinstance(value, str):
        return value
    try:
        return int(value) if re.fullmatch(r" *[0-9]{1,18} *", value) else parse(value)
    except ValueError:
        return value  # type: ignore[return-value]


def to_texts(value: str | Iterable[str]) -> tuple[str, ...]:
    """Convert one text, several with commas between them, or a list of texts."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return tuple(value) if isinstance(value, Iterable) else value  # type: ignore[redundant-expr]  # for the validator


def _refuse(attribute: attrs.Attribute[Any], expected: str, found: object) -> ConfigError:
    return ConfigError(f"{attribute.name}: expected {expected}, not {found!r}")


def check_count(minimum: int, maximum: int | None = None) -> Validator:
    """Return a validator of whole numbers."""
    limits = f"of at least {minimum}" if maximum is None else f"from {minimum} to {maximum}"
    return _check_limits(minimum, maximum, f"a whole number {limits}")


def check_milliseconds(minimum: int) -> Validator:
    """Return a validator of milliseconds."""
    return _check_limits(minimum, None, f"a number of milliseconds from {minimum} up, or {DURATION_EXPECTED}")


def check_bytes(minimum: int, maximum: int | None = None) -> Validator:
    """Return a validator of sizes in bytes."""
    numbers = f"from {minimum} up" if maximum is None else f"from {minimum} to {maximum}"
    return _check_limits(minimum, maximum, f"a number of bytes {numbers}, or {SIZE_EXPECTED}")


def _check_limits(minimum: int, maximum: int | None, expected: str) -> Validator:
    def check(_: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
        if type(value) is not int or value < minimum or (maximum is not None and value > maximum):
            raise _refuse(attribute, expected, value)

    return check


def check_choice(*choices: str) -> Validator:
    """Return a validator of a text that must be one of several."""

    def check(_: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
        if value not in choices:
            raise _refuse(attribute, " or ".join(choices), value)

    return check


def check_text(_: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    """Check that a value is text."""
    if not isinstance(value, str):
        raise _refuse(attribute, "text", value)


def check_texts(_: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    """Check that a value is a tuple of texts."""
    if not isinstance(value, tuple) or not all(isinstance(each, str) for each in value):
        raise _refuse(attribute, "text, or a list of texts", value)


def check_names(_: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    """Check that a value is a tuple of different names, at least one."""
    check_texts(_, attribute, value)
    if not value or not all(value) or len(set(value)) < len(value):
        raise _refuse(attribute, "different names, at least one", value)


def check_host(section: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    """Check that a value is a host's name or address, or empty."""
    check_text(section, attribute, value)
    if value and not is_host(value):
        raise _refuse(attribute, "a host name or address, such as 10.0.0.7 or [fe80::1]", value)


def check_endpoint(_: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    """Check that a value is a ZeroMQ endpoint: tcp, ipc or inproc."""
    if not isinstance(value, str) or not is_endpoint(value):
        raise _refuse(attribute, "an endpoint such as tcp://127.0.0.1:5556", value)


def check_endpoints(section: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    """Check that a value is a tuple of endpoints, at least one."""
    if not isinstance(value, tuple) or not value:
        found = "none" if value == () else repr(value)
        raise ConfigError(f"{attribute.name}: expected endpoints such as tcp://127.0.0.1:5556, not {found}")
    for endpoint in value:
        check_endpoint(section, attribute, endpoint)


def check_towers(_: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    """Check that a value is a tuple of towers, each named by one address; it can be empty."""
    check_texts(_, attribute, value)
    for text in value:
        try:
            parse_tower(text)
        except ValueError as error:
            raise ConfigError(f"{attribute.name}: {error}") from None


_LISTEN_ADDRESS = re.compile(r"(?:([A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\]):)?([0-9]{1,5})")
_LISTEN_EXPECTED = "a port, or an address and a port, such as 9464 or 10.0.0.7:9464"


def split_listen_address(text: str) -> tuple[str, int]:
    """Return the host and the port of `PORT` (of 127.0.0.1) or `ADDRESS:PORT`.

    Args:
        text: The text.

    Returns:
        The host, without brackets, and the port.

    Raises:
        ConfigError: The text has another form.
    """
    found = _LISTEN_ADDRESS.fullmatch(text)
    if found is None or int(found[2]) > 65535:
        raise ConfigError(f"expected {_LISTEN_EXPECTED}, not {text!r}")
    return (found[1] or "").strip("[]") or "127.0.0.1", int(found[2])


def check_listen_address(_: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    """Check that a value is a port, or an address and a port, or empty."""
    _check_address_and_port(attribute, value, 0)


def check_advertised_address(_: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    """Check that a value is a port other than 0, or an address and such a port, or empty."""
    _check_address_and_port(attribute, value, 1)


def _check_address_and_port(attribute: attrs.Attribute[Any], value: Any, least_port: int) -> None:
    found = _LISTEN_ADDRESS.fullmatch(value) if isinstance(value, str) else None
    if value != "" and (found is None or not least_port <= int(found[2]) <= 65535):
        raise _refuse(attribute, _LISTEN_EXPECTED, value)


def check_cluster_id(_: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    """Check that a value has the form of the id of a cluster, or is empty."""
    if not isinstance(value, str) or not re.fullmatch(r"(?:[0-9A-F]{32})?", value):
        raise _refuse(attribute, "the id of a cluster, 32 hexadecimal digits in upper case", value)
