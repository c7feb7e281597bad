"""Compares the tables of messages with the descriptions that Kafka publishes, field by field and version by version.

    python -m tests.kafka.protocol.compare_messages FOLDER_OR_ZIP
    python -m tests.kafka.protocol.compare_messages FOLDER_OR_ZIP --kafka 4.0.0 --page docs/reference/kafka-messages.md

The descriptions are the files `clients/src/main/resources/common/message/*.json` of Apache Kafka's sources. They are
not part of this repository. The exit code is 1 if there are differences.
"""

from __future__ import annotations

import json
import re
import sys
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import attrs
import click

from dafka.kafka.apis import SERVED
from dafka.kafka.protocol.apis import ADVERTISED, REQUESTS, RESPONSES
from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.protocol.tables import NIL, Field, Kind, Message, Struct, Versions, fields_of
from tests.kafka.protocol.layouts import snake

FOREIGN_NAMES = {"ListConfigResources": "ListClientMetricsResources"}
"""Names of APIs in Kafka before 4.1, where they differ."""

PREFACE = """\
# Kafka's messages, compared

This page is made by `tests/kafka/protocol/compare_messages.py`, which compares the tables in
`dafka/kafka/protocol/messages` with the message descriptions in Kafka's sources. It compares the names, order, types,
versions and tags of fields, whether they may be null, and the defaults that dafka states. The descriptions are those of
Kafka {kafka}. Versions that only one side describes are not compared.

These differences are known:

- A default that is null in dafka: Kafka states none, so that it is an empty list or text. This concerns only code that
  builds a message without the field. None of these fields has a tag, so that its value is always on the wire.
- `ListConfigResources`: before 4.1, Kafka calls it `ListClientMetricsResources`, and its list has another name.

[Kafka's protocol](kafka.md) says what a broker does with each message. The tests compare the same tables with the newer
descriptions in kafka-python.

| API | served | request: compared | request | response: compared | response |
| --- | --- | --- | --- | --- | --- |
"""


@attrs.frozen
class Comparison:
    """The comparison of one message.

    Attributes:
        name: The name of the message.
        versions: The compared versions; None if Kafka's description was not found.
        differences: What differs, a line each.
    """

    name: str
    versions: Versions | None
    differences: Sequence[str] = ()

    def __str__(self) -> str:
        if self.versions is None:
            return f"{self.name}: not found"
        lines = [f"{self.name}, versions {self.versions}: {'different' if self.differences else 'same'}"]
        return "\n".join([*lines, *(f"    {each}" for each in self.differences)])


def read_descriptions(source: Path) -> dict[str, dict[str, Any]]:
    """Return Kafka's descriptions in a folder or a zip file, by the name of the message."""
    if source.is_dir():
        texts = {each.stem: each.read_text() for each in source.rglob("*.json")}
    else:
        with zipfile.ZipFile(source) as archive:
            names = [each for each in archive.namelist() if each.endswith(".json")]
            texts = {Path(each).stem: archive.read(each).decode() for each in names}
    return {name: json.loads(_without_comments(text)) for name, text in texts.items()}


def _without_comments(text: str) -> str:
    return re.sub(r'("(?:\\.|[^"\\])*")|//[^\n]*', lambda found: found[1] or "", text)


def compare(message: type[Message], description: Mapping[str, Any]) -> Comparison:
    """Compare a table with Kafka's description of the message."""
    theirs = Versions.parse(description["validVersions"])
    first, last = max(message.VERSIONS.first, theirs.first), min(message.VERSIONS.last, theirs.last)
    versions = range(first, last + 1)
    differences = []
    if description["apiKey"] != message.API_KEY:
        differences.append(f"the API's key is {description['apiKey']} in Kafka, {int(message.API_KEY)} in dafka")
    flexible = Versions.parse(description["flexibleVersions"])
    differences += _differ(
        "", "flexible", {each: (flexible.has(each), message.FLEXIBLE.has(each)) for each in versions}
    )
    common = {each["name"]: each["fields"] for each in description.get("commonStructs", [])}
    differences += _compare_fields("", message, description["fields"], common, versions)
    return Comparison(message.__name__, Versions(first, last), differences)


