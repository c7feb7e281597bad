"""Texts for humans, and names of topics that only brokers write."""

from __future__ import annotations

import unicodedata
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from dafka import text as text_module
from dafka.errors import ConfigError
from dafka.internal_topics import check_no_system_topic, is_internal_topic, is_system_topic
from dafka.text import counted, escape_unprintable, format_time, parse_time


def test_no_control_character_reaches_a_terminal() -> None:
    for number in (*range(0x250), 0x2028, 0x202E, 0xFEFF, 0xDCFF, 0x1F989, 0xE0001):
        text = escape_unprintable(f"a{chr(number)}b")
        assert text.isprintable()
        if unicodedata.category(chr(number))[0] in "LNPS" or number == 0x20:
            assert text == f"a{chr(number)}b"
        else:
            assert text == f"a{chr(number).encode('unicode_escape').decode()}b"
    assert escape_unprintable("\x1b[2J\n") == r"\x1b[2J\n"


def test_a_number_of_things_has_its_plural() -> None:
    found = [counted(number, "record") for number in (0, 1, 2, 1000)]
    assert found == ["0 records", "1 record", "2 records", "1,000 records"]


def test_a_time_of_day_that_ends_the_calendar_is_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later versions of Python take 24:00 for midnight of the next day."""
    overflowing = SimpleNamespace(fromisoformat=Mock(side_effect=OverflowError("date value out of range")))
    monkeypatch.setattr(text_module, "datetime", overflowing)
    with pytest.raises(ValueError, match=r"^date value out of range$"):
        parse_time("9999-12-31T24:00")


@pytest.mark.parametrize("text", ["", "now", "1970-13-01", "10:00"])
def test_other_texts_are_no_time(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_time(text)


SHOWN: list[int] = [0, 1, -1, 999, 1_795_856_400_123, -62_135_596_800_000, 253_402_300_799_999]


def test_a_time_that_is_shown_can_be_read() -> None:
    for time_ms in SHOWN:
        assert parse_time(format_time(time_ms)) == time_ms
        assert parse_time(format_time(time_ms, "seconds")) == time_ms // 1000 * 1000
        assert format_time(time_ms).endswith("Z")


@pytest.mark.parametrize("time_ms", [2**62, -(2**62), 253_402_300_800_000])
def test_a_time_outside_the_calendar_is_a_number(time_ms: int) -> None:
    assert format_time(time_ms) == str(time_ms)


TOPICS: list[tuple[str, bool, bool]] = [
    ("orders", False, False),
    ("$metadata", True, True),
    ("$group/team", True, False),
    ("$group", True, True),
    ("", False, False),
    ("a$group/", False, False),
    ("$groups/x", True, True),
]


def test_only_brokers_write_system_topics() -> None:
    for name, is_internal, is_system in TOPICS:
        assert (is_internal_topic(name), is_system_topic(name)) == (is_internal, is_system)
        if is_system:
            with pytest.raises(ConfigError, match="is a system topic"):
                check_no_system_topic(name)
        else:
            check_no_system_topic(name)
