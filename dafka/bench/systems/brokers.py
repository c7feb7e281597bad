"""Two brokers to compare with: NATS JetStream with file storage, Redis Streams with a log synchronised every second."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec

import attrs

from dafka.bench.processes import Processes, free_port
from dafka.bench.systems.base import WITH_SERVERS, Cluster, ServerCluster, Setup

NATS_CONFIGURATION = """\
host: 127.0.0.1
port: {port}
max_payload: 8MB
jetstream {{ store_dir: "{folder}/jetstream" }}
"""


@attrs.frozen
class Broker:
    """Attributes:
    server: the server's program.
    package: the client library's distribution.
    module: its module, and the name of ours that drives it.
    """

    name: str
    server: str
    package: str
    module: str
    jobs: frozenset[str] = WITH_SERVERS
    stores_max: int = 1
    late_records_max: int | None = None
    variables: dict[str, str] = attrs.field(factory=dict)

    def missing(self) -> str:
        """The server or the library may not be installed."""
        if shutil.which(self.server) is None:
            return f"{self.server} is not installed"
        if find_spec(self.module) is None:
            return f"the Python package {self.package} is not installed: pip install 'dafka[bench]'"
        return ""

    @asynccontextmanager
    async def open(self, processes: Processes, setup: Setup) -> AsyncIterator[Cluster]:
        """The server, listening at a free port."""
        port = free_port()
        server = await processes.serve(self.server, self._command(processes, port))
        await server.wait_listening(port)
        settings = {"url": f"nats://127.0.0.1:{port}", "port": str(port)}
        yield ServerCluster(processes, self.module, settings, [server])

    def _command(self, processes: Processes, port: int) -> list[str]:
        if self.module == "nats":
            path = processes.folder / "nats.conf"
            path.write_text(NATS_CONFIGURATION.format(port=port, folder=processes.folder))
            return [self.server, "-c", str(path), "-l", str(processes.folder / "nats.log")]
        log = ["--appendonly", "yes", "--appendfsync", "everysec", "--save", ""]
        place = ["--bind", "127.0.0.1", "--port", str(port), "--dir", str(processes.folder)]
        return [self.server, *place, *log, "--logfile", str(processes.folder / "redis.log")]


NATS = Broker("NATS JetStream", "nats-server", "nats-py", "nats")
REDIS = Broker("Redis Streams", "redis-server", "redis", "redis")
