"""The grammar of RFC 46, and the frame formats, sentences and order of messages that are derived from it."""

from __future__ import annotations

from pathlib import Path

import attrs

from dafka_conformance.grammar.beacons import BeaconFormat, describe_address_fault
from dafka_conformance.grammar.formats import Formats, FrameError, Message, Value
from dafka_conformance.grammar.recognizer import Recognizer
from dafka_conformance.grammar.rules import Expression, GrammarError, read_rules
from dafka_conformance.grammar.sentences import NamedSentence, Sentence, Terminal, all_sentences
from dafka_conformance.model import Role

__all__ = [
    "BeaconFormat",
    "Formats",
    "FrameError",
    "Grammar",
    "GrammarError",
    "Message",
    "NamedSentence",
    "Recognizer",
    "Sentence",
    "Terminal",
    "Value",
    "describe_address_fault",
]

GRAMMAR_PATH = Path(__file__).with_name("dafka.abnf")


@attrs.frozen
class Grammar:
    """A compiled grammar file.

    Attributes:
        rules: The rules as expressions, by name.
        formats: The message rules.
        node_beacon: The rule NODE-BEACON.
        tower_beacon: The rule TOWER-BEACON.
        sentences: The sentences of the traffic rules.
    """

    rules: dict[str, Expression]
    formats: Formats
    node_beacon: BeaconFormat
    tower_beacon: BeaconFormat
    sentences: list[NamedSentence]

    @classmethod
    def load(cls, path: Path = GRAMMAR_PATH) -> Grammar:
        """Read and compile a grammar file. Raise `GrammarError` if it is not a grammar of Dafka."""
        rules = read_rules(path)
        return cls(
            rules,
            Formats.compile(rules),
            BeaconFormat.compile("NODE-BEACON", rules),
            BeaconFormat.compile("TOWER-BEACON", rules),
            all_sentences(rules),
        )

    def roles_of(self, message: str) -> list[Role]:
        """Return the roles that send a message, by its prefixes in the traffic rules."""
        senders = {
            terminal.role
            for sentence in self.sentences
            for terminal in sentence.terminals
            if terminal.message == message
        }
        return [role for role in Role if role in senders]

    def recognizer(self) -> Recognizer:
        """Return a recognizer that has not accepted any message yet."""
        return Recognizer(self.rules)
