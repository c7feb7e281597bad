"""`dafka cluster verify`: compares the replicas of all brokers."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlencode

import attrs
import click

from dafka.cli.kafka.http_client import HttpClient
from dafka.cli.kafka.options import http_options, json_option
from dafka.cli.terminal import UsageMistake, join_numbers, print_json_lines, print_table
from dafka.text import counted

CHUNK_RECORDS = 50_000
"""How many records are compared at a time. Where they differ, the first difference is searched for."""

TOPICS_PAGE = 1000


@attrs.frozen
class Difference:
    """Records of a partition that are not the same at all brokers.

    Attributes:
        topic: The topic.
        partition: The address of the partition.
        first_sequence: The sequence of the first record that differs.
        brokers: The brokers whose records differ from those of most, or all if there is no majority.
        reason: What is wrong.
    """

    topic: str
    partition: str
    first_sequence: int
    brokers: list[int]
    reason: str


@click.command()
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@json_option
@http_options
def verify(topics: tuple[str, ...], as_json: bool, client: HttpClient) -> None:
    """Compare the records that brokers store of TOPICs, or of all topics, and say whose disk differs.

    Every living broker reads the records once, and must be reachable over HTTP from here. Records that only some
    brokers have are not compared, nor compacted topics, which brokers compact at different times. Exits with 1 if
    records differ or cannot be read. `dafka storage verify` finds damage on one disk.
    """
    brokers = {each["number"]: each for each in client.ask("GET", "/brokers")["brokers"] if each["is_alive"]}
    unreachable = [str(number) for number, each in brokers.items() if not each["http_url"]]
    if unreachable:
        raise UsageMistake(
            f"the brokers {', '.join(unreachable)} do not listen to HTTP: their records are not compared"
        )
    comparison = _Comparison({number: client.at(each["http_url"]) for number, each in brokers.items()})
    found = [each for topic in topics or _list_topics(client) for each in comparison.compare_topic(topic)]
    if as_json:
        print_json_lines(map(attrs.asdict, found))
    elif found:
        rows = [
            (each.topic, each.partition, join_numbers(each.brokers, ", "), each.reason, each.first_sequence)
            for each in found
        ]
        print_table(("topic", "partition", "brokers", "problem"), ("from sequence",), rows)
    click.echo(
        f"compared {counted(comparison.records, 'record')} of {counted(comparison.partitions, 'partition')} at the "
        f"brokers {join_numbers(brokers, ', ')}: {counted(len(found), 'difference')}",
        err=True,
    )
    if found:
        sys.exit(1)


def _list_topics(client: HttpClient) -> Iterator[str]:
    after = ""
    while True:
        page = client.ask("GET", f"/topics?{urlencode({'limit': TOPICS_PAGE, **({'after': after} if after else {})})}")
        yield from (each["name"] for each in page["topics"])
        if page["next"] is None:
            return
        after = page["next"]


class _Comparison:
    """Compares partitions, and counts what was compared."""

    def __init__(self, clients: Mapping[int, HttpClient]) -> None:
        self.records = self.partitions = 0
        self._clients = clients

    def compare_topic(self, topic: str) -> Iterator[Difference]:
        """Yield the differences of a topic, one of each partition at most."""
        path = f"/topics/{quote(topic, safe='')}"
        settings = next(iter(self._clients.values())).ask("GET", path)["settings"]
        if any(each["name"] == "cleanup.policy" and "compact" in each["value"] for each in settings):
            return
        ends: dict[str, dict[int, tuple[int, int]]] = {}
        for number, client in self._clients.items():
            for each in client.ask("GET", f"{path}/partitions")["partitions"]:
                ends.setdefault(each["address"], {})[number] = each["earliest_sequence"], each["end_sequence"]
        for address, holders in sorted(ends.items()):
            if len(holders) > 1:
                self.partitions += 1
                first, end = max(each for each, _ in holders.values()), min(each for _, each in holders.values())
                yield from self._compare_partition(topic, address, list(holders), first, end)

    def _compare_partition(
        self, topic: str, address: str, brokers: list[int], first: int, end: int
    ) -> Iterator[Difference]:
        while first < end:
            count = min(CHUNK_RECORDS, end - first)
            answers = self._ask(topic, address, brokers, first, count)
            damaged = [number for number, each in answers.items() if each["error"]]
            if damaged:
                yield Difference(topic, address, first, damaged, answers[damaged[0]]["error"])
                return
            begun = max(each["first_sequence"] for each in answers.values())
            if begun > first:  # retention has dropped some meanwhile
                first = begun
                continue
            differing = find_differing({number: each["checksum"] for number, each in answers.items()})
            if differing:
                at = self._find_first(topic, address, brokers, first, count)
                yield Difference(topic, address, at, differing, "the records differ from those of other brokers")
                return
            self.records += count
            first += count

    def _find_first(self, topic: str, address: str, brokers: list[int], first: int, count: int) -> int:
        """Return the sequence of the first record that differs among some."""
        while count > 1:
            half = count // 2
            answers = self._ask(topic, address, brokers, first, half)
            if len({each["checksum"] for each in answers.values()}) > 1:
                count = half
            else:
                first, count = first + half, count - half
        return first

    def _ask(self, topic: str, address: str, brokers: list[int], first: int, count: int) -> dict[int, dict[str, Any]]:
        query = urlencode({"topic": topic, "partition": address, "first": first, "count": count})
        return {number: self._clients[number].ask("GET", f"/storage/checksum?{query}") for number in brokers}


def find_differing(checksums: Mapping[int, str]) -> list[int]:
    """Return the brokers whose checksum is not that of most; all of them if there is no majority."""
    checksum, count = Counter(checksums.values()).most_common(1)[0]
    if 2 * count <= len(checksums):
        return list(checksums)
    return [number for number, each in checksums.items() if each != checksum]
