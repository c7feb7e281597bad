"""Layouts of messages: what each version looks like on the wire, from our tables and from those of others.

A layout is a tuple of fields. Plain fields come first, in the order of the wire, then tagged ones by their tags.
"""

from __future__ import annotations

import functools
import importlib
import json
import re
import typing
import warnings
from importlib import resources
from typing import Any, NamedTuple

from dafka.kafka.protocol.code import split_fields
from dafka.kafka.protocol.tables import Kind, Message, Struct, Versions, fields_of


class Item(NamedTuple):
    """A field of a layout. `items` is the layout of a struct."""

    name: str
    kind: str
    is_array: bool
    is_nullable: bool
    tag: int | None
    items: tuple[Item, ...] = ()


Layout: typing.TypeAlias = tuple[Item, ...]


def messages() -> dict[str, type[Message]]:
    """Return all messages by name."""
    from dafka.kafka.protocol.apis import REQUESTS, RESPONSES

    return {each.__name__: each for each in [*REQUESTS.values(), *RESPONSES.values()]}


def our_layout(table: type[Struct], version: int) -> Layout:
    plain, tagged, _ = split_fields(fields_of(table), version)
    return tuple(
        Item(
            each.name,
            each.kind.name.lower(),
            each.is_array,
            # A struct with a tag is None if it is absent, which is not a null on the wire.
            each.nullable.has(version) and not (each.struct is not None and not each.is_array and each.tag is not None),
            each.tag,
            () if each.struct is None else our_layout(each.struct, version),
        )
        for each in plain + tagged
    )


def import_kafka(name: str = "kafka") -> Any:
    """Import a module of kafka-python, which uses what importlib deprecates."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return importlib.import_module(name)


@functools.cache
def published(name: str) -> dict[str, Any]:
    """Return Kafka's published definition of a message, which kafka-python has."""
    text = (resources.files(import_kafka()) / "protocol" / "schemas" / "resources" / f"{name}.json").read_text()
    definition: dict[str, Any] = json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))
    return definition


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def _has(field: dict[str, Any], key: str, version: int) -> bool:
    return key in field and Versions.parse(field[key].strip()).has(version)


def published_layout(fields: list[dict[str, Any]], version: int, common: dict[str, list[dict[str, Any]]]) -> Layout:
    plain: list[Item] = []
    tagged: list[Item] = []
    for each in fields:
        if not _has(each, "versions", version):
            continue
        base = each["type"].removeprefix("[]")
        known = {kind.name.lower(): kind.name.lower() for kind in Kind} | {"bool": "boolean"}
        items = () if base in known else published_layout(each.get("fields") or common[base], version, common)
        is_tagged = _has(each, "taggedVersions", version)
        item = Item(
            snake(each["name"]),
            known.get(base, "struct"),
            each["type"].startswith("[]"),
            _has(each, "nullableVersions", version),
            each["tag"] if is_tagged else None,
            items,
        )
        (tagged if is_tagged else plain).append(item)
    return (*plain, *sorted(tagged, key=lambda item: item.tag or 0))


def published_defaults(fields: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the defaults that a definition states, by names of fields."""
    return {snake(each["name"]): _value(each) for each in fields if "default" in each}


def _value(field: dict[str, Any]) -> Any:
    text = str(field["default"])
    if text == "null":
        return None
    if field["type"] == "bool":
        return text.lower() == "true"
    return text if field["type"] == "string" else int(text, 0)


def kio_entity(message: type[Message], version: int) -> Any:
    """Return kio's class for a version of a message; None if it has none."""
    api, kind = re.fullmatch(r"(\w+)(Request|Response)", message.__name__).groups()  # type: ignore[union-attr]
    try:
        module = importlib.import_module(f"kio.schema.{snake(api)}.v{version}.{kind.lower()}")
    except ModuleNotFoundError:
        return None
    return getattr(module, message.__name__)
