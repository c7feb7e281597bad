"""Health: when a node is ready, when its process must be restarted, and how both are reported."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from click.testing import CliRunner

from dafka import Config, Store, open_producer
from dafka.broker.broker import StartupProgress
from dafka.cli import main
from dafka.errors import AddressInUseError
from dafka.operations import http
from dafka.operations.http import CONNECTIONS_MAX, REQUEST_BYTES_MAX, Answer, make_handlers, open_server
from dafka.operations.monitor import Monitor
from dafka.roles import Health
from tests.waiting import DEADLINE_S, wait_until


@pytest.mark.parametrize("clock", [trio.testing.MockClock(rate=1.0)])
async def test_a_node_without_a_tower_is_not_ready(clock: trio.testing.MockClock) -> None:
    tower = ("tcp://127.0.0.1:9",)
    nowhere = Config().with_node(bind="tcp://127.0.0.1:*").with_beacon(tower_sub=tower, tower_pub=tower)
    async with open_producer("t", nowhere) as producer:
        assert producer.health() == Health(unready="the cluster is not found yet")
        clock.jump(nowhere.node.tower_timeout_ms / 1000)
        await wait_until(lambda: producer.health() == Health(unready="no tower is heard"))


class FakeStore(Store):
    def __init__(self, health: Health) -> None:
        self.state = health

    def health(self) -> Health:
        return self.state


def test_a_process_is_healthy_if_all_its_nodes_are() -> None:
    monitor = Monitor("store", "tower")
    assert monitor.health() == Health(unready="store and tower have not started yet")
    monitor = Monitor("store")
    assert monitor.health() == Health(unready="store has not started yet")
    monitor.starting = StartupProgress()
    assert monitor.health() == Health(unready="store: it reads its storage")
    first, second = FakeStore(Health(unready="no tower is heard")), FakeStore(Health("it hangs", "it hangs"))
    monitor.add(first)
    assert monitor.health() == Health(unready="store: no tower is heard")
    with monitor.watching(second):
        assert monitor.health() == Health("store: it hangs", "store: it hangs")
    first.state = Health()
    assert monitor.health() == Health()
    with pytest.raises(ZeroDivisionError), monitor.watching(second):
        raise ZeroDivisionError
    assert monitor.health() == Health(), "a node that failed runs no longer"
    monitor.is_stopping = True
    assert monitor.health() == Health(unready="stopping")
    assert Monitor().health() == Health(unready="no node has started yet")


@pytest.mark.parametrize(
    ("health", "live", "ready"),
    [
        (Health(), (200, b"live\n"), (200, b"ready\n")),
        (Health(unready="no tower is heard"), (200, b"live\n"), (503, b"store: no tower is heard\n")),
        (Health("it hangs", "it hangs"), (503, b"store: it hangs\n"), (503, b"store: it hangs\n")),
    ],
)
def test_livez_and_readyz_answer_200_or_503_with_the_reason(
    health: Health, live: tuple[int, bytes], ready: tuple[int, bytes]
) -> None:
    monitor = Monitor("store")
    monitor.add(FakeStore(health))
    answers = make_handlers(monitor)
    for path, expected in (("/livez", live), ("/readyz", ready)):
        answer = answers[path]({})
        assert (answer.status, answer.body) == expected


async def test_the_health_command_prints_the_answer_and_exits_with_0_or_1() -> None:
    answer = Answer(503, b"store: no tower is heard\n")
    handlers = {"/readyz": lambda _: answer, "/livez": lambda _: Answer(200, b"live\n")}
    async with open_server("0", handlers) as url:
        address = url.removeprefix("http://")
        assert await probe(address) == (1, "store: no tower is heard\n")
        assert await probe(address.rpartition(":")[2], "--live") == (0, "live\n")
        answer = Answer(200, b"ready\n")
        assert await probe(address) == (0, "ready\n")
        answer = Answer(200, b"")
        assert await probe(address) == (0, "status 200\n")
    assert await probe(address) == (
        1,
        f"no answer from 127.0.0.1 port {address.rpartition(':')[2]}: Connection refused\n",
    )


async def probe(*arguments: str) -> tuple[int, str]:
    result = await trio.to_thread.run_sync(CliRunner().invoke, main, ["health", *arguments])
    return result.exit_code, result.output


async def test_the_health_command_gives_up_on_a_silent_server() -> None:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        port = listener.socket.getsockname()[1]
        status, sentence = await probe(f"127.0.0.1:{port}", "--timeout", "100ms")
    assert (status, sentence) == (1, f"no answer from 127.0.0.1 port {port}: timed out\n")


# The HTTP server for metrics and health, with correct, slow and malicious clients

GET = b"GET /here HTTP/1.1\r\nHost: a\r\n\r\n"


def here(headers: Mapping[str, str]) -> Answer:
    if "fail" in headers:
        raise RuntimeError("as asked")
    return Answer(200, headers.get("x", "there").encode())


@asynccontextmanager
async def serving() -> AsyncIterator[int]:
    async with open_server("0", {"/here": here}) as url:
        assert url.startswith("http://127.0.0.1:")
        yield int(url.rpartition(":")[2])


async def ask(port: int, request: bytes) -> bytes:
    """Send a request, and return all bytes received until the connection is closed."""
    answer = b""
    with trio.fail_after(DEADLINE_S):
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            try:
                await stream.send_all(request)
                while data := await stream.receive_some():
                    answer += data
            except trio.BrokenResourceError:
                pass
    return answer


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


@pytest.mark.parametrize(
    ("request_", "status", "body"),
    [
        (GET, 200, b"there"),
        (b"GET /here?x=1 HTTP/1.0\r\n\r\n", 200, b"there"),
        (b"GET /here HTTP/1.1\r\nHost: a\r\nX: y\r\n\r\n", 200, b"y"),
        (b"HEAD /here HTTP/1.1\r\nHost: a\r\n\r\n", 200, b""),
        (b"POST /here HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n12345", 405, b"expected GET or HEAD\n"),
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", 404, b"not found: expected /here\n"),
        (b"GET /here HTTP/1.1\r\nHost: a\r\nFail: 1\r\n\r\n", 500, b"the request failed; the log has the reason\n"),
        (b"GET /here HTTP/1.1\r\n\r\n", 400, b"expected an HTTP/1.1 request\n"),
        (b"\x16\x03\x01 hello\r\n\r\n", 400, b"expected an HTTP/1.1 request\n"),
        (b"GET /" + b"x" * 2 * REQUEST_BYTES_MAX + b" HTTP/1.1\r\n\r\n", 431, b"expected an HTTP/1.1 request\n"),
    ],
)
async def test_each_request_has_the_expected_answer(request_: bytes, status: int, body: bytes) -> None:
    async with serving() as port:
        answer = await ask(port, request_)
        assert status_of(answer) == status
        head, _, found = answer.partition(b"\r\n\r\n")
        assert found == body
        assert b"Connection: close" in head
        assert status_of(await ask(port, GET)) == 200


async def test_a_slow_client_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "EXCHANGE_S", 0.1)
    async with serving() as port:
        assert await ask(port, GET[:-2]) == b""


async def test_refused_connections_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "EXCHANGE_S", 3600)
    async with serving() as port:
        waiting = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(CONNECTIONS_MAX)]
        for stream in waiting:
            await stream.send_all(GET[:5])
        with trio.fail_after(60):
            refused = 0
            while refused < 3 * CONNECTIONS_MAX:
                refused += not await ask(port, GET)
            for stream in waiting:
                await trio.aclose_forcefully(stream)
            while not (answer := await ask(port, GET)):  # noqa: ASYNC110 (until the server has noticed)
                await trio.sleep(0.01)
        assert status_of(answer) == 200


async def test_a_port_that_is_in_use_is_refused_in_one_sentence() -> None:
    async with serving() as port:
        with pytest.raises(
            AddressInUseError, match=f"cannot serve metrics at 127.0.0.1:{port}: Address already in use; choose another"
        ):
            async with open_server(f"127.0.0.1:{port}", {}):
                pass


async def test_the_server_listens_at_the_given_address() -> None:
    async with open_server("[::1]:0", {"/here": here}) as url:
        assert url.startswith("http://[::1]:")
    with pytest.raises(AddressInUseError, match=r"cannot serve metrics at 192\.0\.2\.1:0: Cannot assign"):
        async with open_server("192.0.2.1:0", {}):
            pass


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("", "text/plain; version=0.0.4"),
        ("application/openmetrics-text; version=1.0.0", "application/openmetrics-text; version=1.0.0"),
        ("application/openmetrics-text; version=x.y", "text/plain"),
        ("application/openmetrics-text; version=1.0.0; escaping=\x00;;=,,", ""),
        (",;=,text/plain;version=", "text/plain"),
    ],
)
def test_metrics_have_the_requested_format(accept: str, content_type: str) -> None:
    answer = make_handlers(Monitor())["/metrics"]({"accept": accept})
    assert answer.status == 200
    assert answer.content_type.startswith(content_type)
    assert b"process_resident_memory_bytes" in answer.body
