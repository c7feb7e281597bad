"""Answers to requests for heads: which heads, in which order, and how many at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from dafka import wire
from dafka.config import Config
from dafka.protocol.actions import Action, Publish
from dafka.protocol.answering import head_responder
from dafka.protocol.answering.head_responder import FOLLOWING_MAX, SLICE, HeadResponder
from dafka.records import Partition
from tests.protocol.scripts import Player, play, scripts_of


class Heads(Player, kinds=("heads",)):
    """A responder over topics with some partitions each."""

    def make(self, kind: str, config: Config, named: dict[str, Any], ranges: dict[Partition, range]) -> HeadResponder:
        self.durable = {topic: {f"P{number}": 1 for number in range(count)} for topic, count in named.items()}
        return HeadResponder(self.durable, self._send)

    def _send(self, topic: str, requestor: str, first: int, count: int) -> list[Action]:
        assert count >= 1
        addresses = list(self.durable[topic])[first : first + count]
        return [Publish(wire.DirectHead(requestor, address, topic, 0)) for address in addresses]

    def ask(self, requestor: str, topics: str) -> str | None:
        return None if self.machine.add_request(requestor, topics.split(","), is_verified=True) else "refused"

    def unverified(self, requestor: str, topics: str) -> str | None:
        """Ask as a node that is not known to subscribe to heads."""
        return None if self.machine.add_request(requestor, topics.split(","), is_verified=False) else "refused"

    def follow(self, requestor: str, sequence: int) -> bool:
        """Send a message after the heads."""
        return bool(self.machine.send_after_heads(wire.DirectEarliest(requestor, "S", "P", "t", sequence, 0)))

    def remove(self, topic: str, partition: Partition) -> None:
        del self.durable[topic][partition.address]
        self.machine.partition_removed(topic)

    def next(self) -> str:
        """Return the next heads: `C t 0:3` are the first three of a topic for C; `all` if nothing is left."""
        words: list[str] = []
        for action in self.machine.next_heads():
            message = action.message
            if isinstance(message, wire.DirectEarliest):
                words.append(f"{message.requestor} earliest {message.sequence}")
                continue
            begin, number = f"{message.requestor} {message.subject} ", int(message.address[1:])
            first, _, end = words[-1].removeprefix(begin).partition(":") if words else ("", "", "")
            is_next = bool(words) and words[-1].startswith(begin) and end == str(number)
            words[-1:] = [f"{begin}{first}:{number + 1}"] if is_next else [*words[-1:], f"{begin}{number}:{number + 1}"]
        return ", ".join([*words, *([] if self.machine else ["all"])])


SCRIPTS = """
# Without requests there is nothing to do
heads t=3
pause_s => = inf
next => = all
# Many heads are sent a slice at a time
heads t=201
ask C t
pause_s => = 0.001
next => = C t 0:100
next => = C t 100:200
next => = C t 200:201, all
pause_s => = inf
# A topic that fills a slice is finished with it
heads t=100
ask C t
next => = C t 0:100, all
# Unverified requestors get smaller slices, seldom
heads t=41
unverified U t
pause_s => = 0.01
next => = U t 0:20
next => = U t 20:40
next => = U t 40:41, all
# Small topics of all requestors share a slice
heads a=3 b=96
ask C a,b
ask D b
next => = C a 0:3, D b 0:96, C b 0:1
next => = C b 1:96, all
# Requestors take turns
heads t=101
ask C t
ask D t
next => = C t 0:100
next => = D t 0:100
next => = C t 100:101, D t 100:101, all
# A topic is finished before the next one of its requestor
heads a=101 b=1
ask C a,b
next => = C a 0:100
next => = C a 100:101, C b 0:1, all
# Unknown topics are ignored, and the known ones answered
heads t=1
ask C x,t,y
next => = C t 0:1, all
# A request that is repeated before its answer begins is answered once
heads t=2
ask C t
ask C t,t
next => = C t 0:2, all
# A request that is repeated during its answer is answered once more from the beginning
heads t=101
ask C t
next => = C t 0:100
ask C t
ask C t
next => = C t 100:101, C t 0:99
next => = C t 99:101, all
# Verified requestors come first, and do not take the share of others
heads t=101
unverified U t
ask V t
pause_s => = 0.001
next => = V t 0:100, U t 0:20
# A requestor that is verified once stays so while it is answered
heads a=1 b=1
ask C a
unverified C b
pause_s => = 0.001
next => = C a 0:1, C b 0:1, all
# A removed partition repeats only the answers that have begun
heads a=102 b=1
ask C a
ask D b
next => = C a 0:100
remove a P0
next => = D b 0:1, C a 101:102, C a 1:99
next => = C a 99:102, all
# A message follows the heads of its requestor
heads t=101
ask C t
follow C 1 => = True
follow C 2 => = True
follow D 0 => = False
next => = C t 0:100
next => = C t 100:101, C earliest 1, C earliest 2, all
follow C 3 => = False
# A message follows the heads of an unverified requestor
heads t=1
unverified C t
follow C 0 => = True
next => = C t 0:1, C earliest 0, all
"""


@scripts_of(SCRIPTS)
def test_heads(script: Sequence[str]) -> None:
    play(script)


FULL = """
# Requests beyond the limit are refused, but not those that are being answered
heads a=1 b=1 c=1 d=1
ask C a,b
ask D a,b => = refused
ask D a
next => = C a 0:1, D a 0:1, C b 0:1, all
ask E a,b,c
ask E d => = refused
# Room is free again after long answers
heads t=200
ask C t
next => = C t 0:100
ask C t
ask D t
ask E t
ask F t => = refused
next => = C t 100:200
next => = D t 0:100
next => = E t 0:100
next => = C t 0:100
next => = D t 100:200
next => = E t 100:200
ask C t
# A verified requestor displaces the unverified one that waited longest
heads a=1 b=1 c=1
unverified U1 a,b
unverified U2 a
unverified U3 a => = refused
ask V a,b
next => = V a 0:1, V b 0:1, U2 a 0:1, all
ask V a,b,c
ask W a => = refused
"""


@scripts_of(FULL)
def test_full_responder(script: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_responder, "QUESTIONS_MAX", 3)
    play(script)


def test_messages_that_wait_for_heads_are_limited_and_count_as_work() -> None:
    heads = Heads("heads t=1")
    heads.ask("C", "t")
    assert all(heads.follow("C", sequence) for sequence in range(FOLLOWING_MAX + 1))
    assert heads.next().count("earliest") == FOLLOWING_MAX
    for number in range(SLICE):
        heads.ask(f"C{number}", "t")
        heads.follow(f"C{number}", 0)
    assert [len(heads.machine.next_heads()) for _ in range(3)] == [SLICE, SLICE, 0]
