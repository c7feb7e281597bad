"""Imports point down only: each part of a package may know those listed here, and nothing else of it."""

import ast
import functools
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from types import ModuleType

import pytest

import dafka
import dafka_conformance

VOCABULARY = {
    "packed_bytes",
    "endpoints",
    "errors",
    "extras",
    "exceptions",
    "records",
    "config",
    "text",
    "internal_topics",
    "durable_files",
    "watched_files",
    "steady_clock",
}
FORMATS = VOCABULARY | {"batches", "wire"}
PROTOCOL = FORMATS | {"protocol"}
PLUGINS = {"transport", "storage", "discovery"}
ROLES = PROTOCOL | PLUGINS | {"roles"}
OPERATIONS = ROLES | {"operations"}
FACTS = {
    "broker.core.acls",
    "broker.core.client_quotas",
    "broker.core.error_codes",
    "broker.core.topic_partition",
    "broker.core.partition_address",
    "broker.core.patterns",
    "broker.core.positions",
    "broker.core.scram_credentials",
    "broker.core.typed_json",
}
METADATA = FACTS | {"broker.core.metadata"}
LOG = METADATA | {"broker.core.log"}
COORDINATION = LOG | {"broker.core.coordination"}
POLICY = LOG | {"broker.core.replication", "broker.core.partition_policy"}
CORE = (
    COORDINATION
    | POLICY
    | {
        "broker.core",
        "broker.core.broker_news",
        "broker.core.node_machine",
        "broker.core.rounds",
        "broker.core.tables",
        "broker.core.cluster_status",
        "broker.core.groups",
        "broker.core.transactions",
    }
)
INTERBROKER = CORE | {"broker.access", "broker.connections", "broker.interbroker", "broker.local_state"}
LOGS = INTERBROKER | {"broker.log"}
REPLICATION = LOGS | {"broker.replication"}
AGREEMENT = REPLICATION | {"broker.metadata"}
NODE = AGREEMENT | {"broker.inventory", "broker.node"}
BROKER = NODE | {"broker.coordinator", "broker.startup", "broker.stored_state", "broker.metrics", "broker"}
TOP = "dafka"
"""The package's own `__init__`, which has the names for embedding programs."""

MAY_IMPORT = {
    **dict.fromkeys(VOCABULARY, VOCABULARY),
    "batches": {"packed_bytes", "errors", "records"},
    "wire": VOCABULARY | {"batches"},
    "protocol": FORMATS,
    "transport": PROTOCOL,
    "storage": PROTOCOL,
    "discovery": PROTOCOL | {"transport"},
    "roles": PROTOCOL | PLUGINS,
    "events": {"protocol"},
    TOP: ROLES | {"events"},
    "serializers": VOCABULARY,
    "tracing": VOCABULARY,
    "clients": ROLES,
    "blocking": ROLES | {"clients"},
    "asyncio": ROLES | {"clients"},
    "http1": set(),
    "operations": ROLES | {"http1"},
    **dict.fromkeys(FACTS, FORMATS),
    "broker.core.typed_json": PROTOCOL,
    "broker.core": set(),
    "broker.core.metadata": PROTOCOL | FACTS,
    "broker.core.log": PROTOCOL | METADATA,
    "broker.core.replication": PROTOCOL | LOG,
    "broker.core.coordination": PROTOCOL | LOG,
    "broker.core.groups": PROTOCOL | COORDINATION,
    "broker.core.transactions": PROTOCOL | COORDINATION,
    "broker.core.partition_policy": PROTOCOL | LOG | {"broker.core.replication"},
    "broker.core.tables": PROTOCOL | POLICY,
    "broker.core.cluster_status": PROTOCOL | POLICY | {"broker.core.tables"},
    "broker.core.broker_news": PROTOCOL | METADATA | {"broker.core.rounds"},
    "broker.core.node_machine": PROTOCOL | POLICY | {"broker.core.broker_news", "broker.core.rounds"},
    "broker.core.rounds": PROTOCOL | METADATA,
    "broker.access": VOCABULARY | METADATA,
    "broker.connections": ROLES | {"broker.access"},
    "broker.local_state": FORMATS | {"storage"},
    "broker.inventory": ROLES | CORE,
    "broker.stored_state": ROLES | CORE | {"broker.local_state"},
    "broker.interbroker": ROLES | CORE,
    "broker.log": ROLES | INTERBROKER,
    "broker.replication": ROLES | LOGS,
    "broker.metadata": ROLES | REPLICATION,
    "broker.coordinator": ROLES | REPLICATION,
    "broker.node": ROLES | NODE,
    "broker.startup": ROLES | NODE,
    "broker.metrics": OPERATIONS | NODE,
    "assignors": CORE,
    "broker": OPERATIONS | BROKER,
    "kafka.protocol": FORMATS | {"broker.core.error_codes"},
    "kafka": OPERATIONS | BROKER | {"kafka.protocol"},
    "http": OPERATIONS | BROKER | {"http1"},
    "server": ROLES | BROKER | {"kafka", "http"},
    "testing": ROLES | {TOP, "assignors", "broker", "broker.core.groups", "server"},
    "spark": ROLES | {TOP},
    "cli": OPERATIONS | BROKER | {TOP, "spark", "kafka", "kafka.protocol", "http", "server"},
    "_entry": {"errors", "extras", "cli"},
    "__main__": {"_entry"},
}
"""The parts that each part may import. A module belongs to the longest of these names that its own name begins with."""

