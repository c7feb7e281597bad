"""The client of towers: when it sends its beacon, when it is settled, and what it reports of its towers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dafka import wire
from dafka.config import Config
from dafka.protocol import BeaconMachine
from dafka.protocol.actions import SendToTower, SubscribeAtTower, UnsubscribeAtTower
from dafka.protocol.events import PeerJoined, PeerLeft
from dafka.protocol.presence.beacons import NEW_NODE_BEACONS_BURST, PREFIXES_MAX, SETTLE_PERIODS_MAX, BeaconAction
from dafka.protocol.presence.directory_client import PAUSE_MAX_S, SILENT_TIMEOUTS
from dafka.records import Partition
from tests.protocol.scripts import ME, Player, play, scripts_of, text

HERE = "tcp://127.0.0.1:4001"


def endpoint(name: str) -> str:
    """Return where towers introduce a node. Nodes named P are at this machine, and those named Q elsewhere."""
    return HERE if name == ME else f"tcp://10.0.0.{'?PQ'.index(name[0])}:{5000 + ord(name[-1])}"


class Client(Player, kinds=("client",)):
    """A client whose towers do what a script says."""

    config = Config().with_beacon(settle_ms=500, interval_ms=1000, timeout_ms=4000)

    def make(self, kind: str, config: Config, named: dict[str, Any], ranges: dict[Partition, range]) -> BeaconMachine:
        self.beacon = wire.NodeBeacon(ME, "", 4001)
        draw = named.pop("draw", 0.0)
        client = BeaconMachine(self.beacon, config, is_other_machine="10.0.0.2".__eq__, draw=lambda: draw, **named)
        client.start(self.now)
        return client

    def _result(self, result: object) -> list[str]:
        if not isinstance(result, list):
            return super()._result(result)
        return [self._text(each) for each in result]

    def _text(self, action: BeaconAction) -> str:
        if isinstance(action, SendToTower):
            if action.frames == self.beacon.encode():
                return f"send {action.tower}"
            is_asking = wire.Registration.decode(action.frames).asks_directory
            return f"{'ask' if is_asking else 'register'} {action.tower}"
        if isinstance(action, (SubscribeAtTower, UnsubscribeAtTower)):
            sign = "+" if isinstance(action, SubscribeAtTower) else "-"
            return f"{sign}{action.prefix.decode()} {action.tower}"
        if isinstance(action, (PeerJoined, PeerLeft)):
            flags = ["silent"] * (isinstance(action, PeerLeft) and action.is_tower_silent)
            return " ".join(["joined" if isinstance(action, PeerJoined) else "left", action.address, *flags])
        return text(action)

    def _set_up(self, name: str, value: str) -> None:
        """Let tower 0 send the node's beacon back, or with `listed`, its directory."""
        self.subscribed(0, "+B" if name == "echoed" else "+A")
        if name == "echoed":
            self.hear(0, ME)
        else:
            self.directory("T")

    def subscribed(self, tower: int, prefixes: str) -> list[BeaconAction]:
        """Let a tower subscribe to prefixes, or unsubscribe: `+B,-A`."""
        frames = [each.replace("+", "\1").replace("-", "\0").encode() for each in prefixes.split(",")]
        return list(self.machine.tower_subscribed(tower, frames, self.now))

    def hear(self, tower: int, names: str) -> list[BeaconAction]:
        """Let a tower introduce nodes."""
        places = {
            name: f"tcp://10.0.0.{1 if name[0] == 'P' else 2}:{5000 + ord(name[-1])}" for name in names.split(",")
        }
        beacons = [wire.TowerBeacon(each, HERE if each == ME else places[each]).encode() for each in places]
        return list(self.machine.heard(tower, beacons, self.now))

    def welcome(self) -> list[BeaconAction]:
        return list(self.machine.heard(0, [[wire.WELCOME]], self.now))

    def directory(self, tower: str, names: str = "") -> list[BeaconAction]:
        """Let tower 0, with this letter as its identity, send its whole directory."""
        entries = [wire.DirectoryEntry(each, endpoint(each)).encode() for each in names.split(",") if each]
        pages = wire.encode_pages(ME, tower.encode() * 8, {}, entries, 1000)
        return [each for page in pages for each in self.machine.heard(0, [page], self.now)]

    def pulse(self, tower: str, interval_ms: int, pause_ms: int, times: int = 1) -> list[BeaconAction]:
        frames = wire.Pulse(tower.encode() * 8, interval_ms, {}, pause_ms).encode()
        return list(self.machine.heard(0, [frames] * times, self.now))

    def change(self, tower: str, number: int, name: str = "P1") -> list[BeaconAction]:
        """Let tower 0 say that a node has joined."""
        entry = wire.DirectoryEntry(name, endpoint(name), "", wire.Role.STORE).encode()
        frames = wire.encode_changes(wire.Role.STORE, tower.encode() * 8, number, [(True, entry)])
        return list(self.machine.heard(0, [frames], self.now))

    def rubbish(self) -> list[BeaconAction]:
        return list(self.machine.heard(0, [[b"rubbish"], [b"B"], [b""]], self.now))


