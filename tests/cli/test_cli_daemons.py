"""What towers and stores do before they serve: which towers a store uses, and how a signal stops them."""

from __future__ import annotations

import gc
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from http.client import HTTPConnection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import attrs
import pytest
import trio

from dafka.cli import daemons, runner
from dafka.cli.daemons import serve_store_with_restarts
from dafka.config import Config
from dafka.errors import DiscoveryError, OutdatedStoreError, StorageError
from dafka.protocol import RefusedByPeer, TowerHostUnresolved, TowersHeard, TowersSilent
from dafka.roles import EventFeed, Store, Tower
from dafka.testing import open_cluster
from dafka.transport.keys import KeyPair, write_key_file
from tests.cli.harness import FREE
from tests.cli.programs import take_program, tower_options
from tests.waiting import wait_until


@pytest.mark.parametrize("command", ["tower", "store", "up"])
def test_a_daemon_that_is_stopped_is_cancelled_at_once_and_has_done_its_job(command: str) -> None:
    taken = take_program("daemons", command)
    assert taken.interrupted() == 0
    assert taken.shutdown.grace_s == 0
    config = Config()
    assert taken.shutdown.limit_s == (config.node.grace_ms + config.node.linger_ms) / 1000 + runner.EXTRA_END_S


@attrs.frozen
class OwnTower:
    sub_endpoint: str = "tcp://0.0.0.0:5001"
    pub_endpoint: str = "tcp://[::]:5002"


OWN = cast(Tower, OwnTower())
OWN_SUB, OWN_PUB = "tcp://127.0.0.1:5001", "tcp://127.0.0.1:5002"


@pytest.mark.parametrize(
    ("subs", "pubs", "expected_subs", "expected_pubs"),
    [
        (None, None, (OWN_SUB,), (OWN_PUB,)),
        (("tcp://a:1", "tcp://b:1"), ("tcp://a:2",), (OWN_SUB, "tcp://a:1", "tcp://b:1"), (OWN_PUB, "tcp://a:2")),
        ((OWN_SUB,), (OWN_PUB,), (OWN_SUB,), (OWN_PUB,)),
    ],
)
def test_up_uses_its_own_tower_and_those_that_are_configured(
    subs: Any, pubs: Any, expected_subs: object, expected_pubs: object
) -> None:
    config = Config() if subs is None else Config().with_beacon(tower_sub=subs, tower_pub=pubs)
    beacon = daemons._use_tower(config, OWN).beacon
    assert (beacon.tower_sub, beacon.tower_pub) == (expected_subs, expected_pubs)


@pytest.mark.parametrize("others", [1, 2])
def test_up_knows_the_key_of_its_own_tower(others: int, tmp_path: Path) -> None:
    """One key may be that of all other towers."""
    pair, *keys = (KeyPair.generate() for _ in range(1 + others))
    write_key_file(tmp_path / "key", pair)
    (tmp_path / "authorized").write_text(pair.public)
    config = Config().with_beacon(tower_sub=("tcp://a:1", "tcp://b:1"), tower_pub=("tcp://a:2", "tcp://b:2"))
    config = config.with_security(
        key_file=str(tmp_path / "key"),
        authorized_keys=str(tmp_path / "authorized"),
        tower_keys=tuple(key.public for key in keys),
    )
    found = daemons._use_tower(config, OWN).security.tower_keys
    assert found == (pair.public, keys[0].public, keys[-1].public)


async def test_a_store_that_is_restarted_is_announced_without_the_tower(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], autojump_clock: Any
) -> None:
    store = SimpleNamespace(address="A", endpoint="tcp://a:3", events=Events())

    async def serve_twice(
        _config: Config,
        watch: Callable[[object], AbstractContextManager[None]],
        *,
        task_status: trio.TaskStatus[object],
    ) -> None:
        for _ in range(2):
            with watch(store):
                await trio.lowlevel.checkpoint()
        task_status.started(store)

    monkeypatch.setattr(daemons, "serve_store_with_restarts", serve_twice)
    supervisor = cast(Any, SimpleNamespace(monitor=SimpleNamespace(watching=nullcontext), metrics_url=None))
    announced: list[str] = []
    config = CONFIG.with_store(storage="memory:")
    with trio.move_on_after(1):
        async with trio.open_nursery() as nursery:
            await daemons._run_store(config, nursery, supervisor, lambda: announced.append("tower"))
    assert announced == ["tower"]
    assert capsys.readouterr().out.splitlines() == ["store A at tcp://a:3 keeps memory:"] * 2