def _compare_fields(
    path: str,
    table: type[Struct],
    described: Sequence[Mapping[str, Any]],
    common: Mapping[str, Sequence[Mapping[str, Any]]],
    versions: Iterable[int],
) -> list[str]:
    """Return the differences between a table and the fields that Kafka describes.

    Args:
        path: The names of the fields that lead to the table, with a dot after each.
        table: The table.
        described: Kafka's fields.
        common: The structs that Kafka's fields refer to by name.
        versions: The versions to compare.

    Returns:
        The differences, a line each.
    """
    ours = {each.name: each for each in fields_of(table)}
    theirs = {snake(each["name"]): each for each in described}
    found: list[str] = []
    orders: dict[int, tuple[str, str]] = {}
    for version in versions:
        both = [name for name in ours if name in theirs]
        in_kafka = [each for each in theirs if each in ours and _has(theirs[each], "versions", version)]
        plain = [name for name in in_kafka if not _has(theirs[name], "taggedVersions", version)]
        orders[version] = (", ".join(plain), ", ".join(sorted(plain, key=both.index)))
    found += _differ(path, "order", orders)
    for name in [*theirs, *(each for each in ours if each not in theirs)]:
        label = f"{path}{name}"
        if name not in ours:
            present = [each for each in versions if _has(theirs[name], "versions", each)]
            found += _differ(label, "exists", dict.fromkeys(present, (True, False)))
        elif name not in theirs:
            present = [each for each in versions if ours[name].versions.has(each)]
            found += _differ(label, "exists", dict.fromkeys(present, (False, True)))
        else:
            found += _compare_field(label, ours[name], theirs[name], common, versions)
    return found


def _compare_field(
    label: str,
    ours: Field,
    theirs: Mapping[str, Any],
    common: Mapping[str, Sequence[Mapping[str, Any]]],
    versions: Iterable[int],
) -> list[str]:
    exists = {each: (_has(theirs, "versions", each), ours.versions.has(each)) for each in versions}
    present = [each for each, pair in exists.items() if pair == (True, True)]
    found = _differ(label, "exists", exists)
    found += _differ(label, "type", dict.fromkeys(present, (_type_of(theirs), _our_type(ours))))
    found += _differ(
        label,
        "nullable",
        {each: (_has(theirs, "nullableVersions", each), _may_be_null(ours, each)) for each in present},
    )
    tags = {each: theirs.get("tag") if _has(theirs, "taggedVersions", each) else None for each in present}
    found += _differ(label, "tag", {each: (tag, ours.tag) for each, tag in tags.items()})
    default = _default_of(theirs)
    if not ours.is_required and default is not None and default != (ours.default,):
        found.append(
            f"`{label}`: default: {_text_of_default(default[0])} in Kafka, {_text_of_default(ours.default)} in dafka"
        )
    inner = theirs.get("fields") or common.get(theirs["type"].removeprefix("[]"))
    if ours.struct is not None and inner is not None:
        found += _compare_fields(f"{label}.", ours.struct, inner, common, present)
    return found


def _differ(label: str, aspect: str, values: Mapping[int, tuple[Any, Any]]) -> list[str]:
    """Return a line for each different pair of values, Kafka's and ours, with the versions that have it."""
    different = {version: pair for version, pair in values.items() if pair[0] != pair[1]}
    lines = []
    for (theirs, ours), group in groupby(different, key=different.__getitem__):
        numbers = list(group)
        head = f"`{label}`: {aspect}" if label else aspect
        versions = Versions(numbers[0], numbers[-1])
        lines.append(f"{head}: {_text(theirs)} in Kafka, {_text(ours)} in dafka (versions {versions})")
    return lines


