"""An async generator that is left early runs on until the garbage collector finds it, so its user closes it."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import dafka
import dafka_conformance

_RELEVANT = re.compile(r"^ +yield |\basync for ", re.MULTILINE)
"""What a module contains in which there is anything to find."""

LEFT = """
async def read():
    yield 1

async def use():
    async for each in read():
        break
"""
LEFT_IN_LIST = """
class Reader:
    async def read(self):
        yield 1

    async def use(self):
        return [1 / each async for each in self.read()]
"""
CLOSED = """
@asynccontextmanager
async def opened():
    yield 1

async def read():
    async with opened():
        yield 1

async def use():
    async with aclosing(read()) as numbers:
        async for each in numbers:
            break
    async for each in opened_elsewhere():
        break
"""


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes in a function that are not in a function inside it."""
    for child in ast.iter_child_nodes(function):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield child
            yield from _own_nodes(child)


def _left_open(texts: dict[str, str]) -> list[str]:
    """Return where async generators of these modules are called in the loop that iterates over them."""
    trees = {name: ast.parse(text) for name, text in texts.items()}
    generators = {
        node.name
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.AsyncFunctionDef)
        and not node.decorator_list
        and any(isinstance(each, ast.Yield) for each in _own_nodes(node))
    }
    return [
        f"{name}:{node.iter.lineno}"
        for name, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.AsyncFor | ast.comprehension)
        and isinstance(node.iter, ast.Call)
        and _name(node.iter.func) in generators
    ]


def test_async_generators_are_closed_where_they_are_used() -> None:
    texts = {
        str(path): text
        for package in (dafka, dafka_conformance)
        for path in Path(str(package.__file__)).parent.rglob("*.py")
        if _RELEVANT.search(text := path.read_text(encoding="utf-8"))
    }
    assert _left_open(texts) == [], "iterate in `async with aclosing(...)`"


@pytest.mark.parametrize(("text", "found"), [(LEFT, ["m:6"]), (LEFT_IN_LIST, ["m:7"]), (CLOSED, [])])
def test_an_async_generator_that_is_left_open_is_found(text: str, found: list[str]) -> None:
    assert _left_open({"m": text}) == found