SCRIPTS = """
# A node sends its beacon often until it comes back, and then at the interval
client
subscribed 0 +B => +B 0, send 0
until 0.35 => send 0 at 0.1 0.2 0.3
hear 0 ME => TowersHeard
until 1.5 => Settled at 0.85, send 0 at 1.35
hear 0 ME
until 3 => send 0 at 2.35
# A node answers new nodes at once, and all of a batch together
client echoed
0.1 hear 0 P1,P2 => joined P1, joined P2, send 0
0.2 hear 0 P1,P2,ME
0.3 welcome => send 0
# A node is settled when no node was new for the time, and once
client echoed
until 10 => Settled at 0.5, send 0 at 1 2 .. 10, TowersSilent 10 tcp://127.0.0.1:5557 at 10
# No new node counts that is known
client echoed
0.3 hear 0 P1 => joined P1, send 0
0.4 hear 0 P1
until 3 => Settled at 0.8, send 0 at 1 2 3
# Without a tower that sends its beacon back, a node is not settled
client
subscribed 0 +B => +B 0, send 0
until 2 => send 0 at 0.1 0.2 .. 1.9
# A tower that has not answered gets one more period
client towers=2 echoed
until 3 => send 0 at 1 2 3, Settled at 1
# A tower that answers is not waited for longer
client towers=2 echoed
0.1 subscribed 1 +B => +B 1, send 1
0.2 hear 1 ME
until 3 => Settled at 0.5, send 0 at 1 2 3, send 1 at 1 2 3
# The directory of a tower that was found is waited for long
client towers=2 echoed
0.1 subscribed 1 +A => +T 1, +RP 1, +RS 1, +RC 1, +RR 1, +RO 1, +R* 1, +IME 1, ask 1
until 6 => ask 1 at 0.2 0.4 0.8 1.6 2.6 .. 5.6, send 0 at 1 2 .. 6, Settled at 5.5
# A tower that has sent its directory once keeps the second form
client
subscribed 0 +A,+B => +T 0, +RP 0, +RS 0, +RC 0, +RR 0, +RO 0, +R* 0, +IME 0, ask 0
directory T => TowersHeard, Settled
0.1 pulse R 1000 0 20 => ask 0
until 0.8 => ask 0 at 0.2 0.4 0.8
# A tower that sends no directory gets beacons of the first form
client
subscribed 0 +A,+B => +T 0, +RP 0, +RS 0, +RC 0, +RR 0, +RO 0, +R* 0, +IME 0, ask 0
pulse T 1000 0 9 => TowersHeard
until 0.1 => ask 0 at 0.1
pulse T 1000 0
until 0.55
    => ask 0 at 0.3, -T 0 at 0.3, -RP 0 at 0.3, -RS 0 at 0.3, -RC 0 at 0.3, -RR 0 at 0.3, -RO 0 at 0.3, -R* 0 at 0.3,
       -IME 0 at 0.3, +B 0 at 0.3, send 0 at 0.3 0.4 0.5
# A change that follows the directory is taken, and one that does not makes a node ask
client listed
pulse T 60000 1000 => register 0
0.1 change T 1 => joined P1
0.2 change T 3 => ask 0
# A change of another tower makes a node ask
client listed
0.1 change U 1 => joined P1, ask 0
# A tower is silent when its next pulse is overdue
client listed
pulse T 60000 1000 => register 0
hear 0 P1 => joined P1
until 6 => left P1 silent at 4
# A tower is not silent before its next pulse is due
client listed
pulse T 60000 10000 => register 0
hear 0 P1 => joined P1
until 6 => left P1 at 4
# A tower cannot make a node register without a pause
client draw=1.0
subscribed 0 +A => +T 0, +RP 0, +RS 0, +RC 0, +RR 0, +RO 0, +R* 0, +IME 0, ask 0
0.5 directory T => TowersHeard, Settled
pulse T 0 0
deadline => = 0.508
0.6 tick => register 0
deadline => = 0.608
# A beacon goes to every tower that knows the form
client towers=3
subscribed 0 +B => +B 0, send 0
0.05 subscribed 2 + => +B 2, send 2
until 0.14 => send 0 at 0.1, send 2 at 0.1
subscribed 1 +X
0.15 subscribed 1 +B => +B 1, send 1
until 0.3 => send 0 at 0.2, send 1 at 0.2, send 2 at 0.2
# A tower that has connected again gets the beacon at once
client echoed
1 subscribed 0 -B
2 subscribed 0 +B => send 0
# Silent towers are reported each minute until one is heard
client tower_timeout_ms=5000 interval_ms=60000
subscribed 0 +B => +B 0, send 0
until 149
    => TowersSilent 5 tcp://127.0.0.1:5557 at 5, send 0 at 6 12 .. 144, TowersSilent 65 tcp://127.0.0.1:5557 at 65,
       TowersSilent 125 tcp://127.0.0.1:5557 at 125
150 hear 0 ME => TowersHeard
150.1 hear 0 ME
until 154.9 => Settled at 150.5
until 156 => TowersSilent 5 tcp://127.0.0.1:5557 at 155.1
# The silence of towers is told from that of one node
client echoed
1 hear 0 P1,P2 => joined P1, joined P2, send 0
3 hear 0 ME,P2
until 5.9 => send 0 at 3 4 5, Settled at 3, left P1 silent at 5
6 hear 0 ME,P2
until 20 => send 0 at 6 7 .. 20, left P2 silent at 10, TowersSilent 10 tcp://127.0.0.1:5557 at 16
# Rubbish is discarded and counted
client echoed
0.1 rubbish => discarded 3 (frames)
# Nodes beyond the limit are discarded and counted
client peers_max=1 echoed
0.1 hear 0 P1,P2 => joined P1, send 0, discarded 1 (too many nodes)
# A node that is introduced at loopback warns once if there are other machines
client
subscribed 0 +B => +B 0, send 0
1 hear 0 ME,P1 => TowersHeard, joined P1, send 0
hear 0 Q1 => joined Q1, send 0
hear 0 Q2 => joined Q2, send 0
hear 0 ME => IntroducedAtLoopback tcp://127.0.0.1:4001 tcp://10.0.0.2:5049
hear 0 ME
# A directory that introduces a node at loopback is asked for again before it warns
client
subscribed 0 +A => +T 0, +RP 0, +RS 0, +RC 0, +RR 0, +RO 0, +R* 0, +IME 0, ask 0
directory T ME => TowersHeard, Settled
change T 1 P1 => joined P1
1 change T 2 Q1 => joined Q1, ask 0
directory T ME,P1,Q1 => IntroducedAtLoopback tcp://127.0.0.1:4001 tcp://10.0.0.2:5049
2 change T 3 Q2 => joined Q2, ask 0
directory T ME,P1,Q1,Q2
"""