def _text(value: Any) -> str:
    return {True: "yes", False: "no", None: "none"}[value] if isinstance(value, bool | None) else str(value)


def _text_of_default(value: Any) -> str:
    return json.dumps(value, default=str)


def _has(described: Mapping[str, Any], key: str, version: int) -> bool:
    return key in described and Versions.parse(described[key].strip()).has(version)


_KINDS = {kind.name.lower() for kind in Kind} - {"struct", "boolean"} | {"bool"}


def _type_of(described: Mapping[str, Any]) -> str:
    base = described["type"].removeprefix("[]")
    kind = base if base in _KINDS else "struct"
    return f"[]{kind}" if described["type"].startswith("[]") else kind


def _our_type(ours: Field) -> str:
    kind = "bool" if ours.kind is Kind.BOOLEAN else ours.kind.name.lower()
    return f"[]{kind}" if ours.is_array else kind


def _may_be_null(ours: Field, version: int) -> bool:
    """Return whether a field may be null on the wire. A tagged struct is None if it is absent."""
    is_tagged_struct = ours.tag is not None and ours.struct is not None and not ours.is_array
    return ours.nullable.has(version) and not is_tagged_struct


def _default_of(described: Mapping[str, Any]) -> tuple[Any] | None:
    """Return the default of a field in a tuple; None if it is a struct, whose fields have the defaults."""
    kind, text = _type_of(described), str(described.get("default", ""))
    if text == "null":
        return (None,)
    if kind == "struct":
        return None
    empty = {"bool": text.lower() == "true", "uuid": NIL, "bytes": b"", "records": b"", "string": text}
    if kind.startswith("[]"):
        return ([],)
    return (empty[kind] if kind in empty else int(text or "0", 0),)


def compare_all(descriptions: Mapping[str, Mapping[str, Any]]) -> dict[ApiKey, tuple[Comparison, Comparison]]:
    """Return the comparisons of the request and the response of each API that a broker serves."""
    found = {}
    for key in sorted(SERVED):
        pair = []
        for message in (REQUESTS[key], RESPONSES[key]):
            name = message.__name__
            for ours, theirs in FOREIGN_NAMES.items():
                name = name if name in descriptions else name.replace(ours, theirs)
            known = name in descriptions
            pair.append(compare(message, descriptions[name]) if known else Comparison(message.__name__, None))
        found[key] = (pair[0], pair[1])
    return found


def make_page(comparisons: Mapping[ApiKey, tuple[Comparison, Comparison]], kafka: str) -> str:
    """Return the page that shows the comparisons.

    Args:
        comparisons: The comparisons.
        kafka: The version of Kafka.

    Returns:
        The page, in Markdown.
    """
    rows = []
    for key, pair in comparisons.items():
        cells = [REQUESTS[key].__name__.removesuffix("Request"), str(ADVERTISED[key])]
        for each in pair:
            is_same = not each.differences and each.versions is not None
            result = "same" if is_same else "<br>".join(each.differences) or "not described"
            cells += ["none" if each.versions is None else str(each.versions), result]
        rows.append(f"| {' | '.join(cells)} |\n")
    return PREFACE.format(kafka=kafka) + "".join(rows)


@click.command(help=__doc__)
@click.argument("source", type=click.Path(exists=True, path_type=Path))
@click.option("--page", type=click.Path(path_type=Path), help="Write the page to this file.")
@click.option("--kafka", default="of an unknown version", help="The version of Kafka, for the page.")
def main(source: Path, page: Path | None, kafka: str) -> None:
    comparisons = compare_all(read_descriptions(source))
    for pair in comparisons.values():
        for each in pair:
            click.echo(each)
    if page is not None:
        page.write_text(make_page(comparisons, kafka))
    sys.exit(any(each.differences for pair in comparisons.values() for each in pair))


if __name__ == "__main__":
    main()