async def test_a_broker_with_an_older_copy_of_its_storage_starts_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, autojump_clock: Any
) -> None:
    """The broker that has ended is not measured any more, and the tower is announced once."""
    sources, announced, nurseries = ["others"], list[str](), list[object]()
    supervisor = cast(Any, SimpleNamespace(monitor=SimpleNamespace(metric_sources=sources)))

    async def run_once(_: Config, nursery: object, found: Any, announce: Callable[[], None]) -> None:
        assert (sources, found) == (["others"], supervisor)
        announce()
        sources.append("of the broker")
        nurseries.append(nursery)
        if len(nurseries) < 3:
            raise OutdatedStoreError("it is an older copy")
        await trio.sleep_forever()

    monkeypatch.setattr(daemons, "_run_broker_once", run_once)
    with trio.move_on_after(1):
        async with trio.open_nursery() as nursery:
            await daemons._run_broker(CONFIG, nursery, supervisor, lambda: announced.append("tower"))
    assert (len(set(nurseries)), announced) == (3, ["tower"])
    assert [each.getMessage().partition(";")[0] for each in caplog.records] == ["it is an older copy"] * 2


ANYWHERE = ["--sub", FREE, "--pub", FREE]
TOWER_LINE = "tower takes beacons at tcp://{own} and passes them on at tcp://{own}"
STORE_LINE = "store {address} at tcp://{own} keeps memory:"
BROKER_LINES = ["broker {address} at tcp://{own} keeps memory:", "clients of Kafka connect to {own}"]
WEB_LINE = "HTTP, WebSocket and the console at http://{own}"
METRICS = ("dafka_beacons", "dafka_retention", "dafka_broker", "dafka_kafka", "dafka_http")
OF_TOWER, OF_STORE, OF_BROKER, OF_KAFKA, _ = METRICS


