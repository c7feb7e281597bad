"""The examples of the pages about WebSocket do what the pages show."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import trio

from dafka.http.websocket.messages import CLIENT_MESSAGES, SERVER_MESSAGES
from tests.http.running import open_web
from tests.http.websocket.clients import Client, open_client
from tests.http.websocket.test_javascript import MODULE, node_folder

__all__ = ["node_folder"]

DOCS = Path(__file__).parents[3] / "docs"
SPECIFICATION = (DOCS / "spec" / "websocket.md").read_text("utf-8")
HOW_TO = (DOCS / "how-to" / "websocket.md").read_text("utf-8")
LINES = re.findall(r"^([<>]) (\{.*\})$", SPECIFICATION, re.MULTILINE)


def blocks(language: str) -> list[str]:
    """Return the programs of the how-to page in a language."""
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
