"""The operators: those of Cosmic Ray that make plausible mistakes, and more on the same interface.

Cosmic Ray cannot delete a statement, drop one of two conditions, swap two calls or omit an argument. Those mutants find
the worst gaps: a forgotten `fsync`, a release that is missing on one path.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, ClassVar

import parso
from cosmic_ray.ast import ast_nodes
from cosmic_ray.operators import provider
from cosmic_ray.operators.exception_replacer import ExceptionReplacer
from cosmic_ray.operators.operator import Example, Operator

Node = Any
"""A node of parso's tree, which has no types."""

Position = tuple[tuple[int, int], tuple[int, int]]

FROM_COSMIC_RAY = (
    "ReplaceComparisonOperator_Lt_LtE",
    "ReplaceComparisonOperator_LtE_Lt",
    "ReplaceComparisonOperator_Gt_GtE",
    "ReplaceComparisonOperator_GtE_Gt",
    "ReplaceComparisonOperator_Eq_NotEq",
    "ReplaceComparisonOperator_NotEq_Eq",
    "ReplaceComparisonOperator_Is_IsNot",
    "ReplaceComparisonOperator_IsNot_Is",
    "ReplaceBinaryOperator_Add_Sub",
    "ReplaceBinaryOperator_Sub_Add",
    "ReplaceBinaryOperator_Mul_FloorDiv",
    "ReplaceBinaryOperator_FloorDiv_Mul",
    "ReplaceBinaryOperator_Div_Mul",
    "ReplaceBinaryOperator_Mod_FloorDiv",
    "ReplaceBinaryOperator_BitAnd_BitOr",
    "ReplaceBinaryOperator_BitOr_BitAnd",
    "ReplaceBinaryOperator_LShift_RShift",
    "ReplaceBinaryOperator_RShift_LShift",
    "ReplaceUnaryOperator_Delete_Not",
    "ReplaceTrueWithFalse",
    "ReplaceFalseWithTrue",
    "ReplaceAndWithOr",
    "ReplaceOrWithAnd",
    "ReplaceBreakWithContinue",
    "ReplaceContinueWithBreak",
    "ExceptionReplacer",
    "NumberReplacer",
    "ZeroIterationForLoop",
)


class _Operator(Operator):
    """An operator that changes a node in place, at one of several points."""

    @abstractmethod
    def points(self, node: Node) -> Sequence[Node]:
        """Return the nodes that can be changed; one node can appear several times."""

    @abstractmethod
    def change(self, node: Node, point: Node, index: int) -> Node:
        """Return the changed node."""

    def mutation_positions(self, node: Node) -> Iterator[Position]:
        for point in self.points(node):
            yield point.start_pos, point.end_pos

    def mutate(self, node: Node, index: int) -> Node:
        return self.change(node, self.points(node)[index], index)


def _parse(code: str) -> Node:
    return parso.parse(code)  # type: ignore[no-untyped-call]


def _with_prefix(node: Node, code: str) -> Node:
    return _parse(node.get_first_leaf().prefix + code)


def _is_in_function(node: Node) -> bool:
    while node is not None and node.type != "classdef":
        if node.type == "funcdef":
            return True
        node = node.parent
    return False


def _is_call(node: Node) -> bool:
    return node.type in {"atom_expr", "power"} and node.children[-1].get_code().startswith("(")


class DeleteStatement(_Operator):
    """Deletes a call, an assignment to an attribute, a `raise`, a bare `return`, a `continue` or a `del`."""

    def points(self, node: Node) -> Sequence[Node]:
        if node.type == "simple_stmt" and len(node.children) == 2 and _is_in_function(node):
            (statement, _) = node.children
            if self._can_go(statement):
                return (statement,)
        return ()

    @staticmethod
    def _can_go(statement: Node) -> bool:
        if statement.type == "expr_stmt":
            target, sign = statement.children[0], statement.children[1]
            is_augmented = sign.type == "operator" and sign.value not in {"=", ":"}
            return is_augmented or target.type in {"atom_expr", "power"}
        is_leaf = statement.type == "keyword" and statement.value in {"return", "continue", "raise"}
        return is_leaf or statement.type in {"raise_stmt", "del_stmt"} or _is_call(statement)

    def change(self, node: Node, point: Node, index: int) -> Node:
        return _with_prefix(node, "pass\n")

    @classmethod
    def examples(cls) -> Iterable[Example]:
        return (
            Example("def f():\n    g()\n", "def f():\n    pass\n"),
            Example("def f():\n    await g.h(1)\n", "def f():\n    pass\n"),
            Example("def f(self):\n    self.a = 1\n", "def f(self):\n    pass\n"),
            Example("def f(a):\n    a += 1\n", "def f(a):\n    pass\n"),
            Example("def f():\n    raise E\n", "def f():\n    pass\n"),
            Example("def f(a):\n    if a:\n        return\n    g()\n", "def f(a):\n    if a:\n        pass\n    g()\n"),
        )


