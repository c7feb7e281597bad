"""The mutants of a file: the places where an operator applies, and the code that it makes of them."""

from __future__ import annotations

import ast
import difflib
import hashlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import attrs
from cosmic_ray.ast import get_ast
from cosmic_ray.mutating import mutate_code

from tests.mutation.operators import OPERATORS, positions
from tests.mutation.scope import is_example, tuning_names

_NOT_MUTATED_FUNCTIONS = {"__repr__", "__str__"}


@attrs.frozen
class Mutant:
    """One change of one file.

    Attributes:
        file: the path, from the top of the repository.
        line: the first line that changes, from 1.
        line_end: the last one.
        function: the qualified name of the function or class around it, or an empty string.
        operator: what changes it.
        occurrence: which of the operator's places in the file.
        is_definition: whether importing the file runs the line: it is a constant, an attribute or a default.
    """

    file: str
    line: int
    line_end: int
    function: str
    operator: str
    occurrence: int
    is_definition: bool = attrs.field(default=False, eq=False)

    def apply(self, source: str) -> str:
        changed: str | None = mutate_code(source, OPERATORS[self.operator], self.occurrence)
        assert changed is not None, self
        return changed


def digest(source: str) -> str:
    return hashlib.sha256(source.encode()).hexdigest()[:16]


def changed_lines(source: str, mutated: str) -> tuple[str, str]:
    """Return the lines that differ, before and after, with their white space normalized."""
    before, after = source.splitlines(), mutated.splitlines()
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    blocks = [block for block in matcher.get_opcodes() if block[0] != "equal"]
    if not blocks:
        return "", ""
    first, last = blocks[0], blocks[-1]
    return _normalize(before[first[1] : last[2]]), _normalize(after[first[3] : last[4]])


def _normalize(lines: list[str]) -> str:
    stripped = (line.strip() for line in lines)
    return " ".join(" ".join(line.split()) for line in stripped if not line.startswith("#"))


@cache
def mutants_of(file: str, source: str) -> tuple[Mutant, ...]:
    """Return all mutants of a file, except in code without effect on the program."""
    structure = _Structure(source)
    return tuple(_mutants(file, source, structure))


def _mutants(file: str, source: str, structure: _Structure) -> Iterator[Mutant]:
    tree = get_ast(source)
    for name, operator in OPERATORS.items():
        if is_example(file, name):
            continue
        for occurrence, (start, end) in enumerate(positions(tree, operator)):
            if not structure.is_skipped(start, end):
                line = start[0]
                function, is_definition = structure.function_at(line), structure.is_definition(line)
                yield Mutant(file, line, end[0], function, name, occurrence, is_definition)


def read(root: Path, file: str) -> str:
    return (root / file).read_text(encoding="utf-8")


class _Structure:
    """A file as Python's own parser sees it: its functions, and the ranges in which nothing is mutated."""

    def __init__(self, source: str) -> None:
        self._skipped: list[tuple[tuple[int, int], tuple[int, int]]] = []
        self._functions: list[tuple[int, int, str]] = []
        self._bodies: list[tuple[int, int]] = []
        self._lines = source.splitlines()
        self._walk(ast.parse(source), "")

    def is_skipped(self, start: tuple[int, int], end: tuple[int, int]) -> bool:
        return any(first <= start and end <= last for first, last in self._skipped)

    def function_at(self, line: int) -> str:
        around = [(last - first, name) for first, last, name in self._functions if first <= line <= last]
        return min(around)[1] if around else ""

    def is_definition(self, line: int) -> bool:
        return not any(first <= line <= last for first, last in self._bodies)

    def _walk(self, node: ast.AST, name: str) -> None:
        for child in ast.iter_child_nodes(node):
            inner = name
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                inner = f"{name}.{child.name}" if name else child.name
                self._functions.append((child.lineno, child.end_lineno or child.lineno, inner))
                if not isinstance(child, ast.ClassDef):
                    self._bodies.append((child.body[0].lineno, child.end_lineno or child.lineno))
                for decorator in child.decorator_list:
                    self._skip(decorator)
                if child.name in _NOT_MUTATED_FUNCTIONS:
                    self._skip(child)
            for part in self._parts_without_effect(child):
                self._skip(part)
            self._walk(child, inner)

    @staticmethod
    def _parts_without_effect(node: ast.AST) -> Iterator[ast.AST]:
        """Annotations, texts, what only the type checker sees, and numbers that any other would do for."""
        match node:
            case ast.arg(annotation=ast.AST() as annotation):
                yield annotation
            case ast.AnnAssign(annotation=annotation):
                yield annotation
            case ast.FunctionDef(returns=ast.AST() as returns) | ast.AsyncFunctionDef(returns=ast.AST() as returns):
                yield returns
            case ast.JoinedStr() | ast.Assert():
                yield node
            case ast.Assign(targets=[ast.Name(id=name)]) if name in tuning_names():
                yield node
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                yield node
            case ast.Call(func=ast.Name(id="TypeVar" | "NewType" | "cast" | "ParamSpec" | "UsageMistake")):
                yield node
            case ast.Call(func=ast.Attribute(attr="field"), keywords=keywords):
                # What a constructor takes is for the type checker, and what is printed for people.
                yield from (each for each in keywords if each.arg in {"init", "repr"})
            case ast.Raise(exc=ast.Call(args=args, keywords=keywords)):
                # The statement can go, but its message is not changed.
                yield from args
                yield from keywords
            case _:
                pass

    def _skip(self, node: ast.AST) -> None:
        first = (node.lineno, self._column(node.lineno, node.col_offset))  # type: ignore[attr-defined]
        last = (node.end_lineno, self._column(node.end_lineno, node.end_col_offset))  # type: ignore[attr-defined]
        self._skipped.append((first, last))

    def _column(self, line: int, offset: int) -> int:
        return len(self._lines[line - 1].encode()[:offset].decode())
