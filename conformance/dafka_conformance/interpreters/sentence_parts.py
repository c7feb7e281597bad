"""Assigns the terminals of a sentence to the target and the scripted peers, and partitions and records to messages.

A sentence does not name the partitions and records of its messages. Here, each DIRECT-HEAD gets its own partition, and
a FETCH requests as many records as DIRECT-RECORDs follow it. If a store fetches, another store answers, so a target
store can take either part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile

import attrs

from dafka_conformance.grammar import NamedSentence, Sentence, Terminal
from dafka_conformance.model import Role

HEADS = {"DIRECT-HEAD", "RECORD", "HEAD"}
"""The messages that announce a partition's head."""

_IN_ANSWERS = {"DIRECT-RECORD", "ACK"}


@attrs.frozen
class SentenceStep:
    """A terminal of a sentence with its sender, partition and records.

    Attributes:
        message: The message's name.
        is_target: Whether the target sends it.
        sender: The label of the peer that sends it otherwise.
        partition: The index of its partition in the sentence.
        missing: The number of records that this FETCH, or the next one, requests.
        answer_count: The number of DIRECT-RECORDs since the last FETCH.
        is_for_target: Whether this is a FETCH that the target answers.
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
    """A sentence as the target takes part in it.

    Attributes:
        sentence: The sentence.
        role: The target's role.
        is_answerer: Whether the target is the store that another store fetches from.
        steps: The terminals in order.
    """

    sentence: NamedSentence
    role: Role
    is_answerer: bool
    steps: tuple[SentenceStep, ...]

    @property
    def name(self) -> str:
        """The name, such as `store.grammar.publish.07`."""
        suffix = ".answering" if self.is_answerer else ""
        return f"{self.role.title}.grammar.{self.sentence.name}{suffix}"

    def of_partition(self, partition: int) -> list[SentenceStep]:
        """Return the steps of one partition."""
        return [step for step in self.steps if step.partition == partition]

    @property
    def partition_count(self) -> int:
        """The number of partitions."""
        return max(step.partition for step in self.steps) + 1


def assign_parts(sentence: NamedSentence, role: Role) -> Iterator[SentencePart]:
    """Yield each way that a target of this role can take part in a sentence."""
    positions = list(_positions(sentence.terminals))
    for is_answerer in (False, True) if role is Role.STORE else (False,):
        steps = tuple(_steps(positions, role, is_answerer))
        if any(step.is_target for step in steps):
            yield SentencePart(sentence, role, is_answerer, steps)


@attrs.frozen
class _Position:
    """A terminal with its partition and the FETCH that is being answered."""

    terminal: Terminal
    partition: int
    missing: int
    answer_count: int
    fetcher: Role

    @property
    def is_of_other_store(self) -> bool:
        """Whether it is sent by a store that answers another store."""
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
    """Yield the DIRECT-RECORDs that answer a FETCH."""
    following = takewhile(lambda position: position.terminal.message in _IN_ANSWERS, positions[index + 1 :])
    return (position for position in following if position.terminal.message == "DIRECT-RECORD")


def _label(position: _Position, role: Role) -> str:
    """Return the label of the peer that sends a terminal."""
    if position.terminal.role is Role.PRODUCER:
        return f"P{position.partition + 1}"
    if position.terminal.role is Role.STORE:
        return "S3" if position.is_of_other_store and role is not Role.STORE else "S2"
    return str(position.terminal.role.value)


def _answers_after(terminals: Sentence, index: int) -> int:
    """Return the number of DIRECT-RECORDs that answer the FETCH at an index; 0 if there is no FETCH."""
    if index >= len(terminals) or terminals[index].message != "FETCH":
        return 0
    following = takewhile(lambda terminal: terminal.message in _IN_ANSWERS, terminals[index + 1 :])
    return sum(terminal.message == "DIRECT-RECORD" for terminal in following)