PURE = {"batches", "wire", "protocol", "kafka.protocol"} | CORE
PROTOCOL_FOLDERS = {
    "presence": set(),
    "ordering": set(),
    "answering": set(),
    "observer": set(),
    "groups": {"presence", "ordering"},
    "machines": {"presence", "ordering", "answering"},
}
"""The folders of the protocol that each folder may import. All may import the modules outside the folders, which import
no folder."""
CONFORMANCE = {
    "dafka_conformance": set(),
    "model": set(),
    "grammar": {"model"},
    "targets": {"model"},
    "clauses": {"model"},
    "verdicts": {"model"},
    "causes": {"model", "clauses"},
    "report": {"model"},
    "testbed": {"model", "grammar", "targets"},
    "scenario": {"model", "targets", "testbed"},
    "interpreters": {"model", "grammar", "scenario", "targets", "testbed"},
    "scenarios": {"model", "grammar", "interpreters", "scenario", "targets", "testbed"},
    "catalog": {"model", "clauses", "grammar", "interpreters", "scenario", "scenarios"},
    "repeats": {"model", "clauses"},
    "group_runner": {"model", "catalog", "causes", "clauses", "repeats", "scenario", "targets", "testbed"},
    "runner": {"model", "catalog", "causes", "group_runner", "repeats", "targets", "verdicts"},
    "selection": {"model", "catalog", "grammar", "targets"},
    "cli": {"model", "catalog", "clauses", "group_runner", "report", "runner", "selection", "testbed"},
    "pytest_plugin": {"model", "catalog", "report", "runner", "scenario", "selection", "targets"},
    "__main__": {"cli"},
}
"""The other parts of the suite that each part of the suite may import."""

SUITE_MAY_IMPORT = {
    "report": ("dafka.text",),
    "testbed": ("dafka.transport.socket", "dafka.errors"),
    "targets.embedded": ("dafka",),
    "targets.process": ("dafka.exceptions",),
    "pytest_plugin": ("dafka.text",),
}
"""The modules of dafka that each part of the suite may import: helpers, and its roles as one target among others."""

NOT_IN_PURE = {"trio", "anyio", "asyncio", "zmq", "sqlite3", "socket", "time", "random", "threading"}


def imports_of(path: Path, module: str) -> tuple[str, ...]:
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    return imported_names(path.read_text(), tuple(package))


@functools.cache
def imported_names(text: str, package: tuple[str, ...]) -> tuple[str, ...]:
    """Return what `imports_of` does, of a text; the tests read the same files again and again."""
    names: list[str] = []
    for node in ast.walk(ast.parse(text)) if "import" in text else ():
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = list(package[: len(package) - node.level + 1]) if node.level else []
            base = [*base, *(node.module.split(".") if node.module else ())]
            names += [".".join([*base, alias.name]) for alias in node.names]
    return tuple(names)


def modules_in(root: Path) -> dict[str, Path]:
    modules = {}
    for path in sorted(root.rglob("*.py")):
        parts = [root.name, *path.relative_to(root).with_suffix("").parts]
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return modules


def part_of(module: str) -> str:
    """Return the part of the package that a module is in. The package's own `__init__` is a part with its name."""
    part = module.partition(".")[2]
    while "." in part and part not in MAY_IMPORT:
        part = part.rpartition(".")[0]
    return part or module


def internal_imports(root: Path) -> Iterator[tuple[str, str, str]]:
    """Yield each import between modules: the importing and the imported module, and the imported name."""
    modules = modules_in(root)
    for module, path in modules.items():
        for name in imports_of(path, module):
            target = name
            while target and target not in modules:
                target = target.rpartition(".")[0]
            if target and target != module:
                yield module, target, name


def upward_imports(root: Path, may_import: dict[str, set[str]]) -> list[str]:
    return [
        f"{module} imports {name}"
        for module, target, name in internal_imports(root)
        if part_of(target) not in may_import.get(part_of(module), set()) | {part_of(module)}
    ]


def impure_imports(root: Path) -> list[str]:
    return [
        f"{module} imports {name}"
        for module, path in modules_in(root).items()
        for name in imports_of(path, module)
        if part_of(module) in PURE and name.split(".")[0] in NOT_IN_PURE
    ]


def cycles(root: Path) -> list[str]:
    """Return one cycle between parts of the package, or between the modules of one part; empty if there is none."""
    graph: dict[str, set[str]] = {}
    for module, target, _ in internal_imports(root):
        is_within = part_of(module) == part_of(target)
        importer, imported = (module, target) if is_within else (part_of(module), part_of(target))
        graph.setdefault(importer, set()).add(imported)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return ["cycle: " + " ".join(error.args[1])]
    return []


