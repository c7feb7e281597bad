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
from typing import Any, NamedTuple

import attrs
import click

from dafka.kafka.apis import SERVED
from dafka.kafka.protocol.apis import ADVERTISED, REQUESTS, RESPONSES
from dafka.kafka.protocol.code import split_fields
from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.protocol.tables import NIL, Kind, Message, Struct, Versions, fields_of

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

Described = Sequence[Mapping[str, Any]]
"""The fields of a message, as Kafka describes them."""

KINDS = {kind.name.lower(): kind.name.lower() for kind in Kind} | {"bool": "boolean"}


class Place(NamedTuple):
    """What a field is in one version."""

    type: str
    nullable: bool
    tag: int | None


@attrs.frozen
class Comparison:
    """The comparison of one message: a line for each difference. There are no `versions` without a description."""

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
    return {name: parse_description(text) for name, text in texts.items()}


def parse_description(text: str) -> dict[str, Any]:
    """Return a description, which is JSON with comments."""
    found: dict[str, Any] = json.loads(re.sub(r'("(?:\\.|[^"\\])*")|//[^\n]*', lambda match: match[1] or "", text))
    return found


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def our_places(table: type[Struct], version: int, path: str = "") -> Iterator[tuple[str, Place]]:
    """Yield the fields of a version in the order of the wire: plain ones, then tagged ones by their tags."""
    plain, tagged, _ = split_fields(fields_of(table), version)
    for each in plain + tagged:
        # A struct with a tag is None if it is absent, which is not a null on the wire.
        is_absent = each.struct is not None and not each.is_array and each.tag is not None
        kind = "[]" * each.is_array + each.kind.name.lower()
        yield f"{path}{each.name}", Place(kind, each.nullable.has(version) and not is_absent, each.tag)
        if each.struct is not None:
            yield from our_places(each.struct, version, f"{path}{each.name}.")


def their_places(
    described: Described, version: int, common: Mapping[str, Described], path: str = ""
) -> Iterator[tuple[str, Place]]:
    """Yield the fields of a version as Kafka describes them; see `our_places`."""

    def has(each: Mapping[str, Any], key: str) -> bool:
        return key in each and Versions.parse(each[key].strip()).has(version)

    def tag_of(each: Mapping[str, Any]) -> int | None:
        return each["tag"] if has(each, "taggedVersions") else None

    for each in sorted(described, key=lambda each: -1 if (tag := tag_of(each)) is None else tag):
        if has(each, "versions"):
            base, label = each["type"].removeprefix("[]"), path + snake(each["name"])
            kind = "[]" * each["type"].startswith("[]") + KINDS.get(base, "struct")
            yield label, Place(kind, has(each, "nullableVersions"), tag_of(each))
            if base not in KINDS:
                yield from their_places(each.get("fields") or common[base], version, common, f"{label}.")


def compare(message: type[Message], description: Mapping[str, Any]) -> Comparison:
    """Compare a table with Kafka's description of the message."""
    theirs = Versions.parse(description["validVersions"])
    first, last = max(message.VERSIONS.first, theirs.first), min(message.VERSIONS.last, theirs.last)
    flexible = Versions.parse(description["flexibleVersions"])
    common = {each["name"]: each["fields"] for each in description.get("commonStructs", [])}
    found: dict[tuple[str, str], dict[int, tuple[Any, Any]]] = {}
    for version in range(first, last + 1):
        pair = dict(their_places(description["fields"], version, common)), dict(our_places(message, version))
        aspects = {("", "flexible"): (flexible.has(version), message.FLEXIBLE.has(version)), **_compare_places(*pair)}
        for aspect, values in aspects.items():
            found.setdefault(aspect, {})[version] = values
    differences = [line for (label, aspect), values in found.items() for line in _differ(label, aspect, values)]
    if description["apiKey"] != message.API_KEY:
        differences.insert(0, f"the API's key is {description['apiKey']} in Kafka, {int(message.API_KEY)} in dafka")
    differences += _compare_defaults("", message, description["fields"], common)
    return Comparison(message.__name__, Versions(first, last), differences)


def _compare_places(
    theirs: Mapping[str, Place], ours: Mapping[str, Place]
) -> dict[tuple[str, str], tuple[object, object]]:
    """Return what can differ in a version, by the label and the aspect: Kafka's value and ours."""
    both = theirs.keys() & ours.keys()
    orders = [", ".join(each for each in places if each in both) for places in (theirs, ours)]
    found: dict[tuple[str, str], tuple[object, object]] = {("", "order"): (orders[0], orders[1])}
    for label in {**theirs, **ours}:
        if label in both:
            pairs = zip(Place._fields, theirs[label], ours[label], strict=True)
            found |= {(label, aspect): (one, other) for aspect, one, other in pairs}
        elif label.rpartition(".")[0] in {"", *both}:
            found[label, "exists"] = label in theirs, label in ours
    return found


def _compare_defaults(
    path: str, table: type[Struct], described: Described, common: Mapping[str, Described]
) -> Iterator[str]:
    ours = {each.name: each for each in fields_of(table)}
    for theirs in described:
        field = ours.get(snake(theirs["name"]))
        if field is None:
            continue
        label, default = f"{path}{field.name}", _default_of(theirs)
        if field.is_required and "default" in theirs:
            yield f"`{label}`: default: {theirs['default']} in Kafka, none in dafka"
        elif not field.is_required and default is not None and default != (field.default,):
            texts = json.dumps(default[0], default=str), json.dumps(field.default, default=str)
            yield f"`{label}`: default: {texts[0]} in Kafka, {texts[1]} in dafka"
        inner = theirs.get("fields") or common.get(theirs["type"].removeprefix("[]"))
        if field.struct is not None and inner is not None:
            yield from _compare_defaults(f"{label}.", field.struct, inner, common)


def _differ(label: str, aspect: str, values: Mapping[int, tuple[Any, Any]]) -> Iterator[str]:
    """Yield a line for each different pair of values, Kafka's and ours, with the versions that have it."""
    different = {version: pair for version, pair in values.items() if pair[0] != pair[1]}
    for (theirs, ours), group in groupby(different, key=different.__getitem__):
        numbers = list(group)
        head = f"`{label}`: {aspect}" if label else aspect
        yield f"{head}: {_text(theirs)} in Kafka, {_text(ours)} in dafka (versions {Versions(numbers[0], numbers[-1])})"


def _text(value: Any) -> str:
    return {True: "yes", False: "no", None: "none"}[value] if isinstance(value, bool | None) else str(value)


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


def compare_all(descriptions: Mapping[str, Mapping[str, Any]]) -> dict[ApiKey, list[Comparison]]:
    """Return the comparisons of the request and the response of each API that a broker serves."""
    found: dict[ApiKey, list[Comparison]] = {}
    for key in sorted(SERVED):
        for message in (REQUESTS[key], RESPONSES[key]):
            name = message.__name__
            for ours, theirs in FOREIGN_NAMES.items():
                name = name if name in descriptions else name.replace(ours, theirs)
            known = name in descriptions
            compared = compare(message, descriptions[name]) if known else Comparison(message.__name__, None)
            found.setdefault(key, []).append(compared)
    return found


def make_page(comparisons: Mapping[ApiKey, list[Comparison]], kafka: str) -> str:
    """Return the page, in Markdown, that shows the comparisons with a version of Kafka."""
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