class SwapStatements(_Operator):
    """Swaps two different calls that follow each other, unless both start tasks, which Trio runs in any order."""

    def points(self, node: Node) -> Sequence[Node]:
        if node.type != "suite":
            return ()
        calls = [(first, second) for first, second in pairwise(node.children) if self._are_alone(first, second)]
        return [first for first, second in calls if self._has_order(first, second)]

    @staticmethod
    def _are_alone(*nodes: Node) -> bool:
        return all(
            each.type == "simple_stmt" and len(each.children) == 2 and _is_call(each.children[0]) for each in nodes
        )

    @staticmethod
    def _has_order(first: Node, second: Node) -> bool:
        codes = {each.get_code().strip() for each in (first, second)}
        return len(codes) == 2 and not all(".start_soon(" in each for each in codes)

    def change(self, node: Node, point: Node, index: int) -> Node:
        first = node.children.index(point)
        node.children[first], node.children[first + 1] = node.children[first + 1], node.children[first]
        return node

    @classmethod
    def examples(cls) -> Iterable[Example]:
        return (Example("def f():\n    g()\n    h()\n", "def f():\n    h()\n    g()\n"),)


class ConstantCondition(_Operator):
    """Replaces the condition of an `if`, an `elif`, a `while` or a conditional expression with True or False."""

    def points(self, node: Node) -> Sequence[Node]:
        if node.type in {"if_stmt", "while_stmt"}:
            children = node.children
            words = ("if", "elif", "while")
            found = [after for word, after in pairwise(children) if word.type == "keyword" and word.value in words]
        elif node.type in {"test", "ternary"} and len(node.children) == 5:
            found = [node.children[2]]
        else:
            return ()
        # A loop that never ends would only be a slow way of finding the same.
        copies = 1 if node.type == "while_stmt" else 2
        return [condition for condition in found for _ in range(copies) if condition.get_code().strip() != "True"]

    def change(self, node: Node, point: Node, index: int) -> Node:
        value = "True" if index % 2 and node.type != "while_stmt" else "False"
        node.children[node.children.index(point)] = _parse(f" {value}")
        return node

    @classmethod
    def examples(cls) -> Iterable[Example]:
        return (
            Example("if a: pass", "if False: pass"),
            Example("if a: pass", "if True: pass", occurrence=1),
            Example("if a: pass\nelif b: pass", "if a: pass\nelif False: pass", occurrence=2),
            Example("while a: pass", "while False: pass"),
            Example("x = a if b else c", "x = a if True else c", occurrence=1),
        )


class DropOperand(_Operator):
    """Omits one operand of `and` or `or`."""

    def points(self, node: Node) -> Sequence[Node]:
        return list(node.children[::2]) if node.type in {"and_test", "or_test"} else ()

    def change(self, node: Node, point: Node, index: int) -> Node:
        if index == 0:
            code = node.get_code(include_prefix=False)
            rest = code[len(node.children[0].get_code(include_prefix=False)) :].lstrip()
            return _with_prefix(node, rest[len(node.children[1].value) :].lstrip())
        del node.children[2 * index - 1 : 2 * index + 1]
        return node

    @classmethod
    def examples(cls) -> Iterable[Example]:
        return (
            Example("x = a and b", "x = b"),
            Example("x = a and b", "x = a", occurrence=1),
            Example("x = a or b or c", "x = a or c", occurrence=1),
        )


