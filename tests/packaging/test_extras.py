"""A command whose extra is not installed fails with one sentence that names the extra."""

from __future__ import annotations

import subprocess
import sys

import pytest

from dafka.errors import MissingExtraError
from dafka.extras import require_extra

PROGRAM = "import sys; sys.modules.update(dict.fromkeys({missing!r})); from dafka._entry import main; main()"


def run_without(missing: list[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a Python that cannot import some packages."""
    program = PROGRAM.format(missing=missing)
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    ("missing", "arguments", "sentence"),
    [
        (
            ["h11", "prometheus_client"],
            ["tower", "--metrics-listen", "127.0.0.1:0", "--sub", "tcp://127.0.0.1:*", "--pub", "tcp://127.0.0.1:*"],
            "the HTTP server for metrics and health needs prometheus-client: pip install 'dafka[metrics]'",
        ),
        (
            ["structlog"],
            ["tower", "--log-format", "json"],
            "JSON logging needs structlog: pip install 'dafka[json-logs]'",
        ),
        (["dafka_bench"], ["bench"], "'dafka bench' needs dafka-bench: pip install dafka-bench"),
        (
            ["scramp"],
            ["broker", "--users", "users", "--storage", "memory:"],
            "authentication of users needs scramp: pip install 'dafka[users]'",
        ),
    ],
    ids=["metrics", "json-logs", "bench", "users"],
)
def test_missing_extra_is_one_sentence(missing: list[str], arguments: list[str], sentence: str) -> None:
    done = run_without(missing, *arguments)
    assert (done.returncode, done.stderr) == (2, f"Error: {sentence}\n")


SEVERAL = """
import sys
sys.modules.update(dict.fromkeys({missing!r}))
from dafka.cli import main
for arguments in (["--help"], ["produce", "--help"], ["status", "--help"], ["--version"]):
    main.main(arguments, prog_name="dafka", standalone_mode=False)
"""


def test_commands_work_without_any_extra() -> None:
    missing = ["h11", "jinja2", "prometheus_client", "structlog", "pyspark", "pyarrow", "pandas", "fastavro"]
    program = SEVERAL.format(missing=missing)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("Usage: dafka") == 3


def test_a_module_of_our_own_that_is_missing_is_no_missing_extra() -> None:
    with pytest.raises(ModuleNotFoundError) as caught, require_extra("metrics", "a test"):
        import dafka.no_such_module  # type: ignore[import-not-found]  # noqa: F401
    assert not isinstance(caught.value, MissingExtraError)


def test_importing_the_package_imports_none_of_its_modules_and_every_public_name_can_be_imported() -> None:
    program = (
        "import sys, dafka; print(sorted({'trio', 'zmq', 'attrs', 'dafka.roles'} & set(sys.modules)))\n"
        "for name in dafka.__all__: getattr(dafka, name)\nfrom dafka import *"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
