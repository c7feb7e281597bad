"""A recognizer of the traffic rules: it accepts a message if the messages before it allow it.

Many exchanges run at once, and messages are repeated, such as a HEAD every second. So the recognizer keeps every state
that any exchange has reached, with the partition and nodes of the exchange, and accepts a message that continues one of
them or begins a new one. It rejects a message whose required predecessor is missing, such as an ACK for a partition
without records, or a CONSUMER-HELLO to a store that sent no STORE-HELLO.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

import attrs

from dafka_conformance.grammar.formats import Message
from dafka_conformance.grammar.rules import Choice, Expression, Reference, Repeat, Sequence
from dafka_conformance.grammar.sentences import START_RULE, Terminal
from dafka_conformance.model import Role

_Binding: TypeAlias = tuple[tuple[str, bytes], ...]


@attrs.define(eq=False)
class _State:
    """A state of the rules: the next states by terminal, and those that need no message."""

    moves: list[tuple[Terminal, _State]] = attrs.field(factory=list)
    silent: list[_State] = attrs.field(factory=list)


class Recognizer:
    """The states that the exchanges of one cluster have reached so far."""

    def __init__(self, rules: Mapping[str, Expression]) -> None:
        start = _State()
        _connect(rules[START_RULE], rules, start, _State())
        self._terminals = set(_terminals(start))
        self._reached: set[tuple[_Binding, _State]] = set()
        self._open: dict[Terminal, list[tuple[_Binding, _State]]] = {}
        self._reach((), start)

    def roles_of(self, message: str) -> set[Role]:
        """Return the roles that may send a message, by its prefixes in the rules."""
        return {terminal.role for terminal in self._terminals if terminal.message == message}

    def accept(self, role: Role, message: Message) -> bool:
        """Add a message that was sent, and return whether the rules allow it here."""
        terminal = Terminal(role, message.name)
        facts = {
            fact: message.topic if part == "topic" else message.get_bytes(part)
            for fact, part in _FACTS.get(message.name, {}).items()
        }
        is_accepted = False
        for binding, state in tuple(self._open.get(terminal, ())):
            joined = _join(dict(binding), facts, message.name)
            if joined is not None:
                is_accepted = True
                self._reach(tuple(sorted(joined.items())), state)
        return is_accepted

    def _reach(self, binding: _Binding, state: _State) -> None:
        """Add a state that an exchange with this binding has reached."""
        if (binding, state) in self._reached:
            return
        self._reached.add((binding, state))
        for terminal, follower in _all_moves(state):
            self._open.setdefault(terminal, []).append((binding, follower))


_FACTS: Mapping[str, Mapping[str, str]] = {
    "RECORD": {"partition": "address"},
    "HEAD": {"partition": "address"},
    "DIRECT-HEAD": {"partition": "address", "consumer": "topic"},
    "FETCH": {"partition": "topic", "requestor": "address"},
    "DIRECT-RECORD": {"partition": "address", "requestor": "topic"},
    "ACK": {"partition": "topic"},
    "GET-HEADS": {"consumer": "address"},
    "CONSUMER-HELLO": {"consumer": "address"},
    "STORE-HELLO": {"consumer": "topic"},
}
"""The facts that each message states about its exchange, and the part of the message that has each fact."""

_BEGINS = {
    "RECORD": {"partition"},
    "HEAD": {"partition"},
    "DIRECT-HEAD": {"partition"},
    "FETCH": {"requestor"},
    "STORE-HELLO": {"consumer"},
    "GET-HEADS": {"consumer"},
}
"""The facts that a message sets anew, whatever they were before in the exchange."""


def _join(before: Mapping[str, bytes], facts: Mapping[str, bytes], name: str) -> dict[str, bytes] | None:
    """Return the exchange's facts with those of a message; None if they contradict each other."""
    begins = _BEGINS.get(name, set())
    for key, value in facts.items():
        if key not in begins and before.get(key, value) != value:
            return None
    return {**before, **facts}


def _connect(expression: Expression, rules: Mapping[str, Expression], start: _State, end: _State) -> None:
    if isinstance(expression, Reference):
        if expression.role is not None:
            start.moves.append((Terminal(expression.role, expression.rule), end))
        else:
            _connect(rules[expression.rule], rules, start, end)
    elif isinstance(expression, Choice):
        for part in expression.parts:
            _connect(part, rules, start, end)
    elif isinstance(expression, Sequence):
        for part in expression.parts[:-1]:
            middle = _State()
            _connect(part, rules, start, middle)
            start = middle
        _connect(expression.parts[-1], rules, start, end)
    elif isinstance(expression, Repeat):
        # One pass, and a way back to its start if it may be repeated. Bounds above 1 are not counted.
        entry, leave = _State(), _State()
        start.silent.append(entry)
        leave.silent.append(end)
        _connect(expression.part, rules, entry, leave)
        if expression.most != 1:
            leave.silent.append(entry)
        if expression.least == 0:
            start.silent.append(end)


def _all_moves(state: _State) -> Iterator[tuple[Terminal, _State]]:
    seen, waiting = {state}, [state]
    while waiting:
        here = waiting.pop()
        yield from here.moves
        new = [follower for follower in here.silent if follower not in seen]
        seen.update(new)
        waiting += new


def _terminals(start: _State) -> Iterator[Terminal]:
    seen, waiting = {start}, [start]
    while waiting:
        for terminal, follower in _all_moves(waiting.pop()):
            yield terminal
            if follower not in seen:
                seen.add(follower)
                waiting.append(follower)
