"""Permissions: every small pattern against a matcher that tries all ways, and each kind apart from the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import pytest

from dafka.broker.access.permissions import Permissions

KINDS = ("read", "write", "admin", "groups", "transactions")

QUESTIONS: dict[str, tuple[Callable[[Permissions, str], bool], set[str]]] = {
    "read": (Permissions.may_read, {"read"}),
    "write": (Permissions.may_write, {"write"}),
    "administer": (Permissions.may_administer, {"admin"}),
    "use group": (Permissions.may_use_group, {"groups"}),
    "use transaction": (Permissions.may_use_transaction, {"transactions"}),
    "see": (Permissions.may_see, {"read", "write", "admin"}),
    "create": (Permissions.may_create, {"admin"}),
    "create by use": (Permissions.may_create_by_use, {"write", "admin"}),
    "move": (Permissions.may_move, {"admin"}),
}


def words(alphabet: str, longest: int) -> Iterator[str]:
    for size in range(longest + 1):
        yield from map("".join, product(alphabet, repeat=size))


def fits(pattern: str, name: str) -> bool:
    """Return whether a star can stand for some characters such that the pattern is the name."""
    if not pattern:
        return not name
    if pattern[0] == "*":
        return any(fits(pattern[1:], name[size:]) for size in range(len(name) + 1))
    return bool(name) and pattern[0] == name[0] and fits(pattern[1:], name[1:])


@pytest.mark.parametrize(
    ("in_patterns", "in_names", "longest"), [("ab*", "ab", 4), ("*.a\n", ".a\n", 3), ("*[^A]", "aA[]", 3)]
)
def test_patterns_permit_exactly_what_they_fit(in_patterns: str, in_names: str, longest: int) -> None:
    names = list(words(in_names, longest))
    for pattern in words(in_patterns, longest):
        permissions = Permissions(read=(pattern,))
        permitted = [name for name in names if permissions.may_read(name)]
        assert permitted == [name for name in names if fits(pattern, name)], pattern


@pytest.mark.parametrize("question", QUESTIONS)
def test_each_kind_of_permission_answers_its_own_question(question: str) -> None:
    ask, sufficient = QUESTIONS[question]
    for held in product((False, True), repeat=len(KINDS)):
        kinds = {kind for kind, is_held in zip(KINDS, held, strict=True) if is_held}
        permissions = Permissions(**{kind: ("x", "t") if kind in kinds else ("x", "T", "tt") for kind in KINDS})
        assert ask(permissions, "t") is bool(kinds & sufficient)


def test_administrators_are_those_who_administer_every_topic() -> None:
    for patterns in (("*",), ("a", "*")):
        assert Permissions(admin=patterns).is_administrator
    others = Permissions(**{kind: ("*",) for kind in KINDS if kind != "admin"})
    for permissions in (Permissions(admin=("a*", "**", "")), others):
        assert not permissions.is_administrator


def test_writing_anywhere_needs_a_pattern_of_its_kind() -> None:
    for kind in KINDS:
        assert Permissions(**{kind: ("x",)}).may_write_anywhere() is (kind == "write")


def test_long_names_take_no_time() -> None:
    permissions = Permissions(read=("*a" * 30 + "*b",))
    assert not permissions.may_read("a" * 30_000)
