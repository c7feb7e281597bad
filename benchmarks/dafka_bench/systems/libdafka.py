"""The C implementation of Dafka, if a folder with its programs and its library is given.

Throughput is measured with its own tools `dafka_perf_store` and `dafka_perf_consumer`, without Python in between. They
do not report when a record arrived, and start a second late. Rates, latency and the first record are therefore measured
through the library.

Its producers do not report ACKs. The job `nodes` subscribes to them at the stores, as the producers do.
"""

from __future__ import annotations

import ctypes
import math
import os
import pty
import re
import resource
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import attrs
import zmq

from dafka.wire import BEACON, Ack, Command, decode, subscription_prefix
from dafka_bench.client import PACE, TICK_S, Coordinator, Pace, ReceivedRecords, Task, Usage, read_peak_bytes
from dafka_bench.processes import STEP_S, Processes, Server, free_port
from dafka_bench.results import BenchError
from dafka_bench.systems.base import WITH_SERVERS, Cluster, ClusterSetup, ServerCluster

FILES = ("dafka_towerd", "dafka_stored", "dafka_perf_store", "dafka_perf_consumer", "libdafka.so")
CONFIGURATION = """\
beacon
    sub_address = "tcp://127.0.0.1:{sub}"
    pub_address = "tcp://127.0.0.1:{pub}"
tower
    sub_address = "tcp://127.0.0.1:{sub}"
    pub_address = "tcp://127.0.0.1:{pub}"
store
    db = "{folder}/storedb-{number}"
consumer
    offset
        reset = "{reset}"
"""


@attrs.frozen
class Libdafka:
    """The C implementation.

    Attributes:
        tools: The folder of its programs and of libdafka.so; they find their libraries through the environment.
        name: Its name in tables.
        jobs: See `System.jobs`.
        stores_max: See `System.stores_max`.
        catch_up_records_max: Its consumer sends one FETCH for this many records, then waits forever.
        variables: See `System.variables`.
    """

    tools: Path | None
    name: str = "C libdafka"
    jobs: frozenset[str] = WITH_SERVERS | {"nodes"}
    stores_max: int = 1
    catch_up_records_max: int | None = 100_000
    variables: dict[str, str] = attrs.field(factory=lambda: {"ZSYS_LOGSYSTEM": "true"})

    def unavailable_reason(self) -> str:
        """See `System.unavailable_reason`."""
        if self.tools is None:
            return "expected the folder of its tools: use --c-tools FOLDER"
        absent = [name for name in FILES if not (self.tools / name).is_file()]
        return f"{self.tools} has no {absent[0]}" if absent else ""

    @asynccontextmanager
    async def open(self, processes: Processes, setup: ClusterSetup) -> AsyncIterator[Cluster]:
        """See `System.open`. Neither server reports when it is ready, so a port is polled."""
        tools = self.tools
        assert tools is not None
        ports = {"sub": free_port(), "pub": free_port()}
        settings = {"tools": str(self.tools), "stores": str(setup.stores), "pub": f"tcp://127.0.0.1:{ports['pub']}"}

        def configure(name: str, reset: str, number: int) -> str:
            path = processes.folder / f"{name}.conf"
            path.write_text(CONFIGURATION.format(**ports, folder=processes.folder, reset=reset, number=number))
            return str(path)

        async def serve(name: str, config: str) -> Server:
            return await processes.serve(name, [str(tools / name), "-c", config], is_graceful=False)

        for reset in ("earliest", "latest"):
            settings[reset] = configure(reset, reset, 0)
        tower = await serve("dafka_towerd", settings["latest"])
        await tower.wait_listening(ports["pub"])
        stores = [
            await serve("dafka_stored", configure(f"store-{number}", "latest", number))
            for number in range(setup.stores)
        ]
        yield ServerCluster(processes, "libdafka", settings, [*stores, tower])


TOPIC = b"$STORE_PERF"
"""The topic that the tools use."""

SETTLE_S = 1.5
"""How long to wait for discovery, which the nodes do not report. Each sends a beacon every second."""


def produce(task: Task, coordinator: Coordinator) -> None:
    """Send records, and wait until all are acknowledged."""
    if task.rate or task.opens_on_go:
        _produce_by_library(task, coordinator)
    else:
        coordinator.wait_go()
        _run_tool("dafka_perf_store", task, coordinator, start_mark=None)


def consume(task: Task, coordinator: Coordinator) -> None:
    """Receive records."""
    if task.rate or task.records == 1:
        _consume_by_library(task, coordinator)
        return
    if task.opens_on_go:
        coordinator.wait_go()
    _run_tool("dafka_perf_consumer", task, coordinator, start_mark=b"Received first")


