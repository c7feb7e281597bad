"""The observer's machine: the facts that it learns, the questions that it sends, and when a round is over."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dafka import Config, wire
from dafka.endpoints import PeerEndpoint
from dafka.protocol import PeerJoined, PeerLeft, SurveyMachine
from dafka.protocol.actions import Action
from dafka.protocol.observer import survey_machine
from dafka.protocol.observer.cluster_survey import ClusterSurvey, NodeView, PartitionView
from dafka.protocol.observer.poll_schedule import PATIENCE_S, PollSchedule
from dafka.protocol.observer.survey_machine import PAGES_MAX
from dafka.protocol.ordering.gap_resolver import HOLDS_NOTHING
from dafka.records import Partition
from dafka.wire import Command, TowerBeacon, decode_subscription
from tests.protocol.helpers import head, published, subscription
from tests.protocol.scripts import ME, Player, play, scripts_of, text

VECTORS = Path(__file__).parents[1] / "vectors"
TOWER = "tcp://127.0.0.1:5557"
COMMANDS = {
    "store": (
        Command.DIRECT_RECORD,
        Command.DIRECT_HEAD,
        Command.CONSUMER_HELLO,
        Command.DIRECT_EARLIEST,
        Command.GET_TOPICS,
    ),
    "libdafka-store": (Command.CONSUMER_HELLO,),
    "writer": (Command.DIRECT_RECORD,),
    "producer": (Command.ACK, Command.FETCH),
    "consumer": (Command.DIRECT_RECORD, Command.DIRECT_HEAD, Command.STORE_HELLO, Command.DIRECT_EARLIEST),
    "observer": (Command.DIRECT_EARLIEST, Command.DIRECT_TOPICS),
}


class Census(Player, kinds=("observer",)):
    """An observer of a cluster, whose stores answer when a script says so."""

    def make(self, kind: str, config: Config, named: dict[str, Any], ranges: dict[Partition, range]) -> SurveyMachine:
        machine = SurveyMachine(ME, config, **named)
        machine.start(self.now)
        return machine

    def _set_up(self, name: str, value: str) -> None:
        for each in value.split(","):
            address, _, role = each.partition(":")
            self.join(address, role)

    def join(self, address: str, role: str = "", endpoint: str = "tcp://h:7000", key: str = "") -> None:
        """Discover a node, which then subscribes as its role does."""
        self.machine.record_discovery(PeerJoined(address, PeerEndpoint(endpoint, key)), self.now)
        for command in COMMANDS.get(role, ()):
            self.machine.receive_subscriptions(subscription(command, address), self.now)

    def leave(self, address: str) -> None:
        self.machine.record_discovery(PeerLeft(address, PeerEndpoint("tcp://h:7000")), self.now)

    def see(self, address: str, endpoint: str = "tcp://h:7000", key: str = "", tower: str = TOWER) -> None:
        self.machine.node_table.record_beacon(tower, TowerBeacon(address, endpoint, key), self.now)

    def begin(self) -> list[Action]:
        return [*self.machine.begin_round(self.now), *self.machine.node_settled(self.now)]

    def answer(self, store: str, number: int) -> list[Action]:
        """Let a store answer the last part of a question: it has sent everything else."""
        answer = wire.DirectEarliest(ME, store, ME, f"{number}", HOLDS_NOTHING, 0)
        found: list[Action] = self.machine.receive_from_store(store, [answer], self.now)
        return found

    def survey(self) -> ClusterSurvey:
        found: ClusterSurvey = self.machine.survey(self.now)
        return found

    def nodes(self) -> list[str]:
        return [node_text(each) for each in self.survey().nodes]

    def sightings(self) -> list[str]:
        """Return who was seen last when and where, and by which tower from when to when."""
        found = []
        for node in self.survey().nodes:
            seen = [(each, each.first_seen - self.began_at, each.last_seen - self.began_at) for each in node.sightings]
            reports = [f"{each.tower} {each.endpoint} {first}-{last}" for each, first, last in seen]
            found.append(f"[{' '.join([node.address, node.endpoint, str(node.last_seen - self.began_at), *reports])}]")
        return found

    def partitions(self) -> list[str]:
        return [partition_text(each) for each in self.survey().partitions]

    def topics(self) -> list[str]:
        flags = [
            (each, ("subscribed" * each.is_subscribed, "stored" * each.is_stored)) for each in self.survey().topics
        ]
        return [" ".join(filter(None, (f"{each.name}:{each.partitions}", *given))) for each, given in flags]

    def faults(self, lag_max: int) -> list[str]:
        return [f"{each};" for each in self.survey().faults(lag_max) if "tower" not in each]


def node_text(node: NodeView) -> str:
    words = [node.address, "+".join(node.roles).replace(" ", "-") or "unknown", node.state.name.lower()]
    words += [] if node.has_answered is None else ["answered" if node.has_answered else "silent"]
    words += [] if node.lists_topics is None else ["listed" if node.lists_topics else "unlisted"]
    held = "" if node.topics_held is None else f" {node.topics_held}/{node.partitions_held}"
    return f"[{' '.join(words)}{held}]"


def partition_text(view: PartitionView) -> str:
    """Return a partition, its end, and by store what it holds and what it misses."""
    holders = [f"{each.store}={each.end_sequence}-{each.lag}" for each in view.holders]
    producer = "" if view.has_producer else "without producer "
    return f"[{' '.join([producer + text(view.partition), str(view.end_sequence), *holders, f'lag {view.lag}'])}]"


SCRIPTS = """
# It sends only questions
observer nodes=STORE:store,PRODUCER:producer
begin => GET-TOPICS to=STORE, FETCH 1/ME 0:1, not is_complete
< HEAD 9
until 5
    => GET-TOPICS to=STORE at 0.05 0.55, GET-HEADS hello at 0.05 0.55, FETCH 2/ME 0:1 at 0.05, FETCH 3/ME 0:1 at 0.55,
       is_complete at 1.5
