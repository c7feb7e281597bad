"""Schemas of values in requests and responses, for validation and for OpenAPI."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import attrs

from dafka.http.server.errors import WebError

JsonSchema: TypeAlias = dict[str, Any]


class Schema(ABC):
    """The schema of a value."""

    description: str = ""

    @abstractmethod
    def describe(self) -> JsonSchema:
        """Return it as JSON Schema (2020-12)."""

    @abstractmethod
    def check(self, value: Any, where: str) -> Any:
        """Validate a value of a request.

        Args:
            value: The value.
            where: The name of the value, for the error message.

        Returns:
            The value, converted.

        Raises:
            WebError: It does not match.
        """

    def parse(self, text: str, where: str) -> Any:
        """Parse the text of a query parameter. Raises `WebError` if it does not match."""
        return self.check(text, where)


def _refuse(where: str, expected: str, value: Any) -> WebError:
    shown = repr(value)
    return WebError("bad_request", f"{where}: expected {expected}, not {shown[:100]}")


def _described(schema: JsonSchema, description: str) -> JsonSchema:
    return {**schema, "description": description} if description else schema


@attrs.frozen
class Text(Schema):
    """Text."""

    description: str = ""
    length_max: int = 32_768
    length_min: int = 0

    def describe(self) -> JsonSchema:
        """See `Schema.describe`."""
        size = {"minLength": self.length_min} if self.length_min else {}
        return _described({"type": "string", **size}, self.description)

    def check(self, value: Any, where: str) -> str:
        """See `Schema.check`."""
        if not isinstance(value, str):
            raise _refuse(where, "a text", value)
        if not self.length_min <= len(value) <= self.length_max:
            raise _refuse(where, f"{self.length_min} to {self.length_max} characters", value)
        return value


@attrs.frozen
class Integer(Schema):
    """A whole number."""

    description: str = ""
    minimum: int = 0
    maximum: int = 2**63 - 1

    def describe(self) -> JsonSchema:
        """See `Schema.describe`."""
        schema = {"type": "integer", "format": "int64", "minimum": self.minimum}
        if self.maximum < 2**53:
            schema["maximum"] = self.maximum
        return _described(schema, self.description)

    def check(self, value: Any, where: str) -> int:
        """See `Schema.check`."""
        if not isinstance(value, int) or isinstance(value, bool) or not self.minimum <= value <= self.maximum:
            raise _refuse(where, f"a whole number from {self.minimum} to {self.maximum}", value)
        return value

    def parse(self, text: str, where: str) -> int:
        """See `Schema.parse`."""
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 20):
            raise _refuse(where, f"a whole number from {self.minimum} to {self.maximum}", text)
        return self.check(int(text), where)


@attrs.frozen
class Number(Schema):
    """A number in a response."""

    description: str = ""

    def describe(self) -> JsonSchema:
        """See `Schema.describe`."""
        return _described({"type": "number"}, self.description)

    def check(self, value: Any, where: str) -> float:
        """See `Schema.check`."""
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise _refuse(where, "a number", value)
        return float(value)


@attrs.frozen
class Boolean(Schema):
    """True or false."""

    description: str = ""

    def describe(self) -> JsonSchema:
        """See `Schema.describe`."""
        return _described({"type": "boolean"}, self.description)

    def check(self, value: Any, where: str) -> bool:
        """See `Schema.check`."""
        if not isinstance(value, bool):
            raise _refuse(where, "true or false", value)
        return value

    def parse(self, text: str, where: str) -> bool:
        """See `Schema.parse`."""
        if text not in {"true", "false"}:
            raise _refuse(where, "true or false", text)
        return text == "true"


@attrs.frozen
class Choice(Schema):
    """One of several texts."""

    choices: tuple[str, ...]
    description: str = ""

    def describe(self) -> JsonSchema:
        """See `Schema.describe`."""
        return _described({"type": "string", "enum": list(self.choices)}, self.description)

    def check(self, value: Any, where: str) -> str:
        """See `Schema.check`."""
        if value not in self.choices:
            raise _refuse(where, " or ".join(self.choices), value)
        return str(value)


@attrs.frozen
class AnyValue(Schema):
    """Any JSON value."""

    description: str = ""

    def describe(self) -> JsonSchema:
        """See `Schema.describe`."""
        return _described({}, self.description)

    def check(self, value: Any, where: str) -> Any:
        """See `Schema.check`."""
        return value


@attrs.frozen
class Nullable(Schema):
    """A value or null."""

    inner: Schema

    @property
    def description(self) -> str:  # type: ignore[override]
        """The description of the value."""
        return self.inner.description

    def describe(self) -> JsonSchema:
        """See `Schema.describe`."""
        schema = self.inner.describe()
        if "$ref" in schema or "type" not in schema:
            return {"anyOf": [schema, {"type": "null"}]}
        return {**schema, "type": [schema["type"], "null"]}

    def check(self, value: Any, where: str) -> Any:
        """See `Schema.check`."""
        return None if value is None else self.inner.check(value, where)


@attrs.frozen
class Array(Schema):
    """A list."""

    item: Schema
    description: str = ""
    count_max: int = 100_000

    def describe(self) -> JsonSchema:
        """See `Schema.describe`."""
        return _described({"type": "array", "items": self.item.describe()}, self.description)

    def check(self, value: Any, where: str) -> list[Any]:
        """See `Schema.check`."""
        if not isinstance(value, list):
            raise _refuse(where, "a list", value)
        if len(value) > self.count_max:
            raise WebError("too_large", f"{where}: expected at most {self.count_max} items, not {len(value)}")
        return [self.item.check(each, f"{where}[{number}]") for number, each in enumerate(value)]


@attrs.frozen
class MapOf(Schema):
    """An object with any names, whose values have the same schema."""

    value: Schema
    description: str = ""

    def describe(self) -> JsonSchema:
        """See `Schema.describe`."""
        schema = {"type": "object", "additionalProperties": self.value.describe()}
        return _described(schema, self.description)

    def check(self, value: Any, where: str) -> dict[str, Any]:
        """See `Schema.check`."""
        if not isinstance(value, dict):
            raise _refuse(where, "an object", value)
        return {name: self.value.check(each, f"{where}.{name}") for name, each in value.items()}


@attrs.frozen
class Object(Schema):
    """An object with fixed fields.

    Attributes:
        name: The name of the schema in the OpenAPI description.
        fields: The schema of each field.
        optional: The fields that may be missing.
        description: A description of the value.
    """

    name: str
    fields: Mapping[str, Schema]
    optional: Sequence[str] = ()
    description: str = ""

    @property
    def required(self) -> list[str]:
        """The required fields."""
        return [each for each in self.fields if each not in self.optional]

    def describe(self) -> JsonSchema:
        """See `Schema.describe`."""
        return {"$ref": f"#/components/schemas/{self.name}"}

    def define(self) -> JsonSchema:
        """Return the full JSON Schema, to which others refer."""
        schema: JsonSchema = {
            "type": "object",
            "properties": {name: each.describe() for name, each in self.fields.items()},
            "required": self.required,
            "additionalProperties": False,
        }
        return _described(schema, self.description)

    def check(self, value: Any, where: str) -> dict[str, Any]:
        """See `Schema.check`."""
        if not isinstance(value, dict):
            raise _refuse(where, f"an object with {', '.join(self.fields)}", value)
        unknown = next((each for each in value if each not in self.fields), None)
        if unknown is not None:
            raise WebError("bad_request", f"{where}: expected {', '.join(self.fields)}, not {unknown[:100]!r}")
        missing = next((each for each in self.required if each not in value), None)
        if missing is not None:
            raise WebError("bad_request", f"{where}: expected {missing!r}")
        return {name: self.fields[name].check(each, f"{where}.{name}") for name, each in value.items()}


def find_objects(schema: Schema) -> dict[str, Object]:
    """Return all object schemas that a schema refers to, by name."""
    found: dict[str, Object] = {}
    waiting = [schema]
    while waiting:
        each = waiting.pop()
        if isinstance(each, Object) and each.name not in found:
            found[each.name] = each
            waiting += each.fields.values()
        elif isinstance(each, Array):
            waiting.append(each.item)
        elif isinstance(each, MapOf):
            waiting.append(each.value)
        elif isinstance(each, Nullable):
            waiting.append(each.inner)
    return found
