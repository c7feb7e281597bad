"""All scenarios: the grammar's sentences, the scripts of `scenarios/*.toml`, and those in Python beside them."""

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
    """No scenario has that name."""


@attrs.frozen
class Catalog:
    """Attributes:
    grammar: what the frames are held against.
    clauses: what is demanded.
    scenarios: all of them, by name, in order.
    """

    grammar: Grammar
    clauses: Clauses
    scenarios: dict[str, Scenario]

    @classmethod
    def load(cls, grammar_path: Path | None = None, folder: Path = SCENARIOS_FOLDER) -> Catalog:
        """Raises `GrammarError`, `ClauseError` or `ScriptError` where a file of the suite is not as it should be."""
        grammar = Grammar.load(grammar_path) if grammar_path else Grammar.load()
        found = [scenario for path in sorted(folder.glob("*.toml")) for scenario in read_scenarios(path)]
        for path in sorted(folder.glob("[!_]*.py")):
            registry: ScenarioRegistry = import_module(f"{__package__}.{folder.name}.{path.stem}").SCENARIOS
            found += registry.scenarios
        found += sentence_runner.sentence_scenarios(grammar.sentences)
        twice = [name for name, count in Counter(scenario.name for scenario in found).items() if count > 1]
        if twice:
            raise ValueError(f"two scenarios are called {twice[0]}")
        speakers = {name: grammar.roles_of(name) for name in grammar.formats.by_name}
        clauses = Clauses.load().with_messages(speakers)
        return cls(grammar, clauses, {scenario.name: scenario for scenario in found})

    def get(self, name: str) -> Scenario:
        """Raises `UnknownScenarioError`."""
        if name not in self.scenarios:
            raise UnknownScenarioError(f"there is no scenario {name}; dafka-conformance list shows them all")
        return self.scenarios[name]

    def select(
        self, roles: Iterable[Role] = tuple(Role), dialect: Dialect | None = None, patterns: Sequence[str] = ()
    ) -> list[Scenario]:
        """The scenarios of these roles whose names match one of the patterns (as of file names); all for none."""
        wanted = set(roles)
        return [
            scenario
            for name, scenario in self.scenarios.items()
            if scenario.role in wanted
            and (dialect is None or dialect in scenario.dialects)
            and (not patterns or any(fnmatchcase(name, pattern) for pattern in patterns))
        ]

    def scenarios_testing(self, clause: Clause) -> list[Scenario]:
        """The scenarios that test a clause."""
        return [scenario for scenario in self.scenarios.values() if clause.id in scenario.clauses]