6 begin
    => GET-TOPICS to=STORE, GET-HEADS hello, FETCH 4/ME 0:1, GET-TOPICS to=STORE, GET-HEADS hello, FETCH 5/ME 0:1, not
       is_complete
until 11 => GET-TOPICS to=STORE at 6.5, GET-HEADS hello at 6.5, FETCH 6/ME 0:1 at 6.5, is_complete at 7.5
nodes => = [PRODUCER producer up] [STORE store up silent unlisted]
# Roles are inferred from subscriptions and heads
observer nodes=A:store,B:libdafka-store,C:writer,D:producer,E:consumer,F:observer,PRODUCER
nodes
    => = [A store up silent unlisted] [B store up] [C store-writer up] [D producer up] [E consumer up] [F observer up]
       [PRODUCER unknown unconnected]
< HEAD 0
nodes
    => = [A store up silent unlisted] [B store up] [C store-writer up] [D producer up] [E consumer up] [F observer up]
       [PRODUCER producer up]
# A last question is asked if producers have published meanwhile, and its answers are waited for
observer nodes=STORE:store,PRODUCER:producer
< HEAD 99
begin => GET-TOPICS to=STORE, GET-HEADS hello, FETCH 1/ME 0:1, not is_complete
receive_from_store STORE DIRECT-TOPICS from=STORE partitions=1
receive_from_store STORE DIRECT-HEAD 99
answer STORE 1
until 0.5
< HEAD 1099
until 1.01 => GET-HEADS hello at 1, FETCH 2/ME 0:1 at 1
receive_from_store STORE DIRECT-HEAD 1049
answer STORE 2
until 1.02 => is_complete at 1.01
partitions => = [PRODUCER 1100 STORE=1050-50 lag 50]
nodes => = [PRODUCER producer up] [STORE store up answered listed 0/1]
# The last question waits a limited time
observer nodes=STORE:store,PRODUCER:producer
< HEAD 99
begin => GET-TOPICS to=STORE, GET-HEADS hello, FETCH 1/ME 0:1, not is_complete
receive_from_store STORE DIRECT-TOPICS from=STORE partitions=1
receive_from_store STORE DIRECT-HEAD 99
answer STORE 1
until 0.5
< HEAD 1099
until 2 => GET-HEADS hello at 1, FETCH 2/ME 0:1 at 1, is_complete at 2
partitions => = [PRODUCER 1100 STORE=100-0 lag 0]
# A libdafka store gets a moment for the last question
observer wire=libdafka nodes=STORE:libdafka-store,PRODUCER:producer
< HEAD 99
begin => GET-HEADS *, GET-HEADS hello, FETCH 1/ME 0:1, not is_complete
until 0.5
< HEAD 1099
until 1.5 => GET-HEADS * at 1.5, GET-HEADS hello at 1.5, FETCH 2/ME 0:1 at 1.5
receive_from_store STORE DIRECT-HEAD 1099
until 1.75 => is_complete at 1.75
partitions => = [PRODUCER 1100 STORE=1100-0 lag 0]
# A libdafka store that was not asked about a topic is not said to hold nothing
observer wire=libdafka nodes=STORE:libdafka-store,PRODUCER:producer
begin => GET-HEADS *, FETCH 1/ME 0:1, not is_complete
< HEAD 99
partitions => = [PRODUCER 100 STORE=None-None lag None]
until 0.05 => GET-HEADS * at 0.05, GET-HEADS hello at 0.05, FETCH 2/ME 0:1 at 0.05
partitions => = [PRODUCER 100 STORE=0-100 lag 100]
# A libdafka store is recognized, and asked for all topics
observer nodes=STORE:store,READER:libdafka-store
begin => GET-TOPICS to=STORE, GET-HEADS *, FETCH 1/ME 0:1, not is_complete
nodes => = [READER store up] [STORE store up silent unlisted]
# A libdafka store is not asked in a cluster of RFC 46
observer wire=rfc46 nodes=READER:libdafka-store
begin => FETCH 1/ME 0:1, not is_complete
nodes => = [READER store up unlisted]
# A store is asked again for a partition that was unknown
observer topics=hello nodes=STORE:store,PRODUCER:producer
begin => GET-HEADS hello, FETCH 1/ME 0:1, not is_complete
answer STORE 1
< HEAD 99
partitions => = [PRODUCER 100 STORE=None-None lag None]
until 0.05 => GET-HEADS hello at 0.05, FETCH 2/ME 0:1 at 0.05
receive_from_store STORE DIRECT-HEAD 99
answer STORE 2
partitions => = [PRODUCER 100 STORE=100-0 lag 0]
# Without the producer, stores are compared with each other
observer topics=hello nodes=STORE:store,OTHER:store
begin => GET-HEADS hello, FETCH 1/ME 0:1, not is_complete
receive_from_store STORE DIRECT-HEAD 59
receive_from_store OTHER DIRECT-HEAD 99
answer STORE 1
answer OTHER 1
partitions => = [without producer PRODUCER 100 OTHER=100-0 STORE=60-40 lag 40]
# Stores are compared with each other before the producer has announced itself
observer topics=hello nodes=STORE:store,PRODUCER:producer
begin => GET-HEADS hello, FETCH 1/ME 0:1, not is_complete
receive_from_store STORE DIRECT-HEAD 59
answer STORE 1
partitions => = [PRODUCER 60 STORE=60-0 lag 0]
< HEAD 99
partitions => = [PRODUCER 100 STORE=60-None lag None]
until 0.05 => GET-HEADS hello at 0.05, FETCH 2/ME 0:1 at 0.05
receive_from_store STORE DIRECT-HEAD 60
answer STORE 2
partitions => = [PRODUCER 100 STORE=61-39 lag 39]
faults 38 => = store STORE is 39 records behind hello/PRODUCER;
faults 39
# Only answers of a store to the last question count, and only on its own connection
observer topics=hello nodes=STORE:store,OTHER:store
begin => GET-HEADS hello, FETCH 1/ME 0:1, not is_complete
receive_from_store STORE DIRECT-HEAD 9 to=SOMEBODY & HEAD 9
    => discarded 1 (another requestor), discarded 1 (unexpected command)
