"""The pages in docs/ say what the code does."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import dafka

ROOT = Path(__file__).parent.parent


def test_generated_pages_are_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_link_to_a_file_of_the_repository_leads_somewhere() -> None:
    """The descriptions of the other distributions have absolute links only, since an index shows them."""
    descriptions = [ROOT / "conformance" / "README.md", ROOT / "benchmarks" / "README.md"]
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *descriptions]:
        text = page.read_text("utf-8")
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
            assert page not in descriptions, target
            assert (page.parent / target).exists(), f"{page.name}: {target}"
        for target in re.findall(r"https://github\.com/dafka/dafka/(?:blob|tree)/main/([^)#\s]+)", text):
            assert (ROOT / target).exists(), f"{page.name}: {target}"


def test_every_public_name_is_in_the_api_reference_once() -> None:
    text = "\n".join(page.read_text("utf-8") for page in (ROOT / "docs" / "reference" / "api").glob("*.md"))
    directives = re.findall(r"^\.\. auto\w+:: dafka\.([A-Z]\w+|\w+_\w+)$", text, re.M)
    documented = [getattr(dafka, name) for name in directives]
    for module in map(importlib.import_module, re.findall(r"^\.\. automodule:: (dafka\.\w+)$", text, re.M)):
        documented += [module, *(getattr(module, name) for name in getattr(module, "__all__", ()))]
    counts = {name: documented.count(getattr(dafka, name)) for name in dafka.__all__}
    assert {name: count for name, count in counts.items() if count != 1} == {}
