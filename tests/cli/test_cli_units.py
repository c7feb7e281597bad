from __future__ import annotations

import pytest

from dafka.cli.units import parse_bytes, parse_duration_ms


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [
        ("500ms", 500),
        ("90s", 90_000),
        ("15m", 900_000),
        ("12h", 43_200_000),
        ("7d", 604_800_000),
        ("2w", 1_209_600_000),
        ("1.5h", 5_400_000),
        ("0.1s", 100),
        (" 7 D ", 604_800_000),
    ],
)
def test_durations(text: str, duration_ms: int) -> None:
    assert parse_duration_ms(text) == duration_ms


@pytest.mark.parametrize(
    ("text", "octets"),
    [
        ("1048576", 1_048_576),
        ("7B", 7),
        ("1kB", 1000),
        ("1KB", 1000),
        ("3MB", 3_000_000),
        ("1GB", 10**9),
        ("2TB", 2 * 10**12),
        ("1PB", 10**15),
        ("512KiB", 524_288),
        ("1MiB", 2**20),
        ("10GiB", 10 * 2**30),
        ("0.5 gib", 2**29),
        ("1TiB", 2**40),
        ("1PiB", 2**50),
    ],
)
def test_sizes(text: str, octets: int) -> None:
    assert parse_bytes(text) == octets


@pytest.mark.parametrize(
    "text", ["", "7", "d", "-7d", "0s", "0.1ms", "7dd", "7 d d", "1e3s", "inf", "7d\n7d", "\u0667d"]
)
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="expected a duration above 0, such as 90s, 15m, 12h or 7d, not ") as caught:
        parse_duration_ms(text)
    assert str(caught.value).endswith(repr(text))


@pytest.mark.parametrize("text", ["", "GB", "-1", "0", "0.5", "1G", "1EB", "1 000", "1,000"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(
        ValueError, match="expected a size above 0, such as 512KiB, 1GB, 10GiB or 1048576, not "
    ) as caught:
        parse_bytes(text)
    assert str(caught.value).endswith(repr(text))
