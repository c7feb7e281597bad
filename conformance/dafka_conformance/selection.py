"""Selection of what to run: the grammar, the target, and the roles, dialects and scenarios that the user names.

The command line and the pytest plugin share these functions. Every mistake of the user is a `SelectionError`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dafka_conformance.catalog import Catalog
from dafka_conformance.grammar import Grammar, GrammarError
from dafka_conformance.model import Dialect, Role
from dafka_conformance.targets import Target, TargetError, open_target

_LIST_HINT = "run dafka-conformance list to see all scenarios"


class SelectionError(Exception):
    """The user asked for something that does not exist or cannot be run; the text is one sentence for the user."""


def load_catalog(grammar_path: Path | None) -> Catalog:
    """Return the catalog of scenarios for the shipped grammar, or for another grammar file.

    Args:
        grammar_path: The grammar file. None means the shipped one.

    Returns:
        The catalog.

    Raises:
        SelectionError: The file cannot be read, is not ABNF, or has not all messages that scenarios send.
    """
    try:
        catalog = Catalog.load(grammar_path)
        if grammar_path is not None:
            _check_messages(catalog.grammar, grammar_path)
    except GrammarError as error:
        raise SelectionError(str(error)) from None
    return catalog


def _check_messages(grammar: Grammar, path: Path) -> None:
    """Raise `GrammarError` if the grammar misses a message, or a message's fields differ from the shipped grammar's."""
    for name, form in Grammar.load().formats.by_name.items():
        if name not in grammar.formats.by_name:
            raise GrammarError(f"{path} has no rule for the message {name}, which scenarios send: add the rule")
        if set(grammar.formats.by_name[name].field_names) != set(form.field_names):
            fields = ", ".join(form.field_names) or "no fields"
            raise GrammarError(f"{path}: the rule for {name} has other fields than scenarios send: expected {fields}")


def open_selected_target(name: str, settings: Sequence[str], option: str = "--set") -> Target:
    """Return the target of this name.

    Args:
        name: A shipped target's name, the path of a target file, or `package.module:factory`.
        settings: The target's variables as NAME=VALUE texts.
        option: The command-line option that gave the settings, for error messages.

    Returns:
        The target, not started.

    Raises:
        SelectionError: There is no such target, its description is wrong, or a setting is.
    """
    try:
        return open_target(name, parse_settings(settings, option))
    except TargetError as error:
        raise SelectionError(str(error)) from None


def parse_settings(settings: Sequence[str], option: str) -> dict[str, str]:
    """Return the variables that NAME=VALUE texts set.

    Args:
        settings: The texts.
        option: The command-line option that gave them, for error messages.

    Returns:
        The values by name.

    Raises:
        SelectionError: A text is not NAME=VALUE, or a name is given twice.
    """
    variables: dict[str, str] = {}
    for setting in settings:
        name, is_set, value = setting.partition("=")
        if not name or not is_set:
            raise SelectionError(f"{option}: expected NAME=VALUE, not {setting!r}")
        if name in variables:
            raise SelectionError(f"{option} sets {name} twice: expected it once")
        variables[name] = value
    return variables


def select_roles(titles: Sequence[str]) -> list[Role]:
    """Return the roles with these titles; all roles if there are no titles."""
    return [role for role in Role if not titles or role.title in titles]


def select_dialects(names: Sequence[str], target: Target) -> list[Dialect]:
    """Return the dialects with these names; all dialects of the target if there are no names.

    Args:
        names: The names.
        target: The target.

    Returns:
        The dialects, without duplicates.

    Raises:
        SelectionError: The target cannot send one of the dialects.
    """
    selected = [Dialect(name) for name in dict.fromkeys(names)] or list(target.dialects)
    for dialect in selected:
        if dialect not in target.dialects:
            available = " and ".join(each.value for each in target.dialects)
            raise SelectionError(f"{target.name} cannot send the dialect {dialect.value}: expected {available}")
    return selected


def count_scenarios(
    catalog: Catalog, target: Target, roles: list[Role], dialects: list[Dialect], patterns: Sequence[str]
) -> int:
    """Return how many scenarios a run has, skipped ones included.

    Args:
        catalog: The scenarios.
        target: The target.
        roles: The selected roles.
        dialects: The selected dialects.
        patterns: Glob patterns for scenario names; empty for all.

    Returns:
        The number of scenarios. Each dialect counts.

    Raises:
        SelectionError: The target has none of the roles, a pattern matches no scenario, or no scenario is left.
    """
    check_patterns(catalog, patterns)
    available = [role for role in roles if role in target.abilities]
    if not available:
        wanted = " and no ".join(role.title for role in roles)
        has = " and ".join(f"a {role.title}" for role in Role if role in target.abilities) or "none"
        raise SelectionError(f"{target.name} has no {wanted}: it has {has}")
    total = sum(len(catalog.select(available, dialect, patterns)) for dialect in dialects)
    if not total:
        raise SelectionError(no_scenario_message(available, dialects, patterns))
    return total


def check_patterns(catalog: Catalog, patterns: Sequence[str]) -> None:
    """Check that each pattern matches a scenario.

    Args:
        catalog: The scenarios.
        patterns: Glob patterns for scenario names.

    Raises:
        SelectionError: A pattern matches none.
    """
    for pattern in patterns:
        if not catalog.select(patterns=[pattern]):
            raise SelectionError(f"no scenario matches {pattern!r}; {_LIST_HINT}")


def no_scenario_message(roles: Sequence[Role], dialects: Sequence[Dialect], patterns: Sequence[str]) -> str:
    """Return the sentence that says that the selection leaves no scenario."""
    matches = f" matches {' or '.join(map(repr, patterns))}" if patterns else ""
    titles = " or ".join(role.title for role in roles)
    names = " or ".join(dialect.value for dialect in dialects)
    return f"no scenario for a {titles} in {names}{matches or ' exists'}; {_LIST_HINT}"
