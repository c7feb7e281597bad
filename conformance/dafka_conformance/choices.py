"""What the command is to work on, from the words it was given: grammar, target, roles, dialects, scenarios."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dafka_conformance.catalogue import Catalogue
from dafka_conformance.frontend import parse_settings
from dafka_conformance.grammar import Grammar, GrammarError
from dafka_conformance.mistakes import Mistake
from dafka_conformance.model import Dialect, Role
from dafka_conformance.targets import Target, TargetError, open_target


def load(grammar_path: Path | None) -> Catalogue:
    """The catalogue, by the shipped grammar or another one. Raises `Mistake`."""
    try:
        catalogue = Catalogue.load(grammar_path)
        if grammar_path is not None:
            _check_messages(catalogue.grammar, grammar_path)
    except GrammarError as error:
        raise Mistake(str(error)) from None
    return catalogue


def _check_messages(grammar: Grammar, path: Path) -> None:
    """Raises `GrammarError` where the scenarios could not say a message, since its rule lacks or adds a field."""
    for name, form in Grammar.load().formats.by_name.items():
        if name not in grammar.formats.by_name:
            raise GrammarError(f"{path} has no message rule {name}, which scenarios speak of")
        if set(grammar.formats.by_name[name].field_names) != set(form.field_names):
            fields = ", ".join(form.field_names) or "no fields"
            raise GrammarError(f"{path}: scenarios give {name} other fields than its rule has: expected {fields}")


def open_chosen(name: str, settings: Sequence[str]) -> Target:
    """The target of this name. Raises `Mistake`."""
    try:
        return open_target(name, parse_settings(settings, "--set"))
    except TargetError as error:
        raise Mistake(str(error)) from None


def chosen_roles(titles: Sequence[str]) -> list[Role]:
    """The roles of these titles; all for none."""
    return [role for role in Role if not titles or role.title in titles]


def chosen_dialects(names: Sequence[str], target: Target) -> list[Dialect]:
    """The dialects of these names; for none, all that the target has. Raises `Mistake`."""
    wanted = [Dialect(name) for name in dict.fromkeys(names)] or list(target.dialects)
    for dialect in wanted:
        if dialect not in target.dialects:
            can = " and ".join(each.value for each in target.dialects)
            raise Mistake(f"{target.name} cannot be told to send {dialect.value}, only {can}")
    return wanted


def check_selection(
    catalogue: Catalogue, target: Target, roles: list[Role], dialects: list[Dialect], patterns: Sequence[str]
) -> int:
    """How many scenarios will be played or skipped, each dialect counted. Raises `Mistake` where there is none."""
    check_patterns(catalogue, patterns)
    there = [role for role in roles if role in target.abilities]
    if not there:
        asked = " and no ".join(role.title for role in roles)
        has = " and ".join(f"a {role.title}" for role in Role if role in target.abilities) or "none"
        raise Mistake(f"{target.name} has no {asked}: it has {has}")
    total = sum(len(catalogue.select(there, dialect, patterns)) for dialect in dialects)
    if not total:
        raise Mistake(no_scenario(there, dialects, patterns))
    return total


def check_patterns(catalogue: Catalogue, patterns: Sequence[str]) -> None:
    """Raises `Mistake` for a pattern that no scenario matches."""
    for pattern in patterns:
        if not catalogue.select(patterns=[pattern]):
            raise Mistake(f"no scenario matches {pattern!r}; dafka-conformance list shows them all")


def no_scenario(roles: Sequence[Role], dialects: Sequence[Dialect], patterns: Sequence[str]) -> str:
    """The sentence that says that nothing is left to play."""
    matches = f" matches {' or '.join(map(repr, patterns))}" if patterns else ""
    of = " or ".join(role.title for role in roles)
    spoken = " or ".join(dialect.value for dialect in dialects)
    return f"no scenario of a {of} in {spoken}{matches or ' is there'}; dafka-conformance list shows them all"
