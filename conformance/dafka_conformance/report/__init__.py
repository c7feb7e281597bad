"""Reports of a run: on the terminal, as an HTML page, as JSON and as JUnit XML.

`write_report` selects the format by the file's suffix. To add a format, add a module with a function from a `Run` to a
text, and enter it in `_FORMATS`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from dafka_conformance.model import Run
from dafka_conformance.report.html import to_html
from dafka_conformance.report.json import to_json
from dafka_conformance.report.junit import to_junit

__all__ = ["ReportError", "check_report_path", "to_html", "to_json", "to_junit", "write_report"]

_FORMATS: dict[str, Callable[[Run], str]] = {".html": to_html, ".json": to_json, ".xml": to_junit}


class ReportError(Exception):
    """A report cannot be written. The text says why, and what is expected."""


def check_report_path(path: Path) -> None:
    """Check, before a long run, that its report can be written.

    Args:
        path: The path of the report.

    Raises:
        ReportError: The suffix is unknown, the folder does not exist or is not writable, or the path is a folder.
    """
    if path.suffix.lower() not in _FORMATS:
        raise ReportError(f"cannot write a report to {path}: expected a name that ends in .html, .json or .xml (JUnit)")
    if path.is_dir():
        raise ReportError(f"cannot write a report to {path}: expected a file, not a folder")
    if not path.parent.is_dir():
        raise ReportError(f"cannot write a report to {path}: the folder {path.parent} does not exist")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ReportError(f"cannot write a report to {path}: permission denied")


def write_report(run: Run, path: Path) -> None:
    """Write a report: an HTML page (`.html`), JSON (`.json`) or JUnit XML (`.xml`). Replace an existing file.

    Args:
        run: The run.
        path: The path of the report. Its suffix selects the format.

    Raises:
        ReportError: As for `check_report_path`, or writing fails.
    """
    check_report_path(path)
    text = _FORMATS[path.suffix.lower()](run)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ReportError(f"cannot write a report to {path}: {error.strerror}") from error
