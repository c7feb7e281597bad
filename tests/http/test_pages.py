"""The examples of the pages about HTTP and WebSocket do what the pages show."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import trio

from dafka.http.websocket.messages import CLIENT_MESSAGES, SERVER_MESSAGES
from tests.http.running import DEADLINE_S, open_web
from tests.http.websocket.clients import Client, open_client
from tests.http.websocket.test_javascript import MODULE, node_folder

__all__ = ["node_folder"]

DOCS = Path(__file__).parents[2] / "docs"
SPECIFICATION = (DOCS / "spec" / "websocket.md").read_text("utf-8")
HOW_TO = (DOCS / "how-to" / "websocket.md").read_text("utf-8")
LINES = re.findall(r"^([<>]) (\{.*\})$", SPECIFICATION, re.MULTILINE)


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", HOW_TO, re.DOTALL | re.MULTILINE)


def test_every_message_but_errors_of_login_is_in_an_example() -> None:
    shown = {json.loads(text)["type"] for _, text in LINES}
    assert shown == (CLIENT_MESSAGES.keys() | SERVER_MESSAGES.keys()) - {"authenticate", "authenticated"}


async def test_examples_of_the_specification() -> None:
    async with open_web() as web, open_client(web) as client:
        received = [client.welcome]
        for direction, text in LINES:
            message = json.loads(text)
            if direction == ">":
                await client.connection.send(text)
            else:
                assert (received.pop() if received else await Client.receive(client)) == message


async def test_python_program() -> None:
    (program,) = blocks("python")
    async with open_web() as web:
        program = program.replace(":8080", f":{web.port}")
        with trio.fail_after(30):
            done = await trio.run_process([sys.executable, "-c", program], capture_stdout=True)
        assert done.stdout.decode().splitlines() == ["[{'log': 0, 'offset': 0, 'count': 1}]", "0 3 plums"]


async def test_javascript_program(node_folder: Path) -> None:
    (program,) = blocks("js")
    async with open_web() as web:
        shutil.copy(MODULE, node_folder / "dafka.js")
        program = program.replace(":8080", f":{web.port}").replace('/ws" }', '/ws", WebSocket }')
        path = node_folder / "how-to.mjs"
        path.write_text(f'import WebSocket from "ws";\n{program}')
        with trio.fail_after(60):
            done = await trio.run_process(["node", str(path)], capture_stdout=True)
        assert done.stdout.decode().splitlines() == ["stored in log 0 at offset 0", "0 anne 2 apples"]


# The page about HTTP


EXAMPLE = re.compile(r"^```sh\n(?P<commands>.*?)^```$(?:\n\n^```\n(?P<output>.*?)^```$)?", re.DOTALL | re.MULTILINE)
EXAMPLES = [
    (each["commands"], each["output"]) for each in EXAMPLE.finditer((DOCS / "how-to" / "http.md").read_text("utf-8"))
]


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