class OmitKeywordArgument(_Operator):
    """Omits a keyword argument of a call, so that the default applies."""

    def points(self, node: Node) -> Sequence[Node]:
        if node.type != "trailer" or node.children[0].value != "(" or len(node.children) != 3:
            return ()
        return [each for each in self._arguments(node) if each.type == "argument" and each.children[1] == "="]

    @staticmethod
    def _arguments(node: Node) -> list[Node]:
        inner = node.children[1]
        return list(inner.children[::2]) if inner.type == "arglist" else [inner]

    def change(self, node: Node, point: Node, index: int) -> Node:
        kept = [each.get_code().strip() for each in self._arguments(node) if each is not point]
        return _parse(f"({', '.join(kept)})")

    @classmethod
    def examples(cls) -> Iterable[Example]:
        return (Example("f(a, b=1, c=2)", "f(a, c=2)"), Example("f(b=1)", "f()"))


class RemoveWith(_Operator):
    """Runs the block of a `with` that binds no name without its context manager: without the lock, for example."""

    def points(self, node: Node) -> Sequence[Node]:
        is_async = node.type == "async_stmt"
        statement = node.children[1] if is_async else node
        if statement.type != "with_stmt" or (not is_async and node.parent.type == "async_stmt"):
            return ()
        items = statement.children[1:-2]
        return () if any(each.type == "with_item" for each in items) else (statement,)

    def change(self, node: Node, point: Node, index: int) -> Node:
        condition = _with_prefix(node, "if True")
        changed = [condition, *point.children[-2:]]
        node.children = changed
        return node

    @classmethod
    def examples(cls) -> Iterable[Example]:
        return (
            Example("with a: pass", "if True: pass"),
            Example("async def f():\n    async with a, b: pass\n", "async def f():\n    if True: pass\n"),
        )


class ConfuseNames(_Operator):
    """Calls a function's counterpart: `max` for `min`, `pop` for `popleft`."""

    COUNTERPARTS: ClassVar = {
        "min": "max",
        "max": "min",
        "any": "all",
        "all": "any",
        "popleft": "pop",
        "appendleft": "append",
        "bisect_left": "bisect_right",
        "bisect_right": "bisect_left",
        "bisect": "bisect_left",
        "floor": "ceil",
        "ceil": "floor",
        "fsync": "fileno",
        "difference_update": "intersection_update",
    }

    def points(self, node: Node) -> Sequence[Node]:
        if node.type == "name" and node.value in self.COUNTERPARTS:
            after = node.get_next_leaf()
            if after is not None and after.value == "(" and node.parent.type != "funcdef":
                return (node,)
        return ()

    def change(self, node: Node, point: Node, index: int) -> Node:
        node.value = self.COUNTERPARTS[node.value]
        return node

    @classmethod
    def examples(cls) -> Iterable[Example]:
        return (Example("x = min(a, b)", "x = max(a, b)"), Example("q.popleft()", "q.pop()"))


class NegateMembership(_Operator):
    """Replaces `in` with `not in`, and the reverse, where it decides something."""

    def points(self, node: Node) -> Sequence[Node]:
        if node.type != "comparison":
            return ()
        return [each for each in node.children[1::2] if each.get_code().split() in (["in"], ["not", "in"])]

    def change(self, node: Node, point: Node, index: int) -> Node:
        negated = " in" if point.get_code().split() == ["not", "in"] else " not in"
        node.children[node.children.index(point)] = _parse(negated)
        return node

    @classmethod
    def examples(cls) -> Iterable[Example]:
        return (Example("x = a in b", "x = a not in b"), Example("x = a not in b", "x = a in b"))


class _ExceptionReplacer(ExceptionReplacer):
    """Cosmic Ray's operator, also for a tuple with a name that has dots, which Cosmic Ray cannot change."""

    @staticmethod
    def _name_nodes(node: Node) -> list[Node]:
        return [name.get_last_leaf() for name in ExceptionReplacer._name_nodes(node)]


OWN: tuple[type[_Operator], ...] = (
    DeleteStatement,
    SwapStatements,
    ConstantCondition,
    DropOperand,
    OmitKeywordArgument,
    RemoveWith,
    ConfuseNames,
    NegateMembership,
)

OPERATORS: dict[str, Operator] = {
    **{name: provider.OperatorProvider()[name]() for name in FROM_COSMIC_RAY},
    "ExceptionReplacer": _ExceptionReplacer(),
    **{operator.__name__: operator() for operator in OWN},
}


def positions(tree: Node, operator: Operator) -> Iterator[Position]:
    """Return the places of an operator's mutants, in the order of their occurrence."""
    for node in ast_nodes(tree):
        yield from operator.mutation_positions(node)