def violations(root: Path, may_import: dict[str, set[str]] = MAY_IMPORT) -> list[str]:
    unassigned = [f"{module} is in no layer" for module in modules_in(root) if part_of(module) not in may_import]
    return unassigned + upward_imports(root, may_import) + impure_imports(root) + cycles(root)


def test_imports_point_down() -> None:
    root = Path(dafka.__file__).parent
    assert {"dafka.wire.codec", "dafka.protocol.machines.store", "dafka.roles", "dafka"} <= set(modules_in(root))
    assert violations(root) == []


@pytest.mark.parametrize("package", [dafka, dafka_conformance])
def test_installed_packages_import_no_tests(package: ModuleType) -> None:
    root = Path(package.__file__ or "").parent
    names = {name.split(".")[0] for module, path in modules_in(root).items() for name in imports_of(path, module)}
    assert "tests" not in names


def test_folders_of_the_protocol_import_one_way() -> None:
    root = Path(dafka.__file__).parent

    def folder_of(module: str) -> str:
        return module.split(".")[2] if module.startswith("dafka.protocol.") else ""

    pairs = {(folder_of(module), folder_of(target)) for module, target, _ in internal_imports(root)}
    pairs = {pair for pair in pairs if pair[0] and pair[0] != pair[1] and pair[1] in PROTOCOL_FOLDERS}
    assert ("machines", "ordering") in pairs
    assert [pair for pair in pairs if pair[1] not in PROTOCOL_FOLDERS.get(pair[0], ())] == []


def test_imports_of_the_conformance_suite_point_down() -> None:
    root = Path(dafka_conformance.__file__).parent
    assert {"dafka_conformance.testbed.message_checks", "dafka_conformance.cli"} <= set(modules_in(root))
    assert violations(root, CONFORMANCE) == []


def test_conformance_suite_imports_no_internals_of_its_target() -> None:
    root = Path(dafka_conformance.__file__).parent
    known = [
        f"{module} imports {name}"
        for module, path in modules_in(root).items()
        for name in imports_of(path, module)
        if name.split(".")[0] == "dafka"
        and not any(
            module.startswith(f"dafka_conformance.{part}") and name.startswith(allowed)
            for part, allowed in SUITE_MAY_IMPORT.items()
        )
    ]
    assert known == []


UPWARD: list[tuple[str, str, str]] = [
    ("wire/codec.py", "from dafka.protocol import Machine", "dafka.wire.codec imports dafka.protocol.Machine"),
    ("wire/codec.py", "from ..protocol import store", "dafka.wire.codec imports dafka.protocol.store"),
    ("wire/codec.py", "import dafka", "dafka.wire.codec imports dafka"),
    ("wire/codec.py", "from dafka import __version__", "dafka.wire.codec imports dafka.__version__"),
    ("wire/codec.py", "def f():\n    import time", "dafka.wire.codec imports time"),
    ("wire/codec.py", "from random import Random", "dafka.wire.codec imports random.Random"),
    ("batches/header.py", "from dafka.wire import codec", "dafka.batches.header imports dafka.wire.codec"),
    ("protocol/store.py", "import trio.lowlevel", "dafka.protocol.store imports trio.lowlevel"),
    ("transport/base.py", "from dafka import storage", "dafka.transport.base imports dafka.storage"),
    ("roles/node.py", "import dafka.testing", "dafka.roles.node imports dafka.testing"),
    ("broker/log/a.py", "import dafka.broker.node", "dafka.broker.log.a imports dafka.broker.node"),
    ("gossip/base.py", "", "dafka.gossip.base is in no layer"),
]


def test_import_that_points_up_is_found(tmp_path: Path) -> None:
    root = make_package(tmp_path)
    for file, line, violation in UPWARD:
        (root / file).parent.mkdir(exist_ok=True)
        (root / file).write_text(line)
        assert violation in violations(root)
        (root / file).write_text("")


@pytest.mark.parametrize(
    ("files", "cycle"),
    [
        ({"errors.py": "import dafka.config", "config.py": "import dafka.errors"}, {"errors", "config"}),
        (
            {"wire/codec.py": "from dafka.wire import batch", "wire/batch.py": "from .codec import decode"},
            {"dafka.wire.codec", "dafka.wire.batch"},
        ),
    ],
)
def test_cycle_is_found(files: dict[str, str], cycle: set[str], tmp_path: Path) -> None:
    root = make_package(tmp_path)
    assert violations(root) == []
    for file, line in files.items():
        (root / file).write_text(line)
    (found,) = violations(root)
    assert set(found.split()) == {"cycle:"} | cycle


def make_package(folder: Path) -> Path:
    """Create a package that has every part, each of them empty."""
    root = folder / TOP
    root.mkdir()
    (root / "__init__.py").touch()
    for part in set(MAY_IMPORT) - VOCABULARY - {TOP, "_entry", "__main__"}:
        folder = root.joinpath(*part.split("."))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "__init__.py").touch()
    (root / "protocol" / "store.py").touch()
    return root
