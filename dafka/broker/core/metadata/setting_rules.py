"""The rules of settings that have Kafka's names: their types, defaults and possible values."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from dafka.config import Config

_WHOLE = re.compile(r"[+-]?[0-9]{1,19}")

LONG_MAX = 2**63 - 1
"""The largest value of a setting that is a number."""


class SettingKind(Enum):
    """The type of a setting's value."""

    STRING = "string"
    INT = "int"
    LONG = "long"
    DOUBLE = "double"
    LIST = "list"
    BOOLEAN = "boolean"


class SettingRule(NamedTuple):
    """The rule of a setting.

    `default` returns the default on a broker, and `expected` says which values `is_valid`. Numbers have `limits`.
    """

    kind: SettingKind
    default: Callable[[Config], str]
    is_valid: Callable[[str], bool]
    expected: str
    text: str
    has_effect: bool = True
    limits: tuple[int, int] | None = None

    @property
    def description(self) -> str:
        """The text for clients and for the documentation, which begins with a warning if the setting has no effect."""
        return self.text if self.has_effect else f"No effect. {self.text}"


def is_whole(minimum: int, maximum: int = LONG_MAX) -> Callable[[str], bool]:
    """Return a function that says whether a text is a whole number in a range."""

    def check(value: str) -> bool:
        return _WHOLE.fullmatch(value) is not None and minimum <= int(value) <= maximum

    return check


def number_rule(
    kind: SettingKind, default: Callable[[Config], str], minimum: int, text: str, maximum: int = LONG_MAX
) -> SettingRule:
    """Return the rule of a setting that is a whole number in a range."""
    expected = f"a number from {minimum} on" if maximum == LONG_MAX else f"a number from {minimum} to {maximum}"
    return SettingRule(kind, default, is_whole(minimum, maximum), expected, text, limits=(minimum, maximum))


def flag_rule(default: Callable[[Config], str], text: str) -> SettingRule:
    """Return the rule of a setting that is true or false."""
    return SettingRule(SettingKind.BOOLEAN, default, {"true", "false"}.__contains__, "'true' or 'false'", text)
