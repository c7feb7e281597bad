"""The parts of a sentence given out: which of its terminals the target says, and what each is about.

A sentence does not say of which partition and which records its messages speak; this does. Each DIRECT-HEAD is of a
partition of its own. A FETCH is for as many records as DIRECT-RECORDs follow it. Where a store fetches, the store that
answers is another one, so a store can be cast as either.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from dafka_conformance.grammar import NamedSentence, Sentence, Terminal
from dafka_conformance.model import Role

HEADS = {"DIRECT-HEAD", "RECORD", "HEAD"}
"""What tells of a partition's head: by it, whoever lacks records learns of them."""


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
    for is_answerer in (False, True) if role is Role.STORE else (False,):
        lines = tuple(_lines(sentence.terminals, role, is_answerer))
        if any(line.is_target for line in lines):
            yield Cast(sentence, role, is_answerer, lines)


def _lines(terminals: Sentence, role: Role, is_answerer: bool) -> Iterator[Line]:
    own_partition = _first_partition_of_a_producer(terminals)
    partition, missing, turn, fetcher = -1, 0, 0, Role.CONSUMER
    is_for_target = False
    for place, terminal in enumerate(terminals):
        if terminal.message == "DIRECT-HEAD":
            partition += 1
        if terminal.message in HEADS:
            turn, missing = 0, _answers_after(terminals, place + 1)
        about = max(partition, 0)

        def is_target(said: Terminal, about: int = about, fetcher: Role = fetcher) -> bool:
            if role is Role.PRODUCER:
                return said.role is role and about == own_partition
            return said.role is role and (role is not Role.STORE or _is_other_store(said, fetcher) is is_answerer)

        if terminal.message == "FETCH":
            turn, missing, fetcher = 0, _answers_after(terminals, place), terminal.role
            answers = [
                each for each in terminals[place + 1 : place + 1 + 2 * missing] if each.message == "DIRECT-RECORD"
            ]
            is_for_target = any(is_target(each, fetcher=fetcher) for each in answers[:missing])
        yield Line(
            terminal.message,
            is_target(terminal),
            _label(terminal, fetcher, role, about),
            about,
            missing,
            turn,
            is_for_target and terminal.message == "FETCH",
        )
        turn += terminal.message == "DIRECT-RECORD"


def _is_other_store(terminal: Terminal, fetcher: Role) -> bool:
    """Is this said by a store that answers another one?"""
    return terminal.message == "DIRECT-RECORD" and terminal.role is Role.STORE and fetcher is Role.STORE


def _label(terminal: Terminal, fetcher: Role, role: Role, partition: int) -> str:
    """Who says it, if the target does not."""
    if terminal.role is Role.PRODUCER:
        return f"P{partition + 1}"
    if terminal.role is Role.STORE:
        return "S3" if _is_other_store(terminal, fetcher) and role is not Role.STORE else "S2"
    return terminal.role.value


def _first_partition_of_a_producer(terminals: Sentence) -> int | None:
    partition = -1
    for terminal in terminals:
        partition += terminal.message == "DIRECT-HEAD"
        if terminal.role is Role.PRODUCER:
            return max(partition, 0)
    return None


def _answers_after(terminals: Sentence, place: int) -> int:
    """How many DIRECT-RECORDs answer the FETCH at a place; 0 where there is none."""
    if place >= len(terminals) or terminals[place].message != "FETCH":
        return 0
    count = 0
    for terminal in terminals[place + 1 :]:
        if terminal.message not in {"DIRECT-RECORD", "ACK"}:
            break
        count += terminal.message == "DIRECT-RECORD"
    return count