@scripts_of(SCRIPTS)
def test_client(script: Sequence[str]) -> None:
    play(script)


def test_a_node_is_settled_although_new_nodes_come_without_end() -> None:
    client = Client("client echoed")
    done = [client.play(f"until {0.4 * at}") + client.play(f"hear 0 P{chr(48 + at)}") for at in range(1, 20)]
    (settled,) = [each for each in done if "Settled" in each]
    assert settled.startswith("Settled at 4.1"), f"at most {SETTLE_PERIODS_MAX} periods of 0.5 s"


def test_very_many_new_nodes_are_answered_together() -> None:
    client = Client("client echoed")
    answers = [client.play(f"0.1 hear 0 P{chr(65 + number)}") for number in range(NEW_NODE_BEACONS_BURST + 2)]
    assert [answer.count("send 0") for answer in answers] == [1] * NEW_NODE_BEACONS_BURST + [0, 0]
    assert client.play("until 0.2").startswith("send 0 at 0.")


def test_a_tower_cannot_announce_a_silence_without_end() -> None:
    client = Client("client listed")
    client.play(f"pulse T 10000000 {2**32 - 1}")
    due = PAUSE_MAX_S + SILENT_TIMEOUTS * 4.0
    assert "ask" not in client.play(f"{due - 0.1} tick")
    assert "ask" in client.play(f"{due} tick")


def test_a_tower_that_subscribes_to_very_much_is_not_remembered_without_limit() -> None:
    client = Client("client")
    client.play("subscribed 0 " + ",".join(f"+X{number}" for number in range(PREFIXES_MAX)))
    assert client.play("subscribed 0 +B") == ""
    client.play("subscribed 0 -X1")
    assert client.play("subscribed 0 +B") == "+B 0, send 0"
