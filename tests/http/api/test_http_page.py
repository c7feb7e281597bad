"""The commands of the page about HTTP do what the page says."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import trio

from tests.http.running import DEADLINE_S, open_web

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "http.md"
EXAMPLE = re.compile(r"^```sh\n(?P<commands>.*?)^```$(?:\n\n^```\n(?P<output>.*?)^```$)?", re.DOTALL | re.MULTILINE)
EXAMPLES = [(each["commands"], each["output"]) for each in EXAMPLE.finditer(PAGE.read_text("utf-8"))]


def shown(output: bytes) -> str:
    """Return output as the page shows it: it does not say when records were made, unless their producer does."""
    return re.sub(r'"timestamp":(?!1767225600000)\d{13}', '"timestamp":TIME', output.decode())


def test_the_page_has_examples_with_their_output() -> None:
    assert len(EXAMPLES) >= 8
    assert all(output for _, output in EXAMPLES)


async def test_the_commands_answer_what_the_page_shows(tmp_path: Path) -> None:
    async with open_web(f"filelog:{tmp_path}/log") as web:
        for commands, output in EXAMPLES:
            script = commands.replace("127.0.0.1:8080", f"127.0.0.1:{web.port}").replace("curl ", "curl -s ")
            with trio.fail_after(DEADLINE_S):
                done = await trio.run_process(
                    ["bash", "-euc", script], capture_stdout=True, stderr=subprocess.STDOUT, cwd=tmp_path, check=False
                )
            assert shown(done.stdout).strip() == (output or "").strip(), commands
