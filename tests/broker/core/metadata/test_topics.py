"""The names of topics."""

from __future__ import annotations

from dafka.broker.core.metadata.topics import NAME_MAX, find_name_problem


def test_names_are_those_that_clients_of_kafka_can_use() -> None:
    assert NAME_MAX == 249
    for name in ("...", "a", "Az09._-", "a" * NAME_MAX):
        assert find_name_problem(name) == ""
    for name in ("", ".", "..", "a" * (NAME_MAX + 1), "$logs", *(f"a{each}" for each in " /$:,ü\n\0")):
        assert find_name_problem(name)
