"""Records as lines: what is written to a producer's standard input, and read from a consumer's standard output.

Only a line feed ends a line. Everything works on lists of records and on large runs of octets, never on single lines
with a wait between them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import attrs

from dafka_conformance.targets.base import Delivery
from dafka_conformance.targets.toml_tables import Template

OUTPUT_PLACEHOLDERS = frozenset({"topic", "address", "sequence", "content"})


@attrs.frozen
class InputFormat:
    """How a producer is given records.

    Attributes:
        before: what stands before a record's content in its line.
        after: what stands behind it.
    """

    before: bytes
    after: bytes

    @classmethod
    def from_template(cls, template: Template) -> InputFormat:
        """Reads `{content}`, with anything before and behind it. Raises `ValueError` for what is no single line."""
        names = [name for _, name in template.parts if name is not None]
        if names != ["content"]:
            raise ValueError("expected {content} once, and no other placeholder")
        before, after = template.fill({"content": b"\n"}).split(b"\n", 1)
        if b"\n" in after or template.parts[0][0] != before:
            raise ValueError("expected a single line")
        return cls(before, after)

    def format(self, contents: Sequence[bytes]) -> bytes:
        """The records' lines, one behind the other."""
        if not contents:
            return b""
        between = self.after + b"\n" + self.before
        return b"".join((self.before, between.join(contents), self.after, b"\n"))


@attrs.frozen
class OutputFormat:
    """How a consumer prints records.

    Attributes:
        template: a record's line; addresses and sequences have no spaces in them, the content is all that is left.
    """

    template: Template

    @classmethod
    def from_template(cls, template: Template) -> OutputFormat:
        """Reads a line's format. Raises `ValueError` where lines of it could not be told apart again."""
        names = [name for _, name in template.parts if name is not None]
        if set(names) - OUTPUT_PLACEHOLDERS or len(set(names)) != len(names):
            raise ValueError("expected each of {topic}, {address}, {sequence} and {content} at most once, and no other")
        if not names or names[-1] != "content":
            raise ValueError("expected {content} as the last placeholder")
        pairs = zip(template.parts, template.parts[1:], strict=False)
        if any(name is not None and not literal for (_, name), (literal, _) in pairs):
            raise ValueError("expected a space, or something else, between two placeholders")
        if any(b"\n" in literal for literal, _ in template.parts):
            raise ValueError("expected a single line")
        return cls(template)

    @property
    def tells_topic(self) -> bool:
        """Does a line say which topic its record is of?"""
        return "topic" in self.template.placeholders

    def parser(self, topic: bytes) -> LineParser:
        """Reads the lines of a consumer of this topic. A topic with spaces in it is recognised if it is this one."""
        patterns = {
            # The topic asked for comes first: a space in it would otherwise end it.
            "topic": b"(?P<topic>%b|[^ ]*)" % re.escape(topic),
            "address": rb"(?P<address>[^ ]+)",
            "sequence": rb"(?P<sequence>[0-9]{1,20})",
            "content": rb"(?P<content>.*)",
        }
        pattern = b"".join(
            re.escape(literal) + (b"" if name is None else patterns[name]) for literal, name in self.template.parts
        )
        return LineParser(re.compile(pattern, re.DOTALL))


class LineParser:
    """Puts a consumer's output together into lines, and reads these.

    Attributes:
        strays: lines that are no records, since they were last taken away.
    """

    def __init__(self, pattern: re.Pattern[bytes]) -> None:
        self.unparsed_lines: list[bytes] = []
        self._pattern = pattern
        self._begun: list[bytes] = []

    def feed(self, chunk: bytes) -> list[Delivery]:
        """The records whose lines end in this chunk."""
        lines, end, rest = chunk.rpartition(b"\n")
        found: list[Delivery] = []
        if end:
            found = self._parse(b"".join([*self._begun, lines]).split(b"\n"))
            self._begun.clear()
        if rest:
            self._begun.append(rest)
        return found

    def finish(self) -> list[Delivery]:
        """The record in a last line that has no end."""
        found = self._parse([b"".join(self._begun)]) if self._begun else []
        self._begun.clear()
        return found

    def _parse(self, lines: list[bytes]) -> list[Delivery]:
        found = []
        for line in lines:
            match = self._pattern.fullmatch(line)
            if match is None:
                self.unparsed_lines.append(line)
                continue
            parts = match.groupdict()
            sequence = parts.get("sequence")
            found.append(
                Delivery(
                    parts["content"],
                    parts.get("topic"),
                    parts.get("address"),
                    None if sequence is None else int(sequence),
                )
            )
        return found
