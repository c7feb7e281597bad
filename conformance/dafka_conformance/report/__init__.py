"""What came of a run, for people and for programs: on the terminal, as a page, as JSON, as JUnit XML.

`write_report` chooses the format by the file's suffix. `terminal` prints; the other modules each make a text of a run.
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
    """A report cannot be written where it was asked for; the text says why, and what would be right."""


def check_report_path(path: Path) -> None:
    """Looks, before a long run, whether its report can be written.

    Raises `ReportError` where the suffix is of no known format, the folder does not exist or cannot be written to, or
    the path is a folder itself.
    """
    if path.suffix.lower() not in _FORMATS:
        raise ReportError(f"cannot write a report to {path}: its name must end in .html, .json or .xml (JUnit)")
    if path.is_dir():
        raise ReportError(f"cannot write a report to {path}: it is a folder, not a file")
    if not path.parent.is_dir():
        raise ReportError(f"cannot write a report to {path}: there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ReportError(f"cannot write a report to {path}: no permission")


def write_report(run: Run, path: Path) -> None:
    """Writes a report: a page (`.html`), JSON (`.json`) or JUnit XML (`.xml`), over what is there.

    Raises `ReportError` as `check_report_path` does, and where writing fails.
    """
    check_report_path(path)
    text = _FORMATS[path.suffix.lower()](run)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ReportError(f"cannot write a report to {path}: {error.strerror}") from error
