from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli import harness
from tests.cli.harness import Dafka, open_terminal
from tests.spark.fixtures import JAVA_OPTIONS
from tests.spark.queries import HANG_S
from tests.spark.stores import A, batch, fill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

command = import_module("dafka.cli.spark")  # `dafka.cli.spark` as an attribute may be the command
SMALL = (
    *("--master", "local[1]", "--conf", "spark.ui.enabled=false", "--conf", "spark.driver.memory=512m"),
    *("--conf", f"spark.driver.extraJavaOptions={JAVA_OPTIONS}"),
)
JAVA_WARNING = "WARNING: Using incubator modules: jdk.incubator.vector"

pytestmark = pytest.mark.usefixtures("restored_globals")

SCRIPT = """
import sys
from pyspark.sql.functions import udf

print(sys.argv[1:], dafka.__name__, spark.sql("SELECT * FROM orders").count(), flush=True)

@udf("int")
def fail(number):
    return 1 // 0

try:
    spark.range(1).select(fail("id")).collect()
except Exception as error:
    print(type(error).__name__, flush=True)
dafka.spark.read(spark, "orders.db", topic="order").show()
"""


def run(
    *arguments: str, folder: Path, environment: dict[str, str] | None = None, text: str = ""
) -> tuple[int, str, list[str]]:
    """Return the exit status, the output, and the lines on standard error without Java's warning."""
    done = subprocess.run(
        [sys.executable, "-m", "dafka", "spark", *arguments],
        env={**os.environ, **(environment or {})},
        cwd=folder,
        input=text,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    return done.returncode, done.stdout, [line for line in done.stderr.splitlines() if line != JAVA_WARNING]


def run_script(spark: SparkSession, script: Path, text: str) -> int:
    script.write_text(text)
    status: int = command._run_script(spark, [str(script), "--flag"])
    return status


@pytest.fixture
def restored_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", list(sys.path))


def test_a_script_in_a_process_of_its_own(java: None, tmp_path: Path) -> None:
    fill(f"sqlite:{tmp_path}/orders.db", batch("orders", A, 0, 3))
    (tmp_path / "script.py").write_text(SCRIPT)
    status, output, errors = run(*SMALL, "--views", "orders.db", "script.py", "--count", "3", folder=tmp_path)
    assert output.splitlines() == ["['--count', '3'] dafka 3", "PythonException"]
    assert (status, errors[0]) == (2, "view orders: topic orders of orders.db")
    [error] = [line for line in errors if line.startswith("Error: ")]
    assert error.startswith("Error: option subscribe: no store has a topic 'order'; the stores hold 'orders'")
    # PySpark's daemon may print a traceback of its own when it ends, complete or not.
    between = "\n".join(errors[1 : errors.index(error)])
    assert "ZeroDivisionError: integer division or modulo by zero" in between
    assert ("\tat " in between, "dafka/spark/" in "\n".join(errors)) == (False, False)


def test_a_shell_on_a_terminal(java: None, dafka: Dafka, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "DEADLINE_S", HANG_S)
    with open_terminal(dafka, "spark", *SMALL) as terminal:
        terminal.wait_for(b">>> ")
        terminal.type(b"spark.range(41).count() + 1\r")
        terminal.wait_for(b"42\r\n")
        terminal.type(b"dafka.spark.read(spark, '/none').count()\r")
        terminal.wait_for(b"Error: path /none: there is nothing here")
        assert b"Traceback" not in terminal.seen.partition(b"Error: path")[0]
        terminal.type(b"\x04")
        assert terminal.wait() == 0


def test_without_java_the_error_is_one_sentence(tmp_path: Path) -> None:
    status, output, errors = run("-", folder=tmp_path, environment={"JAVA_HOME": "/none"})
    assert (status, output, len(errors)) == (2, "", 1)
    assert errors[0].startswith("Error: JAVA_HOME is /none, which has no bin/java, and Spark needs Java 17 or newer")


@pytest.mark.usefixtures("restored_arguments")
def test_a_script_gets_names_arguments_and_neighboring_modules(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "neighbor.py").write_text("NAME = 'beside'")
    text = "import sys, neighbor\nprint(neighbor.NAME, __name__, sys.argv[1:], spark.range(2).count())"
    assert run_script(spark, tmp_path / "script.py", text) == 0
    assert capsys.readouterr() == ("beside __main__ ['--flag'] 2\n", "")


@pytest.mark.usefixtures("restored_arguments")
@pytest.mark.parametrize(
    ("line", "status", "error"),
    [
        ("dafka.spark.read(spark, '/none').count()", 2, "Error: path /none: there is nothing here"),
        ("dafka.spark.read(spark, '/none', schema='a INT', mode='x')", 2, "Error: mode: expected one of permissive, "),
        ("import dafka.errors\nraise dafka.errors.DiscoveryError('no tower')", 1, "Error: no tower"),
        ("def f():\n    spark.read.text('/none')\nf()", 1, "Error: {script}, line 2: Path does not exist: file:/none."),
        ("spark.sql('selec 1')", 1, "Error: {script}, line 1: Syntax error at or near 'selec'."),
    ],
)  # fmt: skip
def test_errors_of_spark_are_one_sentence(
    spark: SparkSession, line: str, status: int, error: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "script.py"
    assert run_script(spark, script, line) == status
    (sentence,) = capsys.readouterr().err.splitlines()
    assert sentence.startswith(error.format(script=script))


WORKER = "from pyspark.sql.functions import udf\nspark.range(1).select(udf(lambda n: 1 // 0, 'int')('id')).collect()"


@pytest.mark.usefixtures("restored_arguments")
def test_errors_of_functions_have_the_traceback_of_python(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for text, last, at in (
        ("def f():\n    return nothing\nf()", "NameError: name 'nothing' is not defined", 'script.py", line 3'),
        (WORKER, "ZeroDivisionError: integer division or modulo by zero", "File "),
    ):
        assert run_script(spark, tmp_path / "script.py", text) == 1
        lines = capfd.readouterr().err.splitlines()
        start = lines.index("Traceback (most recent call last):")
        assert (lines[-1], at in lines[start + 1]) == (last, True)
        assert not any(line.startswith("\tat ") for line in lines)
    with pytest.raises(SystemExit) as caught:
        run_script(spark, tmp_path / "script.py", "import sys\nsys.exit(7)")
    assert caught.value.code == 7
