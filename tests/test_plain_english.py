"""The check of wording in `make check`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.plain_english import check


@pytest.mark.parametrize(
    ("name", "text", "lines"),
    [
        ("code.py", '"""A store.\n\nIt lacks records.\n"""\nX = "lacks"  # no more\n', [3, 5]),
        ("code.py", "def f():\n    '''Let a node begin.'''\n", [2]),
        ("code.py", '"""Reads no more than one record. Letters are told apart."""\n', [1]),
        ("page.md", "Text.\n`lacks`\n```\nlacks\n```\nThose who ask.\nthose who ask\n", [7]),
    ],
)
def test_wording_is_found_in_docstrings_comments_and_pages(
    tmp_path: Path, name: str, text: str, lines: list[int]
) -> None:
    path = tmp_path / name
    path.write_text(text)
    found = [int(each.split(":")[1]) for each in check(path)]
    assert found == lines
