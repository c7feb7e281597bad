"""How a script of `dafka spark` ends: its exit status, and what is printed, with a session that is none of Spark's."""

from __future__ import annotations

import signal
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from dafka.cli import main
from dafka.cli.terminal import UsageMistake
from dafka.errors import DiscoveryError

command: Any = import_module("dafka.cli.spark")  # `dafka.cli.spark` as an attribute may be the command

pytestmark = pytest.mark.usefixtures("restored_globals")


class Session:
    stops = 0

    def stop(self) -> None:
        self.stops += 1


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Session:
    """The session that the command starts. Scripts change where modules are found, and the arguments.

    The command takes SIGINT also if it was started with that ignored, as shells do for jobs in the background.
    """
    started = Session()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    monkeypatch.setattr(command, "_start", lambda *_: started)
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    return started


PYSPARK = "from pyspark.errors import PySparkException as E\n"
WORKER = 'Traceback (most recent call last):\n  File "a.py", line 1\nZeroDivisionError: division by zero'
SCRIPTS = [
    ("pass", 0, ""),
    ("import sys\nsys.exit(7)", 7, ""),
    ("import sys\nsys.exit()", 0, ""),
    ("raise KeyboardInterrupt", 130, ""),
    ("import os, signal\nos.kill(os.getpid(), signal.SIGINT)", 130, ""),
    ("import dafka.errors\nraise dafka.errors.ConfigError('option x: no')", 2, "Error: option x: no\n"),
    ("import dafka.errors\nraise dafka.errors.StorageError('full')", 2, "Error: full\n"),
    ("import dafka.errors\nraise dafka.errors.DiscoveryError('no tower')", 1, "Error: no tower\n"),
    (f"{PYSPARK}raise E('dafka.errors.StorageError: no file')", 2, "Error: no file\n"),
    (f"{PYSPARK}raise E('dafka.errors.DiscoveryError: no tower')", 1, "Error: no tower\n"),
    (f"{PYSPARK}def f():\n  raise E('[A.B] no table')\nf()", 1, "Error: {script}, line 3: no table\n"),
    (f"{PYSPARK}raise E('''failed:\n{WORKER}''')", 1, f"{WORKER}\n"),
    ("from pyspark.logger import PySparkLogger as L\nL.getLogger('SQLQueryContextLogger').error('Java')", 0, ""),
    ("from py4j.protocol import Py4JError\nraise Py4JError('gone')", 1, "Error: {script}, line 2: gone\n"),
]


@pytest.mark.parametrize("given", ["script.py", "-", ""])
@pytest.mark.parametrize(("text", "status", "errors"), SCRIPTS)
def test_how_a_script_ends(text: str, status: int, errors: str, given: str, session: Session) -> None:
    """The session is stopped in any case."""
    Path("script.py").write_text(text)
    done = CliRunner().invoke(main, ["spark", *given.split()], input=text)
    script = given if given == "script.py" else "<stdin>"
    assert (done.exit_code, done.stdout, done.stderr) == (status, "", errors.format(script=script))
    assert session.stops == 1


@pytest.mark.parametrize("given", ["script.py", "-"])
def test_other_errors_have_their_traceback_from_the_script_on(given: str, session: Session) -> None:
    text = "def f():\n    1 // 0\nf()"
    Path("script.py").write_text(text)
    done = CliRunner().invoke(main, ["spark", given], input=text)
    first, frame, *_, last = done.stderr.splitlines()
    assert (done.exit_code, done.stdout, first) == (1, "", "Traceback (most recent call last):")
    assert frame.split(", in ")[0].endswith(f'{given.replace("-", "<stdin>")}", line 3')
    assert last == "ZeroDivisionError: integer division or modulo by zero"


@pytest.mark.parametrize("given", ["script.py", "-"])
def test_a_script_has_its_names_its_arguments_and_the_modules_beside_it(given: str, session: Session) -> None:
    Path("neighbor_of_script.py").write_text("NAME = 'beside'")
    text = "import sys, neighbor_of_script as n\nprint(n.NAME, __name__, sys.argv, spark.stops, dafka.__name__)"
    Path("script.py").write_text(text)
    done = CliRunner().invoke(main, ["spark", given, "--flag", "-x"], input=text)
    sys.modules.pop("neighbor_of_script")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == f"beside __main__ ['{given}', '--flag', '-x'] 0 dafka\n"


def test_a_shell_has_the_names_of_a_script_and_shortens_errors_of_spark(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    completing: dict[str, Any] = {}
    readline = SimpleNamespace(
        set_completer=lambda complete: completing.update(complete=complete),
        parse_and_bind=lambda binding: completing.update(binding=binding),
    )
    lines = ["import dafka.errors", "print(spark.version, dafka.__name__)", "raise dafka.errors.StorageError('full')"]
    typed = iter([*lines, "raise KeyError('key')", "if True:", "  print(__name__)", ""])

    def read(*_: object) -> str:
        line = next(typed, None)
        if line is None:
            raise EOFError
        return line

    monkeypatch.setitem(sys.modules, "readline", readline)
    monkeypatch.setattr(command._Shell, "raw_input", read)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    session = SimpleNamespace(version="4.9", conf=SimpleNamespace(get=lambda name: {"spark.master": "local[7]"}[name]))
    program = command._load(None)
    assert program(session, ["-"]) == 0
    output, errors = capsys.readouterr()
    assert output == "4.9 dafka\n__console__\n"
    banner, _, rest = errors.partition("Press Ctrl-D to leave.\n")
    assert banner.startswith(f"Spark 4.9, local[7], Python {sys.version.split()[0]}\n")
    assert rest.split()[:2] == ["Error:", "full"]
    assert rest.split()[-2:] == ["KeyError:", "'key'"]
    assert rest.count("Traceback") == 1
    assert (completing["complete"]("spar", 0), completing["binding"]) == ("spark", "tab: complete")


def test_views_are_named_and_an_error_of_the_start_is_a_mistake(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import dafka.spark

    monkeypatch.setattr(dafka.spark, "make_session", lambda *given: given)
    monkeypatch.setattr(dafka.spark, "make_views", lambda _session, path: {f"orders of {path}": f"v_{path}"})
    assert command._start("local", {"a": "b"}, ("x", "y")) == ("dafka spark", "local", {"a": "b"})
    named = "view v_x: topic orders of x of x\nview v_y: topic orders of y of y\n"
    assert capsys.readouterr() == ("", named)

    def fail(*_: object) -> None:
        raise DiscoveryError("no tower")

    monkeypatch.setattr(dafka.spark, "make_views", fail)
    with pytest.raises(UsageMistake, match="no tower"):
        command._start(None, {}, ("x",))


def test_without_pyspark_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import dafka.spark

    monkeypatch.setattr(dafka.spark, "OLDEST_PYSPARK", (99, 0))
    result = CliRunner().invoke(main, ["spark", "-"])
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: dafka.spark needs pyspark 99.0 or newer, not ")
    assert result.stderr.endswith(": pip install 'dafka[spark]'\n")


def test_mistakes_on_the_command_line() -> None:
    for arguments, error in (
        (["--conf", "spark.ui.enabled"], "expected KEY=VALUE, not 'spark.ui.enabled'"),
        (["--conf", "=x"], "expected KEY=VALUE, not '=x'"),
        (["/none.py"], "cannot read /none.py: No such file or directory"),
        (["/"], "cannot read /: Is a directory"),
    ):
        result = CliRunner().invoke(main, ["spark", *arguments])
        assert result.exit_code == 2
        assert error in result.stderr.splitlines()[-1]
