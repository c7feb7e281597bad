"""Reads a grammar file into expressions: ABNF (RFC 5234), parsed by the `abnf` package, and RFC 46's two additions.

The additions are rewritten before parsing, because they are not ABNF: a command id `%d'M'` becomes the number `%d77`,
and a role prefix `S:STORE-HELLO` becomes part of the rule's name.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

import attrs
from abnf import Node, ParseError
from abnf.parser import ABNFGrammarRule

from dafka_conformance.model import Role


class GrammarError(Exception):
    """The grammar file is wrong. The text says where, and what is expected."""


@attrs.frozen
class Bytes:
    """Literal bytes."""

    value: bytes


@attrs.frozen
class Range:
    """One byte from `first` to `last`."""

    first: int
    last: int


@attrs.frozen
class Reference:
    """Another rule. In a traffic rule, it is a message that `role` sends."""

    rule: str
    role: Role | None = None


@attrs.frozen
class Sequence:
    """Several parts, one after the other."""

    parts: tuple[Expression, ...]


@attrs.frozen
class Choice:
    """One of several alternatives."""

    parts: tuple[Expression, ...]


@attrs.frozen
class Repeat:
    """A part that occurs from `least` to `most` times. None means any number of times."""

    part: Expression
    least: int
    most: int | None


Expression: TypeAlias = Bytes | Range | Reference | Sequence | Choice | Repeat

_COMMAND_ID = re.compile(r"%d'(.)'")
_ROLE_PREFIX = re.compile(r"\b([PCS]):(?=[A-Za-z])")
_ROLE_MARK = "--"
_COMMENT = re.compile(r';(?=(?:[^"\n]*"[^"\n]*")*[^"\n]*$).*', re.MULTILINE)
_BASES = {"hex-val": 16, "dec-val": 10, "bin-val": 2}

CORE_RULES: Mapping[str, Expression] = {
    "OCTET": Range(0x00, 0xFF),
    "VCHAR": Range(0x21, 0x7E),
    "DIGIT": Range(0x30, 0x39),
    "HEXDIG": Choice((Range(0x30, 0x39), Range(0x41, 0x46), Range(0x61, 0x66))),
}
"""The core rules of RFC 5234 that the grammar uses."""


def read_rules(path: Path) -> dict[str, Expression]:
    """Read the rules of a grammar file.

    Args:
        path: The file.

    Returns:
        The rules by name, in the order of the file.

    Raises:
        GrammarError: The file cannot be read or is not ABNF, or a rule has two definitions or refers to an unknown one.
    """
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise GrammarError(f"cannot read the grammar {path}: {error}") from None
    return parse_rules(text, path.name)


def parse_rules(text: str, name: str = "grammar") -> dict[str, Expression]:
    """Return the rules of a grammar as `read_rules` does, from text."""
    return dict(_parse_rules(text, name))


@functools.lru_cache(maxsize=4)  # parsing takes longer than all else that a command does at its start
def _parse_rules(text: str, name: str) -> Mapping[str, Expression]:
    prepared = _COMMAND_ID.sub(lambda match: f"%d{ord(match[1])}", _COMMENT.sub("", text))
    prepared = _ROLE_PREFIX.sub(rf"\1{_ROLE_MARK}", prepared)
    lines = [line.rstrip() for line in prepared.splitlines() if line.strip()]
    try:
        tree = ABNFGrammarRule("rulelist").parse_all("\r\n".join(lines) + "\r\n")
    except ParseError as error:
        raise GrammarError(f"{name} is not ABNF: {_first_bad_line(lines) or error}") from None
    rules: dict[str, Expression] = {}
    for node in _descendants(tree, "rule"):
        rule, expression = _child(node, "rulename").value, _read(_child(node, "elements"))
        if rules.setdefault(rule, expression) != expression:
            raise GrammarError(f"{name} has two different definitions of {rule}: expected one")
    for rule, expression in rules.items():
        for reference in references(expression):
            if reference.rule not in rules and reference.rule not in CORE_RULES:
                raise GrammarError(f"{name}: the rule {rule} refers to {reference.rule}, which is not defined")
    return rules


def references(expression: Expression) -> Iterator[Reference]:
    """Yield every reference in an expression, from left to right."""
    if isinstance(expression, Reference):
        yield expression
    elif isinstance(expression, Repeat):
        yield from references(expression.part)
    elif isinstance(expression, Sequence | Choice):
        for part in expression.parts:
            yield from references(part)


def _first_bad_line(lines: list[str]) -> str:
    """Return the first line of the first rule that cannot be parsed; empty if there is none."""
    rule: list[str] = []
    for line in [*lines, "end"]:
        if rule and not line[0].isspace():
            try:
                ABNFGrammarRule("rulelist").parse_all("\r\n".join(rule) + "\r\n")
            except ParseError:
                return rule[0].replace(_ROLE_MARK, ":").strip()
            rule = []
        rule.append(line)
    return ""


def _read(node: Node) -> Expression:
    """Return the expression of a node of the right side of a rule."""
    reader = _READERS.get(node.name)
    if reader is not None:
        return reader(node)
    within = next((child for child in node.children if child.name in _EXPRESSIONS), None)
    if within is None:
        raise GrammarError(f"cannot read {node.value!r} in the grammar")
    return _read(within)


def _read_alternation(node: Node) -> Expression:
    return _joined(Choice, [_read(child) for child in node.children if child.name == "concatenation"])


def _read_concatenation(node: Node) -> Expression:
    return _joined(Sequence, [_read(child) for child in node.children if child.name == "repetition"])


def _read_repetition(node: Node) -> Expression:
    part = _read(_child(node, "element"))
    counts = [child.value for child in node.children if child.name == "repeat"]
    return Repeat(part, *_read_counts(counts[0])) if counts else part


def _read_option(node: Node) -> Expression:
    return Repeat(_read(_child(node, "alternation")), 0, 1)


def _read_name(node: Node) -> Expression:
    role, mark, rule = node.value.partition(_ROLE_MARK)
    return Reference(rule, Role(role)) if mark else Reference(node.value)


def _read_text(node: Node) -> Expression:
    return Bytes(node.value.partition('"')[2].rstrip('"').encode("ascii"))


def _joined(kind: type[Choice] | type[Sequence], parts: list[Expression]) -> Expression:
    return parts[0] if len(parts) == 1 else kind(tuple(parts))


def _read_counts(text: str) -> tuple[int, int | None]:
    least, star, most = text.partition("*")
    if not star:
        return int(text), int(text)
    return int(least or 0), int(most) if most else None


def _read_number(node: Node) -> Expression:
    node = node.children[-1]
    digits, base = node.value[1:], _BASES[node.name]
    if "-" in digits:
        first, last = digits.split("-")
        return Range(int(first, base), int(last, base))
    return Bytes(bytes(int(part, base) for part in digits.split(".")))


def _child(node: Node, name: str) -> Node:
    return next(child for child in node.children if child.name == name)


def _descendants(node: Node, name: str) -> Iterator[Node]:
    for child in node.children:
        if child.name == name:
            yield child
        else:
            yield from _descendants(child, name)


_READERS: Mapping[str, Callable[[Node], Expression]] = {
    "alternation": _read_alternation,
    "concatenation": _read_concatenation,
    "repetition": _read_repetition,
    "option": _read_option,
    "rulename": _read_name,
    "num-val": _read_number,
    "char-val": _read_text,
}
_EXPRESSIONS = {*_READERS, "element", "group"}
