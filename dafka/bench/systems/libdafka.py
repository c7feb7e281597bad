"""The C implementation, where a folder with its programs and its library is given."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs

from dafka.bench.processes import Processes, free_port
from dafka.bench.systems.base import WITH_SERVERS, Cluster, ServerCluster, Setup

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
    """Attributes:
    tools: the folder of its programs and of libdafka.so, which find their libraries as the environment says.
    """

    tools: Path | None
    name: str = "C libdafka"
    jobs: frozenset[str] = WITH_SERVERS
    stores_max: int = 1
    late_records_max: int | None = 100_000
    """It asks once, for so many, and then waits for ever."""
    variables: dict[str, str] = attrs.field(factory=lambda: {"ZSYS_LOGSYSTEM": "true"})

    def missing(self) -> str:
        """The tools may not be given, or not be there."""
        if self.tools is None:
            return "its tools are not given: name their folder with --c-tools"
        absent = [name for name in FILES if not (self.tools / name).is_file()]
        return f"there is no {absent[0]} in {self.tools}" if absent else ""

    @asynccontextmanager
    async def open(self, processes: Processes, setup: Setup) -> AsyncIterator[Cluster]:
        """A tower and a store; neither says when it is there, so that a port is waited for."""
        assert self.tools is not None
        ports = {"sub": free_port(), "pub": free_port()}
        settings = {"tools": str(self.tools)}
        for reset in ("earliest", "latest"):
            path = processes.folder / f"{reset}.conf"
            path.write_text(CONFIGURATION.format(**ports, folder=processes.folder, reset=reset))
            settings[reset] = str(path)
        config = ["-c", settings["latest"]]
        tower = await processes.serve("dafka_towerd", [str(self.tools / "dafka_towerd"), *config], is_patient=False)
        await tower.wait_listening(ports["pub"])
        store = await processes.serve("dafka_stored", [str(self.tools / "dafka_stored"), *config], is_patient=False)
        yield ServerCluster(processes, "libdafka", settings, [store, tower])
