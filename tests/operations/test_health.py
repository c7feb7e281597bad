"""Health: when a node is ready, when its process must be restarted, and how both are reported."""

from __future__ import annotations

import pytest
import trio
from click.testing import CliRunner

from dafka import Store
from dafka.cli import main
from dafka.operations.http import Answer, make_handlers, open_server
from dafka.operations.monitor import Monitor
from dafka.roles import Health
from dafka.testing import open_cluster


async def test_a_node_without_a_tower_is_not_ready() -> None:
    async with open_cluster(storage=None) as cluster:
        nowhere = cluster.config.with_beacon(
            tower_sub=("tcp://127.0.0.1:9",), tower_pub=("tcp://127.0.0.1:9",)
        ).with_node(tower_timeout_ms=200)
        async with cluster.producer("t", nowhere) as producer:
            assert producer.health() == Health(unready="the cluster is not found yet")
            with trio.fail_after(30):
                while producer.health() != Health(unready="no tower is heard"):  # noqa: ASYNC110 (there is no event to wait for)
                    await trio.sleep(0.01)


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
