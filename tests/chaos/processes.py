"""Processes that are started, killed, stopped and restarted, and that must not end by themselves."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from signal import SIGKILL, SIGTERM, SIGUSR1, Signals

import trio

from tests.chaos.timeline import Timeline

RESTART_S = 0.5
"""Seconds after which a process that ended by itself is restarted, as a supervisor would."""

PAGE_BYTES = resource.getpagesize()


class Node:
    """One node of the cluster.

    Attributes:
        name: Its name in the timeline.
        starts: How often it was started.
        memory_peak: The most memory that it took in all its lives, in bytes.
        status: The exit status of its last life.
        lock: Held by the fault that must not be disturbed by others.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        timeline: Timeline,
        ready_line: str,
    ) -> None:
        """Create a node that is not started. `ready_line` is a part of the line that it prints when it is ready."""
        self.name = name
        self.starts = 0
        self.memory_peak = 0
        self.status: int | None = None
        self.lock = trio.Lock()
        self._ready_line = ready_line
        self._is_ready = False
        self._awaited: dict[str, int] = {}
        self._command = list(command)
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("DAFKA_")}
        self._environment = {**inherited, "PYTHONUNBUFFERED": "1", **environment}
        self._folder = folder
        self._timeline = timeline
        self._process: trio.Process | None = None
        self._is_wanted = False
        self._is_alive = False
        self._changed = trio.lowlevel.ParkingLot()

    @property
    def is_running(self) -> bool:
        return self._process is not None

    @property
    def process_id(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def run(self) -> None:
        """Keep the process running while it is wanted, until cancelled. Then kill it."""
        try:
            while True:
                while not self._is_wanted:
                    await self._changed.park()
                self._is_alive = True
                await self._live()
                self._is_alive = False
                self._changed.unpark_all()
                if self._is_wanted:
                    self._timeline.problem(f"{self.name} ended by itself, with status {self.status}")
                    await trio.sleep(RESTART_S)
        finally:
            if self._process is not None:
                self._process.kill()
                with trio.CancelScope(shield=True):
                    await self._process.wait()

    def start(self) -> None:
        """Start it, or allow it to be started."""
        self._is_wanted = True
        self._changed.unpark_all()

    async def wait_ready(self) -> None:
        while not self._is_ready:
            await self._changed.park()

    def listen_for(self, text: str) -> None:
        """Note what it prints from now on, for `wait_said`."""
        self._awaited[text] = 0

    async def wait_said(self, text: str) -> None:
        """Wait until it has printed this since `listen_for`."""
        while not self._awaited[text]:
            await self._changed.park()

    async def kill(self) -> None:
        """Kill it with SIGKILL, and do not start it again before `start`."""
        await self._end(SIGKILL)

    async def terminate(self, deadline_s: float) -> None:
        """Send SIGTERM once it is ready. Report a problem if it outlives the deadline, or its exit status is not 0."""
        with trio.move_on_after(deadline_s) as scope:
            await self.wait_ready()
            await self._end(SIGTERM)
        if scope.cancelled_caught:
            self._timeline.problem(f"{self.name} was asked to end, and did not within {deadline_s:.0f} s")
            self._is_wanted = False
            self.signal(SIGUSR1)  # clients say where their threads are; whatever else it is ends
            await trio.sleep(1)
            await self.kill()
        elif self.status:
            self._timeline.problem(f"{self.name} was asked to end, and did with status {self.status}")

    def signal(self, number: Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def look(self) -> None:
        if self._process is not None:
            with suppress(OSError, IndexError, ValueError):
                pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
                self.memory_peak = max(self.memory_peak, pages * PAGE_BYTES)

    async def _end(self, number: Signals) -> None:
        self._is_wanted = False
        self.signal(number)
        while self._is_alive:
            await self._changed.park()

    async def _live(self) -> None:
        self.starts += 1
        self._is_ready = False
        process = await trio.lowlevel.open_process(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self._environment,
            cwd=self._folder,
        )
        self._process = process
        if not self._is_wanted:
            process.kill()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._listen, process)
            self.status = await process.wait()
        self._process = None
        self._is_ready = False

    async def _listen(self, process: trio.Process) -> None:
        assert process.stdout is not None
        rest = b""
        async for data in process.stdout:
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._hear(line.decode(errors="backslashreplace"))
        if rest:
            self._hear(rest.decode(errors="backslashreplace"))

    def _hear(self, line: str) -> None:
        self._timeline.said(self.name, line)
        self._is_ready = self._is_ready or self._ready_line in line
        for text in self._awaited:
            self._awaited[text] += text in line
        self._changed.unpark_all()
