"""The catalog of all scenarios: from the grammar's sentences, and the scripts and Python functions in `scenarios/`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path

import attrs

from dafka_conformance.clauses import Clauses
from dafka_conformance.grammar import Grammar
from dafka_conformance.interpreters import sentence_runner
from dafka_conformance.interpreters.script_runner import read_scenarios
from dafka_conformance.model import Clause, Dialect, Role
from dafka_conformance.scenario import Scenario, ScenarioRegistry

SCENARIOS_FOLDER = Path(__file__).with_name("scenarios")


class UnknownScenarioError(Exception):
    """There is no scenario with this name."""


@attrs.frozen
class Catalog:
    """The scenarios and clauses of the suite.

    Attributes:
        grammar: The grammar that messages are checked against.
        clauses: The requirements of the protocol.
        scenarios: All scenarios by name, in order.
    """

    grammar: Grammar
    clauses: Clauses
    scenarios: dict[str, Scenario]

    @classmethod
    def load(cls, grammar_path: Path | None = None, folder: Path = SCENARIOS_FOLDER) -> Catalog:
        """Load the scenarios, the clauses and the grammar.

        Args:
            grammar_path: The grammar file; the shipped one by default.
            folder: The folder of scripts and modules.

        Returns:
            The catalog.

        Raises:
            GrammarError: The grammar file is wrong.
            ClauseError: `clauses.toml` is wrong.
            ScriptError: A script is wrong.
            ValueError: Two scenarios have the same name.
        """
        grammar = Grammar.load(grammar_path) if grammar_path else Grammar.load()
        found = [scenario for path in sorted(folder.glob("*.toml")) for scenario in read_scenarios(path)]
        for path in sorted(folder.glob("[!_]*.py")):
            registry: ScenarioRegistry = import_module(f"{__package__}.{folder.name}.{path.stem}").SCENARIOS
            found += registry.scenarios
        found += sentence_runner.sentence_scenarios(grammar.sentences)
        twice = [name for name, count in Counter(scenario.name for scenario in found).items() if count > 1]
        if twice:
            raise ValueError(f"two scenarios have the name {twice[0]}: rename one of them")
        speakers = {name: grammar.roles_of(name) for name in grammar.formats.by_name}
        clauses = Clauses.load().with_messages(speakers)
        return cls(grammar, clauses, {scenario.name: scenario for scenario in found})

    def get(self, name: str) -> Scenario:
        """Return the scenario with this name. Raise `UnknownScenarioError` if there is none."""
        if name not in self.scenarios:
            raise UnknownScenarioError(f"there is no scenario {name}; run dafka-conformance list to see all scenarios")
        return self.scenarios[name]

    def select(
        self, roles: Iterable[Role] = tuple(Role), dialect: Dialect | None = None, patterns: Sequence[str] = ()
    ) -> list[Scenario]:
        """Return the scenarios that match all conditions.

        Args:
            roles: The roles.
            dialect: A dialect that the scenario can run in; None for any.
            patterns: Glob patterns for names; at least one must match. Empty for all names.

        Returns:
            The scenarios, in the order of the catalog.
        """
        wanted = set(roles)
        return [
            scenario
            for name, scenario in self.scenarios.items()
            if scenario.role in wanted
            and (dialect is None or dialect in scenario.dialects)
            and (not patterns or any(fnmatchcase(name, pattern) for pattern in patterns))
        ]

    def scenarios_testing(self, clause: Clause) -> list[Scenario]:
        """Return the scenarios that test a clause."""
        return [scenario for scenario in self.scenarios.values() if clause.id in scenario.clauses]
