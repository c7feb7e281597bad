"""Files of others are as they were published, and have their licences with them."""

from __future__ import annotations

import json
import re
from hashlib import sha256
from pathlib import Path

import pytest

from dafka.http.api.console import FOLDER as CONSOLE

FOLDERS = [CONSOLE / "vendor", Path(__file__).parent / "axe"]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_each_file_of_others_is_listed_and_unchanged(folder: Path) -> None:
    listed = json.loads((folder / "vendored.json").read_text("utf-8"))
    licences = {name for each in listed for name in each["licence_files"]}
    expected = {each["file"] for each in listed} | licences | {"vendored.json", "README.md"}
    assert {each.name for each in folder.iterdir()} | {"README.md"} == expected
    for each in listed:
        assert sha256((folder / each["file"]).read_bytes()).hexdigest() == each["sha256"], each["file"]
        assert re.fullmatch(r"\d+\.\d+\.\d+", each["version"])
        assert each["licence"]
        assert all((folder / name).stat().st_size > 500 for name in each["licence_files"])


def test_names_of_pinned_files_change_with_their_versions() -> None:
    # Browsers keep them for a year.
    for each in json.loads((CONSOLE / "vendor" / "vendored.json").read_text("utf-8")):
        assert each["version"] in each["file"]


def test_every_module_that_the_console_loads_is_there() -> None:
    for path in [*CONSOLE.glob("*.js"), *CONSOLE.glob("pages/*.js")]:
        for target in re.findall(r"(?:from|import\() ?\"(\.[^\"]+)\"", path.read_text("utf-8")):
            assert (path.parent / target).exists() or target.endswith("../dafka.js"), f"{path.name}: {target}"