def ask(port: int, path: str) -> tuple[int, str]:
    """Return the HTTP status, and the body."""
    connection = HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("command", "lines", "metrics"),
    [
        (["tower", *ANYWHERE], [TOWER_LINE], [OF_TOWER]),
        (["store", "--storage", "memory:"], [STORE_LINE], [OF_STORE]),
        (["up", *ANYWHERE, "--storage", "memory:"], [TOWER_LINE, STORE_LINE], [OF_TOWER, OF_STORE]),
        (["broker", "--kafka", "0", "--http", "0", "--storage", "memory:"], [*BROKER_LINES, WEB_LINE], METRICS[1:]),
        (
            ["up", *ANYWHERE, "--http", "0", "--storage", "memory:"],
            [TOWER_LINE, BROKER_LINES[0], WEB_LINE],
            {*METRICS} - {OF_KAFKA},
        ),
    ],
    ids=["tower", "store", "up", "broker", "up as a broker"],
)
async def test_a_daemon_says_where_it_serves_and_is_healthy_with_all_its_nodes(
    command: list[str], lines: list[str], metrics: Iterable[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the metrics are comes last: what waits for it can use the others."""
    printed = ""

    def announced() -> bool:
        nonlocal printed
        printed += capsys.readouterr().out
        return "metrics at" in printed

    async with open_cluster(storage=None) as cluster, trio.open_nursery() as nursery:
        towers = [] if command[0] in {"tower", "up"} else tower_options(cluster.config)
        nursery.start_soon(take_program("daemons", *command, *towers, "--metrics-listen", "0").program)
        with trio.fail_after(DEADLINE_S):
            await wait_until(announced)
            expected = "\n".join([*lines, "metrics at http://{own}/metrics", ""])
            pattern = (
                re.escape(expected).replace(r"\{own\}", r"127\.0\.0\.1:\d+").replace(r"\{address\}", "[0-9A-F]{32}")
            )
            assert re.fullmatch(pattern, printed), printed
            port = int(printed.removesuffix("/metrics\n").rpartition(":")[2])
            while (await trio.to_thread.run_sync(ask, port, "/readyz"))[0] != 200:  # noqa: ASYNC110 (no event is set)
                await trio.sleep(0.05)
            _, page = await trio.to_thread.run_sync(ask, port, "/metrics")
        assert {each for each in METRICS if f"\n{each}_" in page} == set(metrics)
        nursery.cancel_scope.cancel()


def test_what_a_broker_makes_at_its_start_is_never_searched_for_garbage() -> None:
    """Later garbage is collected, also after an error of the start."""
    made: list[object] = []

    def fail() -> None:
        with daemons._collection_paused():
            assert not gc.isenabled()
            made.append([made])
            raise StorageError("full")

    with pytest.raises(StorageError):
        fail()
    assert gc.isenabled()
    assert not any(each is made for each in gc.get_objects())


# Waiting for a tower

CONFIG = Config().with_beacon(tower_sub=("tcp://a:1",), tower_pub=("tcp://a:2",))
SILENT = TowersSilent(5.0, CONFIG.beacon.tower_pub)
REFUSED = RefusedByPeer("tcp://a:2", "own", "key not authorized")


@pytest.fixture(autouse=True)
def no_diagnosis(monkeypatch: pytest.MonkeyPatch) -> None:
    async def find_nothing(_endpoint: str) -> str:
        await trio.lowlevel.checkpoint()
        return ""

    monkeypatch.setattr(runner, "diagnose_connection", find_nothing)


class Events:
    """The events of a node, one after each pause."""

    def __init__(self, *events: object) -> None:
        self._events = list(events)

    def __aiter__(self) -> Events:
        return self

    async def __anext__(self) -> object:
        await trio.sleep(0.4 if self._events else 1000)
        return self._events.pop(0)


async def wait_tower(*events: object) -> None:
    """Wait for a tower as a command does while these events happen."""
    await runner._wait_tower_heard(cast(EventFeed, Events(*events)), CONFIG)


UNRESOLVED = TowerHostUnresolved("a", "unknown")
UNKNOWN = attrs.evolve(REFUSED, reason="unknown")
HEARD = TowersHeard()
REFUSES = "no tower accepts this node: tcp://a:2 refuses"
WAITS: list[tuple[tuple[object, ...], str]] = [
    ((HEARD,), ""),
    ((UNRESOLVED, HEARD), ""),
    ((attrs.evolve(REFUSED, endpoint="tcp://peer:1"), HEARD), ""),
    ((UNKNOWN, UNRESOLVED, HEARD), ""),
    ((REFUSED, HEARD), ""),  # another one refused this node
    ((REFUSED, REFUSED, HEARD), ""),
    ((SILENT,), "no tower answered at tcp://a:2 within 5 s; start one with `dafka up`"),
    ((UNRESOLVED, SILENT), "the tower's host name 'a' cannot be resolved: unknown; check"),
    ((REFUSED,), f"{REFUSES} this node's connection: its key"),
    ((REFUSED, attrs.evolve(REFUSED, endpoint="tcp://a:1")), "no tower accepts this node: tcp://a:1 refuses"),
    ((UNKNOWN, SILENT), REFUSES),
    ((TowerHostUnresolved("b", "unknown"), UNKNOWN, SILENT), REFUSES),
]


@pytest.mark.parametrize(("events", "error"), WAITS)
async def test_a_tower_that_is_heard_in_time_is_used_and_otherwise_the_error_says_why(
    events: tuple[object, ...], error: str, autojump_clock: Any
) -> None:
    started = trio.current_time()
    if error:
        with pytest.raises(DiscoveryError) as caught:
            await wait_tower(*events)
        assert str(caught.value).startswith(error)
    else:
        await wait_tower(*events)
    # After a refusal the node waits for another tower, but no longer than this.
    expected = 0.4 + runner.REFUSED_S if error and events[0] == REFUSED else 0.4 * len(events)
    assert trio.current_time() - started == pytest.approx(expected)


async def test_a_tower_that_passes_nothing_on_is_an_error(autojump_clock: Any) -> None:
    class Node:
        settle_s = 0.0

        @property
        def events(self) -> Events:
            return Events(TowersHeard())

        async def wait_settled(self) -> None:
            await trio.sleep(self.settle_s)

    node = cast(Any, Node())
    timeout_s = CONFIG.node.tower_timeout_ms / 1000
    for settle_s in (0.0, timeout_s - 1):
        node.settle_s = settle_s
        async with runner.require_tower(node, CONFIG):
            await trio.sleep(timeout_s + 1)
    node.settle_s = timeout_s + 1
    with pytest.raises(DiscoveryError, match="tcp://a:2 is heard, but does not pass on what is sent to tcp://a:1"):
        async with runner.require_tower(node, CONFIG):
            await trio.sleep(1000)


# `dafka store` starts again with a new storage when the one that it has is removed

DEADLINE_S = 60


async def test_a_store_whose_storage_is_removed_starts_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It retries while its storage cannot be opened. An error of the first start is raised."""
    stores: list[Store] = []
    ended: list[Store] = []

    @contextmanager
    def watch(store: Store) -> Iterator[None]:
        stores.append(store)
        try:
            yield
        finally:
            ended.append(store)

    folder = tmp_path / "folder"
    folder.mkdir()
    with trio.fail_after(DEADLINE_S):
        async with open_cluster(storage=None) as cluster, trio.open_nursery() as nursery:
            config = cluster.config.with_store(storage=f"filelog:{folder}/log", retry_ms=10)
            await nursery.start(serve_store_with_restarts, config, watch)
            async with cluster.producer("orders") as producer:
                await producer.send_many([b"1", b"2"])
                await producer.wait_stored()
                shutil.rmtree(folder)
                await producer.send(b"3")
                await wait_until(lambda: len(ended) == 1 and "does not exist; create it first" in caplog.text)
                folder.mkdir()
                await wait_until(lambda: len(stores) == 2)
                await producer.wait_stored()
            assert stores[0].address != stores[1].address
            nursery.cancel_scope.cancel()
        wrong = cluster.config.with_store(storage=f"filelog:{tmp_path}/missing/log")
        with pytest.raises(StorageError):
            await serve_store_with_restarts(wrong, watch, task_status=trio.TASK_STATUS_IGNORED)
