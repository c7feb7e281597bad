"""The tool that counts the faults that tests miss: its operators, its exceptions, and the list of known survivors."""

from __future__ import annotations

from pathlib import Path

import pytest
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Example

from tests.cli import forks
from tests.mutation.coverage_map import TEST, ModuleMap
from tests.mutation.mutants import Mutant, changed_lines, mutants_of, read
from tests.mutation.operators import OWN
from tests.mutation.report import describe_sample, score
from tests.mutation.runner import TESTS_S, Map, Result, in_rounds
from tests.mutation.scope import ROOT, read_rooms
from tests.mutation.survivors import Survivor, read_survivors

EXAMPLES = [(operator, example) for operator in OWN for example in operator.examples()]


@pytest.mark.parametrize(("operator", "example"), EXAMPLES, ids=lambda each: getattr(each, "__name__", None))
def test_an_operator_makes_its_examples(operator: type, example: Example) -> None:
    assert mutate_code(example.pre_mutation_code, operator(), example.occurrence) == example.post_mutation_code


def after_mutation(source: str) -> set[str]:
    return {changed_lines(source, mutant.apply(source))[1] for mutant in mutants_of("file.py", source)}


def test_annotations_texts_and_decorators_are_left_alone() -> None:
    source = '''@cache(size=1)
def f(a: int | None = None, b: "list[1]" = ()) -> 1 | 2:
    """Return 1."""
    assert a < 1
    c: int | None = 5
    raise ValueError(f"{1 + a}", 7)
'''
    assert after_mutation(source) == {"pass", "c: int | None = 6", "c: int | None = 4"}


def test_a_mutant_knows_its_function_and_its_line() -> None:
    source = "class A:\n    def f(self):\n        self.x.close()\n        return 5\n"
    assert {(each.operator, each.function, each.line) for each in mutants_of("file.py", source)} == {
        ("DeleteStatement", "A.f", 3),
        ("NumberReplacer", "A.f", 4),
    }


def test_constants_attributes_and_defaults_are_definitions() -> None:
    source = "A = 1\nclass B:\n    c = 2\n    def f(\n        self, d=3\n    ):\n        g(4, lambda x=5: x)\n"
    mutants = {
        each.line: each.is_definition for each in mutants_of("file.py", source) if each.operator != "DeleteStatement"
    }
    assert mutants == {1: True, 3: True, 5: True, 7: False}


def test_an_exception_with_a_dotted_name_is_replaced() -> None:
    source = "try:\n    f()\nexcept (OSError, http.client.HTTPException):\n    pass\n"
    assert "except (OSError, http.client.CosmicRayTestingException):" in after_mutation(source)


def test_every_file_is_in_one_room_that_has_tests() -> None:
    files = [file for room in read_rooms() for file in room.files]
    assert sorted(files) == sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("dafka/**/*.py"))
    assert all((ROOT / path).is_file() for room in read_rooms() for path in room.test_modules)


def test_the_page_of_a_sample_names_what_survived() -> None:
    mutant = Mutant("dafka/wire/batch.py", 3, 3, "g", "NumberReplacer", 0)
    results = [
        Result(mutant, outcome, "a < 1", "a < 2", "") for outcome in ("killed", "survived", "timeout", "untested")
    ]
    assert score("all", results).share == 0.5
    page = describe_sample(results, 7)
    assert "| wire | 4 | 1 | 1 | 0 | 2 | 50% |" in page
    assert page.count("+ a < 2") == 2


def test_a_mutant_runs_the_tests_of_its_line_the_fastest_first() -> None:
    module = ModuleMap({"m::slow": 2.0, "m::fast": 0.1, "m::other": 0.1}, {}, {"f.py": {3: [0, 1], 4: [2]}})
    tests = Map([module])
    definition = Mutant("f.py", 3, 3, "g", "NumberReplacer", 0, is_definition=True)
    assert tests.tests_of(definition) == ["m::fast", "m::other", "m::slow"]
    assert tests.tests_of(Mutant("f.py", 3, 3, "g", "NumberReplacer", 0)) == ["m::fast", "m::slow"]
    assert tests.tests_of(Mutant("f.py", 9, 9, "g", "NumberReplacer", 0)) == ["m::fast", "m::other", "m::slow"]
    assert tests.tests_of(Mutant("g.py", 3, 3, "g", "NumberReplacer", 0)) == []
    table = Mutant("g.py", 3, 3, "", "NumberReplacer", 0, is_definition=True)
    assert tests.tests_of(table) == ["m::fast", "m::other", "m::slow"]
    lines = [Mutant("f.py", line, line, "g", "NumberReplacer", 0) for line in (3, 4, 9)]
    assert [tests.runs(each) for each in (*lines, definition)] == [True, True, False, True]


def test_the_tests_of_definitions_run_however_long_the_others_take() -> None:
    definitions = "tests/test_docs.py::test"
    module = ModuleMap(
        {"m::slow": TESTS_S / 2, "m::slower": TESTS_S, definitions: 9.0}, {}, {"f.py": {3: [0, 1, 2], 4: [0, 1]}}
    )
    tests = Map([module])
    assert tests.tests_of(Mutant("f.py", 3, 3, "g", "NumberReplacer", 0)) == ["m::slow", definitions]
    assert tests.tests_of(Mutant("f.py", 4, 4, "g", "NumberReplacer", 0)) == ["m::slow"]
    mutant = Mutant("f.py", 4, 4, "", "NumberReplacer", 0, is_definition=True)
    assert tests.tests_of(mutant) == ["m::slow", definitions]


def test_forked_commands_count_their_lines_for_the_test_that_is_named() -> None:
    assert forks.TEST == TEST


def test_rounds_hold_each_test_once() -> None:
    tests = [f"{module}::{number}" for number in range(50) for module in "abc"]
    first, rest = in_rounds(tests)
    assert {name[0] for name in first} == {"a", "b"}
    assert sorted([*first, *rest]) == sorted(tests)


@pytest.mark.parametrize("survivor", read_survivors(), ids=lambda each: f"{each.file}:{each.line}")
def test_each_known_survivor_is_in_the_code_and_has_a_reason(survivor: Survivor) -> None:
    source = " ".join(read(ROOT, survivor.file).split())
    assert survivor.line in source, "the line has changed: remove the entry, or run `make mutants` and update it"
    assert len(survivor.reason.split()) >= 4
    assert survivor.mutants
    assert survivor.line not in survivor.mutants


def test_a_survivor_describes_one_mutant_only(tmp_path: Path) -> None:
    path = tmp_path / "survivors.toml"
    path.write_text('[["f.py"]]\nfunction = "g"\nline = "a < 1"\nmutants = ["a <= 1"]\nreason = "a is never 1"\n')
    (survivor,) = read_survivors(path)
    assert survivor.describes("f.py", "g", "a < 1", "a <= 1")
    assert not survivor.describes("f.py", "g", "a < 1", "a < 2")
    assert not survivor.describes("f.py", "h", "a < 1", "a <= 1")