def _run_tool(name: str, task: Task, coordinator: Coordinator, start_mark: bytes | None) -> None:
    """Run one of the tools on a terminal, so that its output is not buffered."""
    master, slave = pty.openpty()
    command = [str(Path(task.settings["tools"], name)), "-c", _configuration(task)]
    opened = time.perf_counter_ns()
    process = subprocess.Popen(
        [*command, str(task.records), str(task.size)], stdin=subprocess.DEVNULL, stdout=slave, stderr=slave
    )
    os.close(slave)
    try:
        if start_mark is not None and not task.opens_on_go:
            time.sleep(SETTLE_S)
            coordinator.ready()
        first = last = peak_bytes = 0
        output = b""
        for data in _read(master):
            now = time.perf_counter_ns()
            output += data
            peak_bytes = max(peak_bytes, read_peak_bytes(process.pid))
            first = first or (now if start_mark is not None and start_mark in output else 0)
            last = last or (now if b"mean throughput" in output else 0)
        process.wait()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(master)
    found = re.search(rb"mean throughput: (\d+) \[msg/s\]", output)
    if found is None:
        raise ValueError(f"{name} printed no throughput: {output.decode(errors='replace').strip() or 'no output'}")
    if start_mark is None:
        first = last - task.records * 1_000_000_000 // int(found[1])
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    usage = Usage(spent.ru_utime + spent.ru_stime, peak_bytes)
    coordinator.done(first=first, last=last, usage=usage, figures={"opened": opened, "first_count": 1})


def _configuration(task: Task) -> str:
    """Return the configuration file with the position where a consumer begins."""
    return task.settings["earliest" if task.from_beginning else "latest"]


def _read(master: int) -> Iterator[bytes]:
    while True:
        try:
            data = os.read(master, 65536)
        except OSError:  # the other side is closed
            return
        yield data


class _ProducerArguments(ctypes.Structure):
    _fields_ = [("topic", ctypes.c_char_p), ("config", ctypes.c_void_p)]


class _ConsumerArguments(ctypes.Structure):
    _fields_ = [("config", ctypes.c_void_p), ("record_sink", ctypes.c_void_p)]


def _load(task: Task) -> ctypes.CDLL:
    library = ctypes.CDLL(str(Path(task.settings["tools"], "libdafka.so")))
    for name in (
        "zconfig_load",
        "zactor_new",
        "dafka_producer_msg_new",
        "dafka_consumer_new",
        "dafka_consumer_msg_new",
        "dafka_consumer_msg_content",
    ):
        getattr(library, name).restype = ctypes.c_void_p
    library.dafka_consumer_msg_content_size.restype = ctypes.c_size_t
    library.dafka_producer_address.restype = ctypes.c_char_p
    return library


@contextmanager
def _open_producer(library: ctypes.CDLL, task: Task) -> Iterator[ctypes.c_void_p]:
    """Run a producer for a block, and wait at its end until all records are acknowledged."""
    config = ctypes.c_void_p(library.zconfig_load(_configuration(task).encode()))
    arguments = _ProducerArguments(TOPIC, config)
    producer = ctypes.c_void_p(library.zactor_new(library.dafka_producer, ctypes.byref(arguments)))
    yield producer
    library.zactor_destroy(ctypes.byref(producer))


def _produce_by_library(task: Task, coordinator: Coordinator) -> None:
    library = _load(task)
    if task.opens_on_go:
        coordinator.wait_go()
    first = time.perf_counter_ns()
    with _open_producer(library, task) as producer:
        message = ctypes.c_void_p(library.dafka_producer_msg_new())

        def send(contents: list[bytes]) -> None:
            for content in contents:
                library.dafka_producer_msg_set_content_buffer(message, content, ctypes.c_size_t(len(content)))
                library.dafka_producer_msg_send(message, producer)

        if task.opens_on_go:
            send(task.make_contents(0, task.records))
        else:
            time.sleep(SETTLE_S)
            coordinator.wait_go()
            first = time.perf_counter_ns()
            pace = Pace(task)
            while not pace.is_over:
                send(pace.take_due())
                time.sleep(TICK_S)
    coordinator.done(first=first, last=time.perf_counter_ns())


def produce_together(task: Task, coordinator: Coordinator) -> None:
    """Run several producers of the library. It gives each of them threads of its own."""
    library = _load(task)
    with zmq.Context() as context, context.socket(zmq.SUB) as acks:
        for endpoint in _find_stores(context, task):
            acks.connect(endpoint)
        producers = _Producers(library, task, coordinator, acks)
        coordinator.wait_go()
        producers.open()
        producers.run()
        # Closing the library would wait for the ACKs of all producers.
        os._exit(0)


