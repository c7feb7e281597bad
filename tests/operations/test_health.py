"""Health: when a node is ready, when its process must be restarted, and how both are reported."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
from click.testing import CliRunner

from dafka import Config, Store, serve_store
from dafka.cli import main
from dafka.errors import StorageError
from dafka.operations.http import Answer, make_handlers, open_server
from dafka.operations.monitor import Monitor
from dafka.records import RECORD_MEMORY_BYTES, RecordBatch
from dafka.roles import Health
from dafka.roles import store as store_module
from dafka.storage.memory import MemoryStorage
from dafka.testing import open_cluster
from tests.waiting import wait_until


async def wait_for(store: Store, health: Health) -> None:
    with trio.fail_after(30):
        while store.health() != health:  # noqa: ASYNC110 (there is no event to wait for)
            await trio.sleep(0.01)


class Disk:
    """The effect of appending to a storage, which a test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error = ""
        self.is_open = trio.Event()
        self.is_open.set()
        append = MemoryStorage.append

        async def append_or_not(storage: MemoryStorage, batches: Sequence[RecordBatch]) -> None:
            await self.is_open.wait()
            if self.error:
                raise StorageError(self.error)
            await append(storage, batches)

        monkeypatch.setattr(MemoryStorage, "append", append_or_not)


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


async def test_a_store_is_not_live_while_its_storage_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "STUCK_S", 0.2)
    disk = Disk(monkeypatch)
    async with open_cluster() as cluster, cluster.producer("t") as producer:
        assert cluster.store is not None
        await wait_for(cluster.store, Health())
        disk.is_open = trio.Event()
        await producer.send(b"0")
        with trio.fail_after(30):
            while not cluster.store.health().trouble:  # noqa: ASYNC110 (there is no event to wait for)
                await trio.sleep(0.01)
        health = cluster.store.health()
        assert health.trouble.startswith("one transaction of the storage has taken ")
        assert health.unready.startswith("one transaction of the storage has taken ")
        disk.is_open.set()
        await producer.wait_stored()
        assert cluster.store.health() == Health()


@pytest.mark.parametrize(
    ("error", "is_opened", "reasons"),
    [("", True, []), ("the disk is full", True, ["the disk is full"]), ("", False, [""])],
    ids=["in time", "refused", "too slow"],
)
async def test_a_stopping_store_writes_the_records_that_it_has_received(
    error: str, is_opened: bool, reasons: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk = Disk(monkeypatch)
    running = trio.CancelScope()
    ended = trio.Event()

    async def serve(config: Config, *, task_status: trio.TaskStatus[Store]) -> None:
        with running:
            await serve_store(config, task_status=task_status)
        ended.set()

    async with open_cluster(storage=None) as cluster, trio.open_nursery() as nursery:
        config = cluster.config.with_store(storage="memory:")
        config = config.with_node(grace_ms=30_000 if is_opened else 50)
        store = await nursery.start(serve, config)
        with trio.CancelScope() as leaving:
            async with cluster.producer("t") as producer:
                disk.is_open = trio.Event()
                await producer.send_many([b"0"] * 10)
                received = 10 * (1 + RECORD_MEMORY_BYTES)
                await wait_until(lambda: store.statistics().pending_bytes >= received)
                running.cancel()
                disk.error = error
                if is_opened:
                    disk.is_open.set()
                with trio.fail_after(30):
                    await ended.wait()
                    if not reasons:
                        await producer.wait_stored()
                assert producer.statistics().unacknowledged == (10 if reasons else 0)
                leaving.cancel()
    lines = [getattr(record, "dafka", {}) for record in caplog.records]
    assert [line["reason"] for line in lines if line.get("event") == "records_unwritten"] == reasons


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
