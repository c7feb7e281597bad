"""A broker behind nginx, configured as docs/how-to/http.md says, over TLS."""

from __future__ import annotations

import json
import re
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import attrs
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin, Subprotocol

from tests.cli.harness import DEADLINE_S, Dafka, wait_until
from tests.listener.secured import Authority

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(400),
    pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed"),
]

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "http.md"
NAME = "dafka.example"
IDLE_S = 125
"""Longer than nginx waits for anything by default."""

MAIN = """\
user root;
daemon off;
pid {folder}/pid;
error_log stderr;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
{page}
}}
"""


@attrs.define
class Proxy:
    """nginx, which listens at a port of 127.0.0.1 under the name of the page."""

    folder: Path
    port: int
    context: ssl.SSLContext
    process: subprocess.Popen[bytes] | None = None

    @property
    def origin(self) -> str:
        return f"https://{NAME}:{self.port}"

    def start(self) -> None:
        errors = self.folder / "errors"
        command = ["nginx", "-p", str(self.folder), "-c", str(self.folder / "nginx.conf"), "-e", str(errors)]
        self.process = subprocess.Popen(command)
        wait_until(self._look, errors.read_text)

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(30)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), 30)

    def request(self, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
        connection = HTTPSConnection(NAME, self.port, context=self.context)
        connection.sock = self.context.wrap_socket(self.connect(), server_hostname=NAME)
        with closing(connection):
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()

    def open_websocket(self, origin: str) -> ClientConnection:
        subprotocols = [Subprotocol("dafka.json.v1")]
        return connect(
            f"wss://{NAME}:{self.port}/ws",
            sock=self.connect(),
            ssl=self.context,
            origin=Origin(origin),
            subprotocols=subprotocols,
        )

    def _look(self) -> bool | None:
        assert self.process is not None
        assert self.process.poll() is None, (self.folder / "errors").read_text()
        try:
            self.connect().close()
        except OSError:
            return None
        return True


@pytest.fixture
def proxy(dafka: Dafka, tmp_path: Path) -> Iterator[Proxy]:
    """nginx in front of a broker without users."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    options = ("--http", "0", "--storage", f"filelog:{tmp_path / 'records'}")
    dafka_http = {"DAFKA_HTTP_ORIGINS": f"https://{NAME}:{port}"}
    up = dafka.start("up", "--sub", "tcp://127.0.0.1:*", "--pub", "tcp://127.0.0.1:*", *options, environment=dafka_http)
    address = urlsplit(up.wait_output(3)[2].split()[-1]).netloc
    found = re.search(r"^```nginx\n(.*?)^```$", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert found is not None
    folder = tmp_path / "nginx"
    folder.mkdir()
    authority = Authority(folder)
    certificate = str(authority.issue(NAME))
    page = found[1]
    for stated, actual in (
        ("listen 443", f"listen 127.0.0.1:{port}"),
        ("127.0.0.1:8080", address),
        ("/etc/ssl/dafka.pem", certificate),
        ("/etc/ssl/dafka.key", certificate),
    ):
        assert page.count(stated) == 1
        page = page.replace(stated, actual)
    (folder / "nginx.conf").write_text(MAIN.format(folder=folder, page=page))
    proxy = Proxy(folder, port, ssl.create_default_context(cafile=authority.path))
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.stop()


def publish(proxy: Proxy, value: bytes) -> None:
    status, body = proxy.request("POST", "/topics/orders/records", value)
    assert status == 200, body


def subscribe(connection: ClientConnection, position: Any) -> None:
    message = {"type": "subscribe", "id": 1, "topic": "orders", "from": position, "credit": 1000}
    connection.send(json.dumps(message))
    receive(connection, "subscribed")


def receive(connection: ClientConnection, kind: str) -> dict[str, Any]:
    """Return the next message of a kind; an error is of no kind."""
    while True:
        message: dict[str, Any] = json.loads(connection.recv(timeout=DEADLINE_S))
        assert message["type"] in {kind, "welcome"}, message
        if message["type"] == kind:
            return message


def test_a_subscription_outlasts_idleness_and_resumes_after_a_restart(proxy: Proxy) -> None:
    publish(proxy, b"0")
    with proxy.open_websocket(proxy.origin) as connection:
        subscribe(connection, "earliest")
        assert [each["value"] for each in receive(connection, "records")["records"]] == ["0"]
        with pytest.raises(TimeoutError):
            connection.recv(timeout=IDLE_S)
        publish(proxy, b"1")
        received = receive(connection, "records")
        assert [each["value"] for each in received["records"]] == ["1"]

        proxy.stop()
        with pytest.raises(ConnectionClosed):
            connection.recv(timeout=DEADLINE_S)
    proxy.start()
    publish(proxy, b"2")
    with proxy.open_websocket(proxy.origin) as connection:
        subscribe(connection, {"offset": received["next_offset"]})
        assert [each["value"] for each in receive(connection, "records")["records"]] == ["2"]
        publish(proxy, b"3")
        assert [each["value"] for each in receive(connection, "records")["records"]] == ["3"]


def test_a_stream_of_events_outlasts_idleness(proxy: Proxy) -> None:
    publish(proxy, b"0")
    with proxy.context.wrap_socket(proxy.connect(), server_hostname=NAME) as stream:
        head = f"GET /topics/orders/records?from=latest HTTP/1.1\r\nHost: {NAME}:{proxy.port}\r\n"
        stream.sendall(f"{head}Accept: text/event-stream\r\n\r\n".encode())
        received, end = b"", time.monotonic() + IDLE_S
        while time.monotonic() < end:
            stream.settimeout(max(end - time.monotonic(), 0.001))
            try:
                data = stream.recv(65536)
            except TimeoutError:
                break
            assert data, received
            received += data
        assert b"data:" not in received
        publish(proxy, b"the record")
        stream.settimeout(DEADLINE_S)
        while b"the record" not in received:
            data = stream.recv(65536)
            assert data, received
            received += data


def test_pages_of_other_sites_and_large_bodies_are_refused_by_the_broker(proxy: Proxy) -> None:
    with pytest.raises(InvalidStatus) as caught:
        proxy.open_websocket("https://elsewhere.example")
    assert caught.value.response.status_code == 403
    status, _ = proxy.request("POST", "/topics/orders/records", b"x", Origin="https://elsewhere.example")
    assert status == 403
    assert proxy.request("GET", "/")[0] == 200
    assert proxy.request("POST", "/topics/orders/records", bytes(15 * 2**20))[0] == 200