def _find_stores(context: zmq.Context[zmq.Socket[bytes]], task: Task) -> set[str]:
    """Return the endpoints of the stores, which are the only nodes until the producers begin.

    Each store beacons from two endpoints: its writer, which sends the ACKs, and its reader.
    """
    found: set[str] = set()
    expected = 2 * int(task.settings["stores"])
    with context.socket(zmq.SUB) as tower:
        tower.subscribe(BEACON)
        tower.connect(task.settings["pub"])
        while len(found) < expected:
            if not tower.poll(int(STEP_S * 1000)):
                raise BenchError(f"{len(found) // 2} of {expected // 2} stores found after {STEP_S:.0f} s")
            found.add(tower.recv_multipart()[2].decode())
    return found


class _Producers:
    """The producers of one process, the ACKs that they get, and the commands of the measuring process."""

    def __init__(self, library: ctypes.CDLL, task: Task, coordinator: Coordinator, acks: zmq.Socket[bytes]) -> None:
        self._library = library
        self._task = task
        self._coordinator = coordinator
        self._acks = acks
        self._actors: list[ctypes.c_void_p] = []
        self._acknowledged: dict[str, int] = {}
        self._content = task.make_contents(0, 1)[0]
        self._message = ctypes.c_void_p(library.dafka_producer_msg_new())

    def open(self) -> None:
        """Open all producers at the same time. Each sends one record when it is connected to the tower."""
        with ThreadPoolExecutor(self._task.producers) as threads:
            for opened in as_completed([threads.submit(self._open_one) for _ in range(self._task.producers)]):
                actor = opened.result()
                address = self._library.dafka_producer_address(actor).decode()
                self._acks.subscribe(subscription_prefix(Command.ACK, address))
                self._acknowledged[address] = 0
                self._actors.append(actor)
                self._send(actor)

    def run(self) -> None:
        """Read ACKs and commands until the measuring process is gone, and send records after the command for it."""
        due: list[float] = []
        commands = sys.stdin.fileno()
        poller = zmq.Poller()
        poller.register(self._acks, zmq.POLLIN)
        poller.register(commands, zmq.POLLIN)
        while True:
            timeout_ms = math.ceil(max(0.0, min(due) - time.monotonic()) * 1000) if due else None
            ready = dict(poller.poll(timeout_ms))
            if self._acks in ready:
                self._read_acks()
            if commands in ready:
                read = os.read(commands, 4096).decode().split()
                if not read:
                    return
                for command in read:
                    if command == PACE:
                        due = self._begin_to_send()
                    else:
                        self._coordinator.report_acknowledged(sum(self._acknowledged.values()))
            now = time.monotonic()
            for number, time_due in enumerate(due):
                if time_due <= now:
                    self._send(self._actors[number])
                    due[number] += 1 / self._task.rate

    def _open_one(self) -> ctypes.c_void_p:
        config = ctypes.c_void_p(self._library.zconfig_load(_configuration(self._task).encode()))
        arguments = _ProducerArguments(TOPIC, config)
        return ctypes.c_void_p(self._library.zactor_new(self._library.dafka_producer, ctypes.byref(arguments)))

    def _begin_to_send(self) -> list[float]:
        """Return when the next record of each producer is due."""
        now, count = time.monotonic(), len(self._actors)
        return [now + number / count / self._task.rate for number in range(count)]

    def _send(self, actor: ctypes.c_void_p) -> None:
        content = self._content
        self._library.dafka_producer_msg_set_content_buffer(self._message, content, ctypes.c_size_t(len(content)))
        self._library.dafka_producer_msg_send(self._message, actor)

    def _read_acks(self) -> None:
        while self._acks.poll(0):
            message, _ = decode(self._acks.recv_multipart())
            assert isinstance(message, Ack)
            end = self._acknowledged[message.partition]
            self._acknowledged[message.partition] = max(end, message.sequence + 1)
            if not end:
                self._coordinator.report_first_stored()


def _consume_by_library(task: Task, coordinator: Coordinator) -> None:
    library = _load(task)
    if task.opens_on_go:
        coordinator.wait_go()
    received = ReceivedRecords(task, time.perf_counter_ns())
    arguments = _ConsumerArguments(library.zconfig_load(_configuration(task).encode()), None)
    consumer = ctypes.c_void_p(library.dafka_consumer_new(ctypes.byref(arguments)))
    library.dafka_consumer_subscribe(consumer, TOPIC)
    message = ctypes.c_void_p(library.dafka_consumer_msg_new())
    if not task.opens_on_go:
        time.sleep(SETTLE_S)
        coordinator.wait_go()
    while not received.is_complete:
        if library.dafka_consumer_msg_recv(message, consumer) != 0:
            raise ValueError("receiving was interrupted")
        size = library.dafka_consumer_msg_content_size(message)
        received.add_contents([ctypes.string_at(library.dafka_consumer_msg_content(message), size)])
    received.report(coordinator)