receive_from_store NOBODY DIRECT-HEAD 9 => discarded 1 (not asked for)
< DIRECT-HEAD 9 => discarded 1 (unexpected command)
partitions
receive_from_store STORE DIRECT-EARLIEST 1/ME nothing to=SOMEBODY from=STORE => discarded 1 (another requestor)
receive_from_store STORE DIRECT-EARLIEST 1/ME nothing from=OTHER
answer STORE 0
nodes => = [OTHER store up silent] [STORE store up silent]
answer STORE 1
nodes => = [OTHER store up silent] [STORE store up answered]
# A silent store is asked after growing waits, and then given up
observer topics=hello nodes=STORE:store
begin => GET-HEADS hello, FETCH 1/ME 0:1, not is_complete
until 1.5 => GET-HEADS hello at 0.25 0.75, FETCH 2/ME 0:1 at 0.25, FETCH 3/ME 0:1 at 0.75, is_complete at 1.5
faults 0 => = store STORE at tcp://h:7000 has not answered how much it holds;
# A libdafka store gets time, and is asked for all topics
observer wire=libdafka nodes=READER:libdafka-store,WRITER:writer,STORE:store
begin => GET-TOPICS to=STORE, GET-HEADS *, FETCH 1/ME 0:1, not is_complete
receive_from_store STORE DIRECT-TOPICS from=STORE
answer STORE 1
receive_from_store READER DIRECT-HEAD A 9 & DIRECT-HEAD others/B 0
partitions
    => = [without producer A 10 READER=10-0 STORE=None-None lag 0] [without producer others/B 1 READER=1-0
       STORE=None-None lag 0]
