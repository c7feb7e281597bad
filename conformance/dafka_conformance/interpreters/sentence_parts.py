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
class SentenceStep:
    """A terminal of a sentence, and what it is about.

    Attributes:
        message: the message's name.
        is_target: does the target say it?
        sender: the label of who does.
        partition: which of the sentence's partitions it is about.
        missing: how many records the FETCH that this is, or that comes next, is for.
        answer_count: how many DIRECT-RECORDs have answered the last FETCH before this.
        is_for_target: of a FETCH: does the target answer it?
    """

    message: str
    is_target: bool
    sender: str
    partition: int
    missing: int
    answer_count: int
    is_for_target: bool = False


@attrs.frozen
class SentencePart:
    """A sentence with its parts given out. `is_answerer`: the target is the store that another one fetches from."""

    sentence: NamedSentence
    role: Role
    is_answerer: bool
    steps: tuple[SentenceStep, ...]

    @property
    def name(self) -> str:
        """As in `store.grammar.publish.07`."""
        suffix = ".answering" if self.is_answerer else ""
        return f"{self.role.title}.grammar.{self.sentence.name}{suffix}"

    def of_partition(self, partition: int) -> list[SentenceStep]:
        """The steps that are about one partition."""
        return [step for step in self.steps if step.partition == partition]

    @property
    def partition_count(self) -> int:
        """How many partitions it is about."""
        return max(step.partition for step in self.steps) + 1


def assign_parts(sentence: NamedSentence, role: Role) -> Iterator[SentencePart]:
    """The ways in which a target of this role can take part in a sentence."""
    positions = list(_positions(sentence.terminals))
    for is_answerer in (False, True) if role is Role.STORE else (False,):
        steps = tuple(_steps(positions, role, is_answerer))
        if any(step.is_target for step in steps):
            yield SentencePart(sentence, role, is_answerer, steps)


@attrs.frozen
class _Position:
    """A terminal, and what goes on where it stands: of which partition, and whose FETCH is being answered."""

    terminal: Terminal
    partition: int
    missing: int
    answer_count: int
    fetcher: Role

    @property
    def is_of_other_store(self) -> bool:
        """Is it said by a store that answers another one?"""
        return self.terminal == Terminal(Role.STORE, "DIRECT-RECORD") and self.fetcher is Role.STORE


def _positions(terminals: Sentence) -> Iterator[_Position]:
    partition, missing, answer_count, fetcher = -1, 0, 0, Role.CONSUMER
    for index, terminal in enumerate(terminals):
        partition += terminal.message == "DIRECT-HEAD"
        if terminal.message in HEADS:
            answer_count, missing = 0, _answers_after(terminals, index + 1)
        elif terminal.message == "FETCH":
            answer_count, missing, fetcher = 0, _answers_after(terminals, index), terminal.role
        yield _Position(terminal, max(partition, 0), missing, answer_count, fetcher)
        answer_count += terminal.message == "DIRECT-RECORD"


def _steps(positions: Sequence[_Position], role: Role, is_answerer: bool) -> Iterator[SentenceStep]:
    own_partition = next(
        (position.partition for position in positions if position.terminal.role is Role.PRODUCER), None
    )

    def is_target(position: _Position) -> bool:
        if position.terminal.role is not role:
            return False
        if role is Role.PRODUCER:
            return position.partition == own_partition
        return role is not Role.STORE or position.is_of_other_store is is_answerer

    for index, position in enumerate(positions):
        is_fetch = position.terminal.message == "FETCH"
        yield SentenceStep(
            position.terminal.message,
            is_target(position),
            _label(position, role),
            position.partition,
            position.missing,
            position.answer_count,
            is_fetch and any(map(is_target, _answers_to(positions, index))),
        )


def _answers_to(positions: Sequence[_Position], index: int) -> Iterator[_Position]:
    """The DIRECT-RECORDs that answer a FETCH."""
    following = takewhile(lambda position: position.terminal.message in _IN_ANSWERS, positions[index + 1 :])
    return (position for position in following if position.terminal.message == "DIRECT-RECORD")


def _label(position: _Position, role: Role) -> str:
    """Who says it, if the target does not."""
    if position.terminal.role is Role.PRODUCER:
        return f"P{position.partition + 1}"
    if position.terminal.role is Role.STORE:
        return "S3" if position.is_of_other_store and role is not Role.STORE else "S2"
    return str(position.terminal.role.value)


def _answers_after(terminals: Sentence, index: int) -> int:
    """How many DIRECT-RECORDs answer the FETCH at a position; 0 where there is none."""
    if index >= len(terminals) or terminals[index].message != "FETCH":
        return 0
    following = takewhile(lambda terminal: terminal.message in _IN_ANSWERS, terminals[index + 1 :])
    return sum(terminal.message == "DIRECT-RECORD" for terminal in following)
