"""The command `dafka spark`: a Python shell or a script with a Spark session that reads stores and clusters."""

from __future__ import annotations

import code
import runpy
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import click

from dafka.cli.terminal import UsageMistake, report_error
from dafka.errors import ConfigError, DafkaError, MissingExtraError, StorageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STANDARD_INPUT = "-"
"""The name of a script that stands for standard input."""

INTERRUPTED = 130
"""The exit status after Ctrl-C, as shells report it."""


def _parse_settings(_context: click.Context, _parameter: click.Parameter, pairs: tuple[str, ...]) -> dict[str, str]:
    settings = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not key or not separator:
            raise click.BadParameter(f"expected KEY=VALUE, not {pair!r}")
        settings[key] = value
    return settings


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "--master", metavar="URL", help="The Spark master to use.  [default: local[*], all cores of this machine]"
)
@click.option(
    "--conf",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    callback=_parse_settings,
    help="A setting of Spark; repeat the option for several.",
)
@click.option(
    "--views",
    "paths",
    multiple=True,
    metavar="PATH",
    help="Make an SQL view of each topic of the stores at this path; repeat the option for several.",
)
@click.argument("script", required=False, metavar="[SCRIPT]")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGUMENT]...")
def spark(
    master: str | None, settings: dict[str, str], paths: tuple[str, ...], script: str | None, arguments: tuple[str, ...]
) -> None:
    """Open a Python shell, or run a script, with a Spark session.

    `spark` is the session, with format("dafka") registered, and `dafka` is the package. For a start, try
    dafka.spark.read(spark, "orders.db").show(). Errors of Spark are shortened to one sentence. The command needs `pip
    install 'dafka[spark]'` and Java 17 or newer.
    """
    program = _load(script)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    status = INTERRUPTED
    try:
        session = _start(master, settings, paths)
        _silence_pyspark()
        try:
            status = program(session, [script or STANDARD_INPUT, *arguments])
        finally:
            session.stop()
    except KeyboardInterrupt:
        pass
    sys.exit(status)


def _load(script: str | None) -> Callable[[SparkSession, list[str]], int]:
    """Return the program to run; raise `UsageMistake` if the script cannot be read."""
    if script is None and sys.stdin is not None and sys.stdin.isatty():
        return _run_shell
    if script is None or script == STANDARD_INPUT:
        return _run_standard_input
    try:
        Path(script).open("rb").close()
    except (OSError, ValueError) as error:
        raise UsageMistake(f"cannot read {script}: {getattr(error, 'strerror', error)}") from None
    return _run_script


def _start(master: str | None, settings: dict[str, str], paths: tuple[str, ...]) -> SparkSession:
    """Start the session and make its views; raise `UsageMistake` if that fails."""
    try:
        from dafka.spark import make_session, make_views  # noqa: PLC0415 (only this command needs Spark)
    except MissingExtraError as error:
        raise UsageMistake(str(error)) from None
    from py4j.protocol import Py4JError  # noqa: PLC0415
    from pyspark.errors import PySparkException  # noqa: PLC0415

    from dafka.spark.errors import summarize_error  # noqa: PLC0415

    try:
        session = make_session("dafka spark", master, settings)
        for path in paths:
            for topic, name in make_views(session, path).items():
                click.echo(f"view {name}: topic {topic} of {path}", err=True)
    except (PySparkException, Py4JError, DafkaError) as error:
        raise UsageMistake(summarize_error(error)) from None
    return session


def _silence_pyspark() -> None:
    """Stop PySpark from logging each failed query, with Java's stack: the error says it in one sentence."""
    from pyspark.logger import PySparkLogger  # noqa: PLC0415 (only this command needs Spark)

    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True


def _names(session: SparkSession) -> dict[str, Any]:
    import dafka.spark  # noqa: PLC0415

    return {"spark": session, "dafka": dafka}


def _run_shell(session: SparkSession, _arguments: list[str]) -> int:
    names = {"__name__": "__console__", "__doc__": None, **_names(session)}
    try:
        import readline  # noqa: PLC0415 (not on all platforms)
        from rlcompleter import Completer  # noqa: PLC0415

        readline.set_completer(Completer(names).complete)
        readline.parse_and_bind("tab: complete")
    except ImportError:
        pass
    banner = (
        f"Spark {session.version}, {session.conf.get('spark.master')}, Python {sys.version.split()[0]}\n"
        'spark is the session, dafka is the package: dafka.spark.read(spark, "orders.db").show()\n'
        "Press Ctrl-D to leave."
    )
    _Shell(names).interact(banner, "")
    return 0


class _Shell(code.InteractiveConsole):
    """A Python shell that shortens Spark's errors to one sentence."""

    def showtraceback(self) -> None:
        error = sys.exception()
        if error is None or not _report(error, ""):
            super().showtraceback()


def _run_script(session: SparkSession, arguments: list[str]) -> int:
    script = arguments[0]
    sys.path.insert(0, str(Path(script).absolute().parent))
    return _run(script, arguments, lambda: runpy.run_path(script, _names(session), "__main__"))


def _run_standard_input(session: SparkSession, arguments: list[str]) -> int:
    sys.path.insert(0, "")
    name = "<stdin>"
    names = {"__name__": "__main__", **_names(session)}
    return _run(name, arguments, lambda: exec(compile(sys.stdin.read(), name, "exec"), names))  # as Python itself does


def _run(script: str, arguments: list[str], program: Callable[[], object]) -> int:
    """Run a script and return the exit status; errors that are not Spark's are printed with their traceback."""
    sys.argv = arguments
    try:
        program()
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:
        frames = _skip_frames(error.__traceback__, script)
        status = _report(error, _locate(frames, script))
        if not status:
            traceback.print_exception(error.with_traceback(frames))
        return status or 1
    return 0


def _skip_frames(frames: TracebackType | None, script: str) -> TracebackType | None:
    """Return a traceback from the script's first frame on."""
    while frames is not None and frames.tb_frame.f_code.co_filename != script:
        frames = frames.tb_next
    return frames


def _locate(frames: TracebackType | None, script: str) -> str:
    """Return the script's innermost line, as the start of a message."""
    lines = [line for frame, line in traceback.walk_tb(frames) if frame.f_code.co_filename == script]
    return f"{script}, line {lines[-1]}: " if lines else ""


def _report(error: BaseException, location: str) -> int:
    """Report an error of dafka or Spark and return the exit status for it; return 0 for other errors."""
    from py4j.protocol import Py4JError  # noqa: PLC0415
    from pyspark.errors import PySparkException  # noqa: PLC0415

    from dafka.spark.errors import find_dafka_error, find_worker_traceback, summarize_error  # noqa: PLC0415

    if not isinstance(error, (DafkaError, PySparkException, Py4JError)):
        return 0
    ours = find_dafka_error(error)
    if ours is not None:
        report_error(ours[1])
        return 2 if issubclass(ours[0], (ConfigError, StorageError)) else 1
    in_worker = find_worker_traceback(error)
    if in_worker is not None:
        click.echo(in_worker, err=True)
    else:
        report_error(location + summarize_error(error))
    return 1
