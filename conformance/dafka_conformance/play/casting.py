"""The parts of a sentence given out: which of its terminals the target says, and what each is about.

A sentence does not say of which partition and which records its messages speak; this does. Each DIRECT-HEAD is of a
partition of its own. A FETCH is for as many records as DIRECT-RECORDs follow it. Where a store fetches, the store that
answers is another one, so a store can be cast as either.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile

import attrs

from dafka_conformance.grammar import NamedSentence, Sentence, Terminal
from dafka_conformance.model import Role

HEADS = {"DIRECT-HEAD", "RECORD", "HEAD"}
"""What tells of a partition's head: by it, whoever lacks records learns of them."""

_IN_ANSWERS = {"DIRECT-RECORD", "ACK"}


@attrs.frozen
class Line:
    """A terminal of a sentence, and what it is about.

    Attributes:
        message: the message's name.
        is_target: does the target say it?
        speaker: the label of who does.
        partition: which of the sentence's partitions it is about.
        missing: how many records the FETCH that this is, or that comes next, is for.
        turn: how many DIRECT-RECORDs have answered the last FETCH before this.
        is_for_target: of a FETCH: does the target answer it?
    """

    message: str
    is_target: bool
    speaker: str
    partition: int
    missing: int
    turn: int
    is_for_target: bool = False


@attrs.frozen
class Cast:
    """A sentence with its parts given out. `is_answerer`: the target is the store that another one fetches from."""

    sentence: NamedSentence
    role: Role
    is_answerer: bool
    lines: tuple[Line, ...]

    @property
    def name(self) -> str:
        """As in `store.grammar.publish.07`."""
        suffix = ".answering" if self.is_answerer else ""
        return f"{self.role.title}.grammar.{self.sentence.name}{suffix}"

    def of_partition(self, partition: int) -> list[Line]:
        """The lines that are about one partition."""
        return [line for line in self.lines if line.partition == partition]

    @property
    def partition_count(self) -> int:
        """How many partitions it is about."""
        return max(line.partition for line in self.lines) + 1


def cast(sentence: NamedSentence, role: Role) -> Iterator[Cast]:
    """The ways in which a target of this role can take part in a sentence."""
    places = list(_places(sentence.terminals))
    for is_answerer in (False, True) if role is Role.STORE else (False,):
        lines = tuple(_lines(places, role, is_answerer))
        if any(line.is_target for line in lines):
            yield Cast(sentence, role, is_answerer, lines)


@attrs.frozen
class _Place:
    """A terminal, and what goes on where it stands: of which partition, and whose FETCH is being answered."""

    terminal: Terminal
    partition: int
    missing: int
    turn: int
    fetcher: Role

    @property
    def is_of_other_store(self) -> bool:
        """Is it said by a store that answers another one?"""
        return self.terminal == Terminal(Role.STORE, "DIRECT-RECORD") and self.fetcher is Role.STORE


def _places(terminals: Sentence) -> Iterator[_Place]:
    partition, missing, turn, fetcher = -1, 0, 0, Role.CONSUMER
    for index, terminal in enumerate(terminals):
        partition += terminal.message == "DIRECT-HEAD"
        if terminal.message in HEADS:
            turn, missing = 0, _answers_after(terminals, index + 1)
        elif terminal.message == "FETCH":
            turn, missing, fetcher = 0, _answers_after(terminals, index), terminal.role
        yield _Place(terminal, max(partition, 0), missing, turn, fetcher)
        turn += terminal.message == "DIRECT-RECORD"


def _lines(places: Sequence[_Place], role: Role, is_answerer: bool) -> Iterator[Line]:
    own_partition = next((place.partition for place in places if place.terminal.role is Role.PRODUCER), None)

    def is_target(place: _Place) -> bool:
        if place.terminal.role is not role:
            return False
        if role is Role.PRODUCER:
            return place.partition == own_partition
        return role is not Role.STORE or place.is_of_other_store is is_answerer

    for index, place in enumerate(places):
        is_fetch = place.terminal.message == "FETCH"
        yield Line(
            place.terminal.message,
            is_target(place),
            _label(place, role),
            place.partition,
            place.missing,
            place.turn,
            is_fetch and any(map(is_target, _answers_to(places, index))),
        )


def _answers_to(places: Sequence[_Place], index: int) -> Iterator[_Place]:
    """The DIRECT-RECORDs that answer a FETCH."""
    following = takewhile(lambda place: place.terminal.message in _IN_ANSWERS, places[index + 1 :])
    return (place for place in following if place.terminal.message == "DIRECT-RECORD")


def _label(place: _Place, role: Role) -> str:
    """Who says it, if the target does not."""
    if place.terminal.role is Role.PRODUCER:
        return f"P{place.partition + 1}"
    if place.terminal.role is Role.STORE:
        return "S3" if place.is_of_other_store and role is not Role.STORE else "S2"
    return str(place.terminal.role.value)


def _answers_after(terminals: Sentence, index: int) -> int:
    """How many DIRECT-RECORDs answer the FETCH at a place; 0 where there is none."""
    if index >= len(terminals) or terminals[index].message != "FETCH":
        return 0
    following = takewhile(lambda terminal: terminal.message in _IN_ANSWERS, terminals[index + 1 :])
    return sum(terminal.message == "DIRECT-RECORD" for terminal in following)
