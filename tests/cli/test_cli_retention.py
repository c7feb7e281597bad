from __future__ import annotations

import re

import pytest

from tests.cli.harness import Dafka, wait_for

LINES = [f"{sequence}\n" for sequence in range(500)]


def test_consume_logs_which_records_are_gone(dafka: Dafka) -> None:
    config = dafka.folder / "retention.toml"
    config.write_text("[store]\nretention_interval_ms = 20\n")
    up = dafka.start_up("--storage", "memory:", "--retention-records", "100", "--config", str(config), "-v")
    assert dafka.node("produce", "hello", stdin="".join(LINES).encode()).status == 0

    def look() -> bool | None:
        dropped = re.findall(r"Retention dropped (\d+) records of 1 partition", up.errors)
        return sum(map(int, dropped)) == 400 or None

    wait_for(look, lambda: up.errors)
    ended = dafka.node("consume", "hello", "--from-beginning", "--count", "100")
    assert (ended.status, ended.output) == (0, "".join(LINES[400:]).encode())
    line = ended.errors.splitlines()[-1]  # before it, the consumer may say that it waits for the gone producer
    assert re.search(r"Records 0 to 399 of hello/[0-9A-F]{32} are unrecoverable: no node holds them any more", line), (
        line
    )


@pytest.mark.parametrize(
    ("option", "value", "sentence"),
    [
        (
            "--retention-ms",
            "7 years",
            "expected a number of milliseconds from 0 up, or a duration such as 500ms, 10s or 7d, not '7 years'",
        ),
        ("--retention-bytes", "-1", "expected a number of bytes from 0 up, or a size such as 64MiB or 10GB, not -1"),
        ("--retention-records", "many", "expected a whole number of at least 0, not 'many'"),
    ],
)
def test_invalid_retention_is_refused(dafka: Dafka, option: str, value: str, sentence: str) -> None:
    ended = dafka.run("store", option, value)
    assert ended.status == 2
    assert ended.errors.splitlines()[-1] == f"Error: Invalid value for '{option}': {sentence}"
