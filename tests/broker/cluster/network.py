"""The network between the nodes of a cluster: all on the loopback address, or each in a network namespace of its own.

Each namespace has one end of a veth pair; the other ends are ports of a bridge, which also has an address, so that
programs outside of the namespaces reach all nodes. A split is a list of pairs (source, target): the target drops every
packet of the source. Nothing tells either that packets are lost.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

import attrs
import trio

Pair = tuple[str, str]
"""The names of two nodes: packets from the first to the second are meant."""

OUTSIDE = "outside"
"""The name of what is in no namespace: the program that runs the cluster."""

SUBNETS = range(1, 250)
"""The third numbers of the subnets 198.18.N.0/24, which RFC 2544 reserves for tests; each cluster takes one."""

CHAIN = "CUT"
"""The chain of packet filters in each namespace that has the rules of splits."""


@attrs.frozen
class Place:
    """Where a node runs."""

    host: str
    prefix: tuple[str, ...] = ()


class Network:
    """All nodes on 127.0.0.1, which cannot be split."""

    can_split = False

    async def add(self, name: str) -> Place:
        """Give a node its place; the same one if it has one already."""
        return Place("127.0.0.1")

    async def cut(self, pairs: Iterable[Pair], loss: float = 1.0) -> None:
        """Drop packets of these pairs only, with a probability. What was dropped before passes again."""
        assert not list(pairs), "the loopback address cannot be split"

    async def slow_down(self, names: Iterable[str], bits_per_s: int) -> None:
        """Limit the rate at which these nodes send. Packets wait in long queues."""
        assert not list(names), "the loopback address cannot be slowed down"

    async def close(self) -> None:
        """Remove it."""


class Namespaces(Network):
    """Each node in a network namespace, with an address of its own. Needs the rights of root."""

    can_split = True

    def __init__(self, subnet: int, lock: socket.socket) -> None:
        self._subnet = subnet
        self._lock = lock
        self._bridge = f"dafka{subnet}"
        self._places: dict[str, Place] = {}
        self._cut: set[str] = set()
        self._slow: set[str] = set()

    def host(self, name: str) -> str:
        return self._address(254) if name == OUTSIDE else self._places[name].host

    async def open(self) -> None:
        await self.close(is_last=False)
        await _run("ip", "link", "add", self._bridge, "type", "bridge", "forward_delay", "0")
        await _run("ip", "address", "add", f"{self._address(254)}/24", "dev", self._bridge)
        await _run("ip", "link", "set", self._bridge, "up")

    async def add(self, name: str) -> Place:
        if name in self._places:
            return self._places[name]
        number = len(self._places) + 1
        space, inside, port = self._space(number), "eth0", f"{self._bridge}-{number}"
        await _run("ip", "netns", "add", space)
        await _run("ip", "link", "add", port, "type", "veth", "peer", "name", inside, "netns", space)
        await _run("ip", "link", "set", port, "master", self._bridge, "up")
        within = ("ip", "netns", "exec", space)
        await _run("ip", "-n", space, "address", "add", f"{self._address(number)}/24", "dev", inside)
        await _run("ip", "-n", space, "link", "set", inside, "up")
        await _run("ip", "-n", space, "link", "set", "lo", "up")
        await _run(*within, "iptables", "-w", "-N", CHAIN)
        await _run(*within, "iptables", "-w", "-A", "INPUT", "-j", CHAIN)
        self._places[name] = Place(self._address(number), within)
        return self._places[name]

    async def cut(self, pairs: Iterable[Pair], loss: float = 1.0) -> None:
        rules: dict[str, list[str]] = {name: [] for name in self._cut}
        chance = "" if loss >= 1 else f" -m statistic --mode random --probability {loss:.4f}"
        for source, target in sorted(set(pairs)):
            rules.setdefault(target, []).append(f"-A {CHAIN} -s {self.host(source)}{chance} -j DROP")
        self._cut = {name for name, lines in rules.items() if lines}
        async with trio.open_nursery() as nursery:
            for name, lines in rules.items():
                nursery.start_soon(self._put_rules, name, lines)

    async def slow_down(self, names: Iterable[str], bits_per_s: int) -> None:
        wanted = set(names)
        for name in self._slow - wanted:
            await _run(*self._places[name].prefix, "tc", "qdisc", "del", "dev", "eth0", "root")
        for name in wanted:
            shape = ("tbf", "rate", str(bits_per_s), "burst", "32kb", "latency", "2s")
            await _run(*self._places[name].prefix, "tc", "qdisc", "replace", "dev", "eth0", "root", *shape)
        self._slow = wanted

    async def close(self, *, is_last: bool = True) -> None:
        """See `Network.close`. Also removes what a run that was killed has left in the same subnet."""
        with trio.CancelScope(shield=True):
            listed = await trio.run_process(("ip", "netns", "list"), capture_stdout=True)
            for line in listed.stdout.decode().splitlines():
                space = line.split()[0]
                if space.startswith(f"{self._bridge}-"):
                    await _run("ip", "netns", "delete", space)
            # A namespace lasts as long as a process in it, and with it the port of the bridge.
            links = await trio.run_process(("ip", "-brief", "link"), capture_stdout=True)
            names = [line.split()[0].split("@")[0] for line in links.stdout.decode().splitlines()]
            for name in [each for each in names if each == self._bridge or each.startswith(f"{self._bridge}-")]:
                await trio.run_process(("ip", "link", "delete", name), check=False, stderr=subprocess.DEVNULL)
        if is_last:
            self._lock.close()

    async def _put_rules(self, name: str, lines: list[str]) -> None:
        text = "\n".join(("*filter", f":{CHAIN} - [0:0]", *lines, "COMMIT", ""))
        await trio.run_process((*self._places[name].prefix, "iptables-restore", "-w", "-n"), stdin=text.encode())

    def _address(self, number: int) -> str:
        return f"198.18.{self._subnet}.{number}"

    def _space(self, number: int) -> str:
        return f"{self._bridge}-{number}"


def find_obstacle() -> str:
    if not Path("/proc/self/ns/net").exists():
        return "network namespaces need Linux"
    missing = [each for each in ("ip", "iptables", "iptables-restore") if shutil.which(each) is None]
    if missing:
        return f"network namespaces need the command {missing[0]}"
    tried = subprocess.run(("ip", "link", "add", "dafka-try", "type", "bridge"), capture_output=True, check=False)
    if tried.returncode and b"File exists" not in tried.stderr:
        return "network namespaces need the rights of root"
    subprocess.run(("ip", "link", "delete", "dafka-try"), capture_output=True, check=False)
    return ""


async def open_network(*, is_split: bool = True) -> Network:
    if not is_split:
        return Network()
    for subnet in SUBNETS:
        lock = socket.socket(socket.AF_UNIX)
        try:
            lock.bind(f"\0dafka-cluster-{subnet}")
        except OSError:
            lock.close()
            continue
        network = Namespaces(subnet, lock)
        await network.open()
        return network
    raise OSError("all subnets of clusters are in use")


def split(*sides: Iterable[str]) -> set[Pair]:
    parts = [tuple(side) for side in sides]
    return {
        (source, target)
        for one, sources in enumerate(parts)
        for other, targets in enumerate(parts)
        if one != other
        for source in sources
        for target in targets
    }


def isolate(name: str, others: Iterable[str]) -> set[Pair]:
    return split((name,), set(others) - {name})


def deafen(name: str, others: Iterable[str]) -> set[Pair]:
    return {(other, name) for other in others if other != name}


def mute(name: str, others: Iterable[str]) -> set[Pair]:
    return {(name, other) for other in others if other != name}


def ring(names: Sequence[str]) -> set[Pair]:
    count = len(names)
    near = {(one, (one + step) % count) for one in range(count) for step in (-1, 0, 1)}
    return {(names[one], names[other]) for one in range(count) for other in range(count) if (one, other) not in near}


async def _run(*command: str) -> None:
    try:
        await trio.run_process(command, capture_stdout=True, capture_stderr=True)
    except subprocess.CalledProcessError as error:
        raise OSError(f"{' '.join(command)}: {error.stderr.decode().strip()}") from None
