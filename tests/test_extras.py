"""A command whose extra is not installed fails with one sentence that names the extra."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import dafka
from dafka.errors import MissingExtraError, StorageError
from dafka.extras import load_plugin, require_extra

FREE = "tcp://127.0.0.1:*"
CASES = {
    "the HTTP server for metrics and health needs prometheus-client: pip install 'dafka[metrics]'": (
        ["h11", "prometheus_client"],
        ["tower", "--metrics-listen", "127.0.0.1:0", "--sub", FREE, "--pub", FREE],
    ),
    "JSON logging needs structlog: pip install 'dafka[json-logs]'": (["structlog"], ["tower", "--log-format", "json"]),
    "'dafka bench' needs dafka-bench: pip install dafka-bench": (["dafka_bench"], ["bench"]),
    "authentication of users needs scramp: pip install 'dafka[users]'": (
        ["scramp"],
        ["broker", "--users", "users", "--storage", "memory:"],
    ),
}
"""By the sentence: the packages that cannot be imported, and a command that needs one of them."""

FAILING = """
import sys
from dafka._entry import main
for missing, arguments in {cases!r}:
    sys.modules.update(dict.fromkeys(missing))
    sys.argv[1:] = arguments
    try:
        main()
    except SystemExit as ended:
        print(ended.code)
"""


def run(program: str) -> subprocess.CompletedProcess[str]:
    """Run a program in an interpreter that has loaded nothing yet."""
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)


def test_missing_extra_is_one_sentence() -> None:
    done = run(FAILING.format(cases=list(CASES.values())))
    assert done.stderr.splitlines() == [f"Error: {sentence}" for sentence in CASES]
    assert done.stdout.split() == ["2"] * len(CASES)


SEVERAL = """
import sys
sys.modules.update(dict.fromkeys({missing!r}))
from dafka.cli import main
for arguments in (["--help"], ["produce", "--help"], ["status", "--help"], ["--version"]):
    main.main(arguments, prog_name="dafka", standalone_mode=False)
"""


def test_commands_work_without_any_extra() -> None:
    missing = ["h11", "jinja2", "prometheus_client", "structlog", "pyspark", "pyarrow", "pandas", "fastavro"]
    done = run(SEVERAL.format(missing=missing))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("Usage: dafka") == 3


def test_a_module_of_our_own_that_is_missing_is_no_missing_extra() -> None:
    with pytest.raises(ModuleNotFoundError) as caught, require_extra("metrics", "a test"):
        import dafka.no_such_module  # type: ignore[import-not-found]  # noqa: F401
    assert not isinstance(caught.value, MissingExtraError)


PLUGINS = """\
[dafka.toys]
json = json:dumps
absent = dafka_absent:open
renamed = json:no_such_name
"""


def test_a_plugin_is_found_by_its_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_to_load(name: str) -> str:
        with pytest.raises(StorageError) as caught:
            load_plugin("dafka.toys", name, StorageError)
        return str(caught.value)

    assert fail_to_load("json") == "unknown toys 'json': installed are none"
    metadata = tmp_path / "toys-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: toys\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(PLUGINS)
    monkeypatch.syspath_prepend(tmp_path)
    assert load_plugin("dafka.toys", "json", StorageError) is json.dumps
    assert fail_to_load("other") == "unknown toys 'other': installed are absent, json, renamed"
    assert fail_to_load("absent") == "toys 'absent' cannot be loaded: No module named 'dafka_absent'"
    assert fail_to_load("renamed").startswith("toys 'renamed' cannot be loaded: module 'json' has no attribute")


def test_importing_the_package_imports_none_of_its_modules_and_every_public_name_can_be_imported() -> None:
    program = (
        "import sys, dafka; print(sorted({'trio', 'zmq', 'attrs', 'dafka.roles'} & set(sys.modules)))\n"
        "for name in dafka.__all__: getattr(dafka, name)\nfrom dafka import *"
    )
    done = run(program)
    assert (done.returncode, done.stdout) == (0, "[]\n")


def test_the_package_lists_its_names_and_has_no_others() -> None:
    names = dir(dafka)
    assert {*dafka.__all__, "asyncio", "blocking", "roles"} <= {*names}
    assert names == sorted(names)
    found: Any = dafka
    assert found.__getattr__("blocking") is import_module("dafka.blocking")
    for name in ("unheard_of", "cli"):
        with pytest.raises(AttributeError, match=f"^module 'dafka' has no attribute '{name}'$"):
            found.__getattr__(name)