until 1.49
    => GET-HEADS * at 0.05 0.55, GET-HEADS hello at 0.05 0.55, GET-HEADS others at 0.05 0.55, FETCH 2/ME 0:1 at 0.05,
       FETCH 3/ME 0:1 at 0.55
answer STORE 2
partitions
    => = [without producer A 10 READER=10-0 STORE=0-10 lag 10] [without producer others/B 1 READER=1-0 STORE=0-1 lag
       1]
until 1.51 => is_complete at 1.5
nodes => = [READER store up] [STORE store up answered 0/0] [WRITER store-writer up]
# What a libdafka store held in the round before counts, because it never says that it has answered
observer wire=libdafka topics=hello nodes=READER:libdafka-store,STORE:store
begin => GET-HEADS hello, FETCH 1/ME 0:1, not is_complete
receive_from_store READER DIRECT-HEAD 9
receive_from_store STORE DIRECT-HEAD 9
answer STORE 1
until 5 => is_complete at 1.5
begin_round => GET-HEADS hello, FETCH 2/ME 0:1, not is_complete
partitions => = [without producer PRODUCER 10 READER=10-0 STORE=10-None lag 0]
receive_from_store STORE DIRECT-HEAD 9
partitions => = [without producer PRODUCER 10 READER=10-0 STORE=10-0 lag 0]
# A cluster without nodes is waited for
observer
begin => FETCH 1/ME 0:1, not is_complete
until 1.5 => is_complete at 1.5
# A node that has not shown its role is waited for
observer nodes=NODE
begin => FETCH 1/ME 0:1, not is_complete
until 1.5 => is_complete at 1.5
nodes => = [NODE unknown unconnected]
# A producer without records is waited for
observer nodes=NODE:producer
begin => FETCH 1/ME 0:1, not is_complete
until 1.5 => is_complete at 1.5
# The first round takes a beacon interval, and later ones a quiet time
observer interval_ms=700 nodes=NODE:consumer
begin => FETCH 1/ME 0:1, not is_complete
until 0.7 => is_complete at 0.7
begin_round => FETCH 2/ME 0:1, not is_complete
until 1 => is_complete at 1
# Topics of consumers and producers are asked for
observer nodes=STORE:store
begin => GET-TOPICS to=STORE, FETCH 1/ME 0:1, not is_complete
+RECORD wanted & +HEAD wanted & +GET-HEADS served & +RECORD
until 0.05 => GET-TOPICS to=STORE at 0.05, GET-HEADS wanted at 0.05, GET-HEADS served at 0.05, FETCH 2/ME 0:1 at 0.05
topics => = served:0 wanted:0 subscribed
-RECORD wanted & -HEAD wanted
topics => = served:0 wanted:0
# With named topics, others are neither asked for nor shown
observer wire=libdafka topics=named nodes=STORE:store,PRODUCER:producer
< HEAD 9
+RECORD hello
begin => GET-HEADS named, FETCH 1/ME 0:1, not is_complete
receive_from_store STORE DIRECT-HEAD 9
topics => = named:0
partitions
answer STORE 1
until 1 => is_complete at 1
nodes => = [PRODUCER producer up] [STORE store up answered]
# A silent node is shown, and later forgotten
observer topics=hello nodes=STORE:store
see STORE
begin => GET-HEADS hello, FETCH 1/ME 0:1, not is_complete
receive_from_store STORE DIRECT-HEAD 59
answer STORE 1
4 leave STORE
nodes => = [STORE store silent]
partitions => = [without producer PRODUCER None lag None]
faults 1000 => = store STORE at tcp://h:7000 went silent 4 s ago; no store was found;
stores => = nothing
299.9 begin_round => GET-HEADS hello, FETCH 2/ME 0:1
nodes => = [STORE store silent]
300 begin_round => GET-HEADS hello, FETCH 3/ME 0:1
nodes
# A node that may have ended before the observer started is no fault: towers introduce nodes that have ended
observer topics=hello nodes=STORE
see STORE
3.9 see STORE
leave STORE
7.8 begin_round => not is_complete
nodes => = [STORE unknown unconnected]
8 begin_round
nodes
# A node that never connected, but lived for long, is shown as silent
observer topics=hello nodes=STORE
see STORE
4 see STORE
8 see STORE
12 leave STORE
begin_round => not is_complete
nodes => = [STORE unknown silent]
# A store that moved is asked at its new endpoint
observer topics=hello nodes=STORE:store
begin => GET-HEADS hello, FETCH 1/ME 0:1, not is_complete
receive_from_store STORE DIRECT-HEAD 59
answer STORE 1
leave STORE
join STORE store tcp://h:7001
stores => = STORE=PeerEndpoint tcp://h:7001 nothing
partitions => = [without producer PRODUCER None STORE=None-None lag None]
until 0.05 => GET-HEADS hello at 0.05, FETCH 2/ME 0:1 at 0.05
receive_from_store STORE DIRECT-HEAD 59
answer STORE 2
partitions => = [without producer PRODUCER 60 STORE=60-0 lag 0]
# A node that discovery has not lost is up without beacons
observer nodes=STORE:store
1000 nodes => = [STORE store up silent unlisted]
# A beacon with another key is ignored
observer
join STORE store tcp://h:7000 KEY
stores => = STORE=PeerEndpoint tcp://h:7000 KEY
1 see STORE tcp://evil:7000 ANOTHER
sightings => = [STORE tcp://h:7000 0.0]
2 see STORE tcp://h:7000 KEY
sightings => = [STORE tcp://h:7000 2.0 tcp://127.0.0.1:5557 tcp://h:7000 2.0-2.0]
3 see ME
sightings => = [STORE tcp://h:7000 2.0 tcp://127.0.0.1:5557 tcp://h:7000 2.0-2.0]
# Faults are described
observer topics=hello nodes=PRODUCER:producer
< HEAD 99
begin => GET-HEADS hello, FETCH 1/ME 0:1, not is_complete
faults 0 => = no store was found;
join STORE store
until 0.05 => GET-HEADS hello at 0.05, FETCH 2/ME 0:1 at 0.05
receive_from_store STORE DIRECT-HEAD 89
answer STORE 2
faults 10
faults 9 => = store STORE is 10 records behind hello/PRODUCER;
join NODE
faults 10
    => = node NODE at tcp://h:7000 has not connected, although its beacons are heard: nothing else is known about it;
# A store that lists no topics is a fault, unless topics are named
observer nodes=STORE:store
begin => GET-TOPICS to=STORE, FETCH 1/ME 0:1, not is_complete
answer STORE 1
nodes => = [STORE store up answered unlisted]
faults 0 => = store STORE at tcp://h:7000 does not list its topics, so that some may be missing here: name the topics;
# A stored topic of unknown size is a fault
observer nodes=STORE:store
begin => GET-TOPICS to=STORE, FETCH 1/ME 0:1, not is_complete
receive_from_store STORE DIRECT-TOPICS a from=STORE partitions=1
faults 0
    => = store STORE at tcp://h:7000 has not answered how much it holds; topic a is stored, but no store has said how
       much of it;
topics => = a:0 stored
# An empty page ends a list whatever it promises, and a page that was not asked for is discarded
observer nodes=STORE:store
begin => GET-TOPICS to=STORE, FETCH 1/ME 0:1, not is_complete
receive_from_store STORE DIRECT-TOPICS x from=OTHER partitions=1 => discarded 1 (not asked for)
receive_from_store STORE DIRECT-TOPICS x to=OTHER from=STORE partitions=1 => discarded 1 (another requestor)
receive_from_store STORE DIRECT-TOPICS x from=STORE after=unasked partitions=1 => discarded 1 (not asked for)
topics
receive_from_store STORE DIRECT-TOPICS from=STORE remaining=5 partitions=1
nodes => = [STORE store up silent listed 5/1]
"""


@scripts_of(SCRIPTS)
def test_survey(script: Sequence[str]) -> None:
    play(script)


def test_the_report_of_each_tower_is_kept() -> None:
    far = "tcp://t:2"
    census = Census("observer")
    census.machine = SurveyMachine(ME, Config().with_beacon(tower_pub=(TOWER, far)))
    census.machine.node_table.tower_heard(TOWER, 0.0)
    census.join("STORE", "store")
    for now in (0.0, 1.0):
        census.now = now
        census.see("STORE")
    census.see("STORE", "tcp://i:7000", tower=far)
    census.machine.node_table.tower_refused(far, "no entry")
    assert census.sightings() == [f"[STORE tcp://h:7000 1.0 {TOWER} tcp://h:7000 0.0-1.0 {far} tcp://i:7000 1.0-1.0]"]
    survey = census.survey()
    assert [(tower.is_heard, tower.nodes) for tower in survey.towers] == [(True, 1), (False, 1)]
    assert "no entry" in list(survey.faults(0))
    (moved,) = survey.with_time(5000.0).nodes
    assert [(each.first_seen, each.last_seen) for each in moved.sightings] == [(4999.0, 5000.0), (5000.0, 5000.0)]
    assert (moved.first_seen, moved.last_seen) == (4999.0, 5000.0)
    census.now = 4.0
    assert [tower.is_heard for tower in census.survey().towers] == [False, False]


def announce(census: Census, address: str, *, active: bool = True) -> None:
    """Subscribe as a store that discovery has not found."""
    for command in COMMANDS["store"]:
        census.machine.receive_subscriptions(subscription(command, address, active=active), 0.0)


def test_memory_is_bounded_and_limits_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, limit in (("STORES_MAX", 2), ("TOPICS_MAX", 3), ("PARTITIONS_MAX", 4)):
        monkeypatch.setattr(survey_machine, name, limit)
    census = Census("observer peers_max=5")
    census.begin()
    for number in range(10):
        announce(census, f"EARLY{number}")
        census.join(f"STORE{number}", "store")
        census.see(f"STRANGER{number}")
        census.machine.receive([head(0, Partition("orders", f"PRODUCER{number}"))], 0.0)
        census.machine.receive_subscriptions(subscription(Command.RECORD, f"topic{number}"), 0.0)
    survey = census.survey()
    assert (len(survey.nodes), len(census.machine.stores), len(survey.topics), len(survey.partitions)) == (5, 2, 3, 4)
    shown = {
        f"only {count} {each}: there are more" for count, each in ((5, "nodes are shown"), (2, "stores are asked"))
    }
    shown |= {f"only {count} {each} are shown: there are more" for count, each in ((3, "topics"), (4, "partitions"))}
    assert set(survey.limits) == shown <= set(survey.faults(0))
    census.machine.begin_round(0.0)
    assert census.survey().limits == ()


def test_few_nodes_that_subscribe_without_a_beacon_are_remembered_while_they_do() -> None:
    census = Census("observer peers_max=3")
    for number in range(4):
        announce(census, f"EARLY{number}")
    census.join("EARLY2")
    census.join("EARLY3")
    assert [node.roles for node in census.survey().nodes] == [("store",), ()]
    census = Census("observer peers_max=1")
    announce(census, "EARLY")
    announce(census, "EARLY", active=False)
    announce(census, "STORE")
    census.join("STORE")
    assert set(census.machine.stores) == {"STORE"}


def test_a_list_without_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey_machine, "TOPICS_MAX", 50)
    census = Census("observer")
    census.join("STORE", "store")
    asked, pages = published(census.begin(), wire.GetTopics), 0
    while asked:
        pages += 1
        page = wire.DirectTopics(ME, "STORE", asked[-1].after, (f"{pages}",), 2**32 - 1, 1)
        asked = published(census.machine.receive_from_store("STORE", [page], 0.0), wire.GetTopics)
    assert pages == PAGES_MAX
    assert len(census.topics()) == 50
    assert "only 50 topics are shown: there are more" in census.survey().limits


@pytest.mark.parametrize(
    ("recording", "roles", "topic", "count"),
    [
        (
            "libdafka-session",
            {"710623": "store", "BF929C": "store writer", "FC8332": "producer", "87BB96": "consumer"},
            "hello",
            5,
        ),
        (
            "libdafka-late-store",
            {"D6C435": "store", "2BCD94": "store writer", "FABBAB": "producer", "522476": "consumer"},
            "events",
            3,
        ),
    ],
)
def test_a_recorded_cluster_of_libdafka_is_understood(
    recording: str, roles: dict[str, str], topic: str, count: int
) -> None:
    events = json.loads((VECTORS / f"{recording}.json").read_text())
    recorder = next(bytes.fromhex(each["frames"][1]).decode() for each in events if len(each["frames"]) == 3)
    machine = SurveyMachine(recorder, Config())
    decoder = wire.BatchDecoder()
    for event in events:
        frames = [bytes.fromhex(frame) for frame in event["frames"]]
        if event["kind"] == "beacon" and len(frames) == 3:
            machine.node_table.record_beacon(TOWER, TowerBeacon.decode(frames), event["t"])
        elif event["kind"] == "subscription":
            found = decode_subscription(frames[0])
            assert found is not None
            machine.receive_subscriptions([found], event["t"])
        elif event["kind"] == "message" and frames[0][:1] == b"H":
            machine.receive(decoder.decode([frames]), event["t"])
    survey = machine.survey(events[-1]["t"])
    assert {node.address[:6]: " ".join(node.roles) for node in survey.nodes} == roles
    (partition,) = survey.partitions
    assert (partition.partition.topic, partition.end_sequence) == (topic, count)


def test_a_round_is_not_over_before_its_first_question() -> None:
    """However late it is played, and although nothing is to be waited for."""
    for late_s in (0.0, 0.1, 5.0, 100.0):
        schedule = PollSchedule(1.0)
        schedule.node_settled(0.0)
        for begun in (50.0, 500.0):
            schedule.begin_round(begun)
            now = begun + late_s
            assert schedule.tick(now, [], has_silent=False, has_shown=True)
            assert not schedule.is_over
            while not schedule.is_over:
                now = schedule.deadline()
                assert now <= begun + late_s + 2 * PATIENCE_S
                schedule.tick(now, [], has_silent=False, has_shown=True)
