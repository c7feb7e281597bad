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
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import attrs
import click

from dafka.kafka.apis import SERVED
from dafka.kafka.protocol.apis import ADVERTISED, REQUESTS, RESPONSES
from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.protocol.tables import NIL, Message, Struct, Versions, fields_of
from tests.kafka.protocol.layouts import Item, Layout, our_layout, published_layout, snake

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
    flexible = Versions.parse(description["flexibleVersions"])
    common = {each["name"]: each["fields"] for each in description.get("commonStructs", [])}
    found: dict[tuple[str, str], dict[int, tuple[Any, Any]]] = {}
    for version in range(first, last + 1):
        aspects = {("", "flexible"): (flexible.has(version), message.FLEXIBLE.has(version))}
        layouts = published_layout(description["fields"], version, common), our_layout(message, version)
        aspects.update(_compare_layouts("", *layouts))
        for aspect, values in aspects.items():
            found.setdefault(aspect, {})[version] = values
    differences = [line for (label, aspect), values in found.items() for line in _differ(label, aspect, values)]
    if description["apiKey"] != message.API_KEY:
        differences.insert(0, f"the API's key is {description['apiKey']} in Kafka, {int(message.API_KEY)} in dafka")
    differences += _compare_defaults("", message, description["fields"], common)
    return Comparison(message.__name__, Versions(first, last), differences)


def _compare_layouts(path: str, theirs: Layout, ours: Layout) -> Iterator[tuple[tuple[str, str], tuple[Any, Any]]]:
    """Yield the label and the aspect of what can differ in a version, with Kafka's value and ours."""
    pairs = [({each.name: each for each in layout}) for layout in (theirs, ours)]
    plain = [[each.name for each in layout if each.tag is None] for layout in (theirs, ours)]
    common = [[each for each in names if each in plain[1 - side]] for side, names in enumerate(plain)]
    yield (path, "order"), (", ".join(common[0]), ", ".join(common[1]))
    for name in {**pairs[0], **pairs[1]}:
        label = f"{path}{name}"
        one, other = (each.get(name) for each in pairs)
        yield (label, "exists"), (one is not None, other is not None)
        if one is None or other is None:
            continue
        yield (label, "type"), (_type_of(one), _type_of(other))
        yield (label, "nullable"), (one.is_nullable, other.is_nullable)
        yield (label, "tag"), (one.tag, other.tag)
        yield from _compare_layouts(f"{label}.", one.items, other.items)


def _compare_defaults(
    path: str,
    table: type[Struct],
    described: Sequence[Mapping[str, Any]],
    common: Mapping[str, Sequence[Mapping[str, Any]]],
) -> Iterator[str]:
    ours = {each.name: each for each in fields_of(table)}
    for theirs in described:
        field = ours.get(snake(theirs["name"]))
        if field is None:
            continue
        label = f"{path}{field.name}"
        default = _default_of(theirs)
        if not field.is_required and default is not None and default != (field.default,):
            texts = json.dumps(default[0], default=str), json.dumps(field.default, default=str)
            yield f"`{label}`: default: {texts[0]} in Kafka, {texts[1]} in dafka"
        inner = theirs.get("fields") or common.get(theirs["type"].removeprefix("[]"))
        if field.struct is not None and inner is not None:
            yield from _compare_defaults(f"{label}.", field.struct, inner, common)


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


def _type_of(item: Item) -> str:
    return f"[]{item.kind}" if item.is_array else item.kind


def _default_of(described: Mapping[str, Any]) -> tuple[Any] | None:
    """Return the default of a field in a tuple; None if it is a struct, whose fields have the defaults."""
    kind, text = described["type"], str(described.get("default", ""))
    if text == "null":
        return (None,)
    if kind.startswith("[]"):
        return ([],)
    values = {"bool": text.lower() == "true", "uuid": NIL, "bytes": b"", "records": b"", "string": text}
    if kind in values:
        return (values[kind],)
    return (int(text or "0", 0),) if kind.startswith(("int", "uint")) else None


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
