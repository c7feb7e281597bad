"""The examples of the pages about HTTP and WebSocket do what the pages show."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from dafka.http.websocket.messages import CLIENT_MESSAGES, SERVER_MESSAGES
from tests.http.running import DEADLINE_S, RunningWeb, open_web
from tests.http.websocket.clients import Client, open_client
from tests.http.websocket.test_javascript import MODULE, node_folder

__all__ = ["node_folder"]

DOCS = Path(__file__).parents[2] / "docs"
SPECIFICATION = (DOCS / "spec" / "websocket.md").read_text("utf-8")
HOW_TO, QUEUES = ((DOCS / "how-to" / f"{name}.md").read_text("utf-8") for name in ("websocket", "queues"))
LINES = re.findall(r"^([<>]) (\{.*\})$", SPECIFICATION, re.MULTILINE)


def blocks(language: str, page: str = HOW_TO) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)


def test_every_message_but_errors_of_login_is_in_an_example() -> None:
    shown = {json.loads(text)["type"] for _, text in LINES}
    assert shown == (CLIENT_MESSAGES.keys() | SERVER_MESSAGES.keys()) - {"authenticate", "authenticated"}


async def test_examples_of_the_specification() -> None:
    async with open_web() as web, open_client(web) as client:
        received, receipts = [client.welcome], dict[str, str]()
        for direction, text in LINES:
            message = json.loads(text)
            if direction == ">":
                if message["type"] == "consume":
                    queue = f"/topics/{message['topic']}/queues/{message['queue']}"
                    assert (await web.request("PUT", queue, document={"from": "earliest"})).status == 200
                if "receipt" in message:
                    message["receipt"] = receipts[message["receipt"]]
                await client.connection.send(json.dumps(message))
            else:
                found = received.pop() if received else await Client.receive(client)
                if "receipt" in message:
                    receipts[message["receipt"]] = found["receipt"]
                    found["receipt"] = message["receipt"]
                for each in found.get("records", ()):
                    each.update(dict.fromkeys({"locked_until"} & each.keys(), 1767225630000))
                assert found == message


async def test_python_program() -> None:
    (program,) = blocks("python")
    async with open_web() as web:
        program = program.replace(":8080", f":{web.port}")
        with trio.fail_after(60):
            done = await trio.run_process([sys.executable, "-c", program], capture_stdout=True)
        assert done.stdout.decode().splitlines() == ["[{'log': 0, 'offset': 0, 'count': 1}]", "0 3 plums"]


async def run_javascript(web: RunningWeb, page: str, node_folder: Path) -> list[str]:
    """Run the program of a page, and return what it prints."""
    (program,) = blocks("js", page)
    shutil.copy(MODULE, node_folder / "dafka.js")
    program = program.replace(":8080", f":{web.port}").replace('/ws" }', '/ws", WebSocket }')
    path = node_folder / "how-to.mjs"
    path.write_text(f'import WebSocket from "ws";\n{program}')
    with trio.fail_after(60):
        done = await trio.run_process(["node", str(path)], capture_stdout=True)
    return done.stdout.decode().splitlines()


async def test_javascript_program(node_folder: Path) -> None:
    async with open_web() as web:
        printed = await run_javascript(web, HOW_TO, node_folder)
        assert printed == ["stored in log 0 at offset 0", "0 anne 2 apples"]


async def test_javascript_program_that_consumes_a_queue(node_folder: Path) -> None:
    async with open_web() as web:
        await web.request("POST", "/topics", document={"name": "emails"})
        queue = "/topics/emails/queues/mailer"
        assert (await web.request("PUT", queue, document={"from": "earliest"})).status == 200
        assert await run_javascript(web, QUEUES, node_folder) == ["to anne 1"]
        described = (await web.get(queue)).document
        assert (described["available_count"], described["locked_count"]) == (0, 0)


# The pages about HTTP and queues


EXAMPLE = re.compile(r"^```sh\n(?P<commands>.*?)^```$(?:\n\n^```\n(?P<output>.*?)^```$)?", re.DOTALL | re.MULTILINE)
EXAMPLES = {
    page: [(each["commands"], each["output"]) for each in EXAMPLE.finditer((DOCS / "how-to" / page).read_text("utf-8"))]
    for page in ("http.md", "queues.md")
}
RECEIPT = re.compile(rb'(?<="receipt":")[^"]+')


def shown(output: bytes) -> str:
    """Return output as the page shows it: without receipts, and times that are not those of the producer."""
    found = re.sub(r'"(timestamp|locked_until)":(?!1767225600000)\d{13}', r'"\1":TIME', output.decode())
    return re.sub(r'"receipt":"[^"]+"', '"receipt":"RECEIPT"', found)


@pytest.mark.parametrize("page", EXAMPLES)
def test_the_page_has_examples_with_their_output(page: str) -> None:
    assert len(EXAMPLES[page]) >= 6
    assert all(output for _, output in EXAMPLES[page])


@pytest.mark.parametrize("page", EXAMPLES)
async def test_the_commands_answer_what_the_page_shows(page: str, tmp_path: Path) -> None:
    receipt = b""
    async with open_web(f"filelog:{tmp_path}/log") as web:
        for commands, output in EXAMPLES[page]:
            script = commands.replace("127.0.0.1:8080", f"127.0.0.1:{web.port}").replace("curl ", "curl -s ")
            script = script.replace("RECEIPT", receipt.decode())
            with trio.fail_after(DEADLINE_S):
                done = await trio.run_process(
                    ["bash", "-euc", script], capture_stdout=True, stderr=subprocess.STDOUT, cwd=tmp_path, check=False
                )
            receipt = (RECEIPT.findall(done.stdout) or [receipt])[-1]
            assert shown(done.stdout).strip() == (output or "").strip(), commands
