"""The C implementation of Dafka, if a folder with its programs and its library is given.

Throughput is measured with its own tools `dafka_perf_store` and `dafka_perf_consumer`, without Python in between. They
do not report when a record arrived, and start a second late. Rates, latency and the first record are therefore measured
through the library.
"""

from __future__ import annotations

import ctypes
import os
import pty
import re
import resource
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import attrs

from dafka.bench.client import TICK_S, Coordinator, Pace, ReceivedRecords, Task, Usage, read_peak_bytes
from dafka.bench.processes import Processes, free_port
from dafka.bench.systems.base import WITH_SERVERS, Cluster, ClusterSetup, ServerCluster

FILES = ("dafka_towerd", "dafka_stored", "dafka_perf_store", "dafka_perf_consumer", "libdafka.so")
CONFIGURATION = """\
beacon
    sub_address = "tcp://127.0.0.1:{sub}"
    pub_address = "tcp://127.0.0.1:{pub}"
tower
    sub_address = "tcp://127.0.0.1:{sub}"
    pub_address = "tcp://127.0.0.1:{pub}"
store
    db = "{folder}/storedb"
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
    jobs: frozenset[str] = WITH_SERVERS
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
        assert self.tools is not None
        ports = {"sub": free_port(), "pub": free_port()}
        settings = {"tools": str(self.tools)}
        for reset in ("earliest", "latest"):
            path = processes.folder / f"{reset}.conf"
            path.write_text(CONFIGURATION.format(**ports, folder=processes.folder, reset=reset))
            settings[reset] = str(path)
        config = ["-c", settings["latest"]]
        tower = await processes.serve("dafka_towerd", [str(self.tools / "dafka_towerd"), *config], is_graceful=False)
        await tower.wait_listening(ports["pub"])
        store = await processes.serve("dafka_stored", [str(self.tools / "dafka_stored"), *config], is_graceful=False)
        yield ServerCluster(processes, "libdafka", settings, [store, tower])


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
