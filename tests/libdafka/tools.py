"""Programs of the C implementation, and towers to run them at."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import DEVNULL, PIPE

import pytest
import trio
import zmq

from dafka import Config, serve_tower
from dafka.transport import Socket, open_context
from dafka.wire import BEACON, WELCOME, NodeBeacon, TowerBeacon
from dafka_bench.processes import free_port

TOOLS = os.environ.get("LIBDAFKA_TOOLS", "")
needs_tools = pytest.mark.skipif(
    not TOOLS, reason="set LIBDAFKA_TOOLS to the folder of the C implementation's programs (dafka_stored, dafka_towerd)"
)
LINE_BY_LINE = (stdbuf, "-oL") if (stdbuf := shutil.which("stdbuf")) else ()
"""Makes a program print each line at once, where coreutils are installed."""
START_S = 1.5
"""Seconds that a program of the C implementation needs until it has found a running cluster."""


@asynccontextmanager
async def open_program(name: str, *arguments: str, config: Config, folder: Path) -> AsyncIterator[trio.Process]:
    """Run a program of the C implementation at the tower of a configuration, and kill it at the end."""
    (sub,), (pub,) = config.beacon.tower_sub, config.beacon.tower_pub
    await trio.Path(folder).mkdir(parents=True, exist_ok=True)
    command = [*LINE_BY_LINE, str(Path(TOOLS) / name), *arguments, "--sub", sub, "--pub", pub]
    process = await trio.lowlevel.open_process(command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, cwd=folder)
    try:
        yield process
    finally:
        with trio.CancelScope(shield=True):
            if process.poll() is None:
                process.kill()
            await process.wait()
            for stream in (process.stdin, process.stdout):
                assert stream is not None
                await stream.aclose()


@asynccontextmanager
async def open_tower(kind: str, folder: Path) -> AsyncIterator[Config]:
    """Run a tower, `ours`, `libdafka` or `slow`, and yield the settings of nodes at it."""
    config = Config()
    if kind == "libdafka":
        config = config.with_beacon(
            tower_sub=(f"tcp://127.0.0.1:{free_port()}",), tower_pub=(f"tcp://127.0.0.1:{free_port()}",)
        )
        async with open_program("dafka_towerd", config=config, folder=folder):
            yield config
        return
    async with trio.open_nursery() as nursery:
        if kind == "ours":
            free = "tcp://127.0.0.1:*"
            tower = await nursery.start(serve_tower, Config().with_tower(sub=free, pub=free))
            sub, pub = tower.sub_endpoint, tower.pub_endpoint
        else:
            sub, pub = await nursery.start(_serve_slow_tower)
        yield config.with_beacon(tower_sub=(sub,), tower_pub=(pub,))
        nursery.cancel_scope.cancel()


async def _serve_slow_tower(*, task_status: trio.TaskStatus[tuple[str, str]] = trio.TASK_STATUS_IGNORED) -> None:
    """Run a tower that passes each beacon on after 0 to 2 seconds. It knows the first form of beacons only."""
    async with open_context(0) as context:
        receiver = Socket(context.socket(zmq.SocketType.SUB))
        sender = Socket(context.socket(zmq.SocketType.XPUB))
        try:
            receiver.subscribe(BEACON)
            sender.set_options(xpub_welcome_msg=WELCOME)
            endpoints = receiver.bind("tcp://127.0.0.1:*"), sender.bind("tcp://127.0.0.1:*")

            async def pass_on(beacon: NodeBeacon) -> None:
                await trio.sleep(random.uniform(0, 2))
                host = beacon.host or "127.0.0.1"
                sender.send_many([TowerBeacon(beacon.address, f"tcp://{host}:{beacon.port}").encode()])

            async def ignore_subscriptions() -> None:
                while True:
                    await sender.receive_many()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(ignore_subscriptions)
                task_status.started(endpoints)
                while True:
                    for frames in await receiver.receive_many():
                        nursery.start_soon(pass_on, NodeBeacon.decode(frames))
        finally:
            receiver.close(0)
            sender.close(0)
