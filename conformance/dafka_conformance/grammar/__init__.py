"""The grammar of RFC 46 as a file, and what is derived from it: frame formats, sentences, the order of messages."""

from __future__ import annotations

from pathlib import Path

import attrs

from dafka_conformance.grammar.beacons import BeaconFormat
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
    "Recogniser",
    "Sentence",
    "Terminal",
    "Value",
]

GRAMMAR_PATH = Path(__file__).with_name("dafka.abnf")


@attrs.frozen
class Grammar:
    """A grammar file, read and compiled.

    Attributes:
        rules: its rules as expressions, by name.
        formats: its message rules.
        node_beacon: the rule NODE-BEACON.
        tower_beacon: the rule TOWER-BEACON.
        sentences: the expansion of its traffic rules.
    """

    rules: dict[str, Expression]
    formats: Formats
    node_beacon: BeaconFormat
    tower_beacon: BeaconFormat
    sentences: list[NamedSentence]

    @classmethod
    def load(cls, path: Path = GRAMMAR_PATH) -> Grammar:
        """Raises `GrammarError` where the file is no grammar of the suite's kind."""
        rules = read_rules(path)
        return cls(
            rules,
            Formats.compile(rules),
            BeaconFormat.compile("NODE-BEACON", rules),
            BeaconFormat.compile("TOWER-BEACON", rules),
            all_sentences(rules),
        )

    def roles_of(self, message: str) -> list[Role]:
        """Who says a message, by its prefixes in the traffic rules."""
        said = {
            terminal.role
            for sentence in self.sentences
            for terminal in sentence.terminals
            if terminal.message == message
        }
        return [role for role in Role if role in said]

    def recognizer(self) -> Recognizer:
        """A recogniser that has heard nothing yet."""
        return Recognizer(self.rules)
