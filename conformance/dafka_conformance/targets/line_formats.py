"""Line formats: the records on a producer's standard input and on a consumer's standard output.

Only a line feed ends a line. The functions work on lists of records and large chunks of bytes.
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
    """The format of a record on a producer's standard input.

    Attributes:
        before: The text before the content in a line.
        after: The text after it.
    """

    before: bytes
    after: bytes

    @classmethod
    def from_template(cls, template: Template) -> InputFormat:
        """Return the format of a template with `{content}`. Raise `ValueError` if the template is not a single line."""
        names = [name for _, name in template.parts if name is not None]
        if names != ["content"]:
            raise ValueError("expected {content} once, and no other placeholder")
        before, after = template.fill({"content": b"\n"}).split(b"\n", 1)
        if b"\n" in after or template.parts[0][0] != before:
            raise ValueError("expected a single line")
        return cls(before, after)

    def format(self, contents: Sequence[bytes]) -> bytes:
        """Return the lines of records."""
        if not contents:
            return b""
        between = self.after + b"\n" + self.before
        return b"".join((self.before, between.join(contents), self.after, b"\n"))


@attrs.frozen
class OutputFormat:
    """The format of a record on a consumer's standard output.

    Attributes:
        template: The format of a line. Addresses and sequences have no spaces; the content is the rest of the line.
    """

    template: Template

    @classmethod
    def from_template(cls, template: Template) -> OutputFormat:
        """Return the format of a template. Raise `ValueError` if its lines would be ambiguous."""
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
    def has_topic(self) -> bool:
        """Whether a line contains the topic."""
        return "topic" in self.template.placeholders

    def parser(self, topic: bytes) -> LineParser:
        """Return a parser for a consumer of this topic. A topic with spaces is recognized only if it is this one."""
        patterns = {
            # The consumer's own topic is tried first, because it may contain spaces.
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
    """Assembles a consumer's output into lines and parses them.

    Attributes:
        unparsed_lines: The lines that do not match the format. The caller clears the list.

    Args:
        pattern: The pattern of a line.
    """

    def __init__(self, pattern: re.Pattern[bytes]) -> None:
        self.unparsed_lines: list[bytes] = []
        self._pattern = pattern
        self._partial_line: list[bytes] = []

    def feed(self, chunk: bytes) -> list[Delivery]:
        """Return the records whose lines end in this chunk."""
        lines, end, rest = chunk.rpartition(b"\n")
        found: list[Delivery] = []
        if end:
            found = self._parse(b"".join([*self._partial_line, lines]).split(b"\n"))
            self._partial_line.clear()
        if rest:
            self._partial_line.append(rest)
        return found

    def finish(self) -> list[Delivery]:
        """Return the record in an unterminated last line."""
        found = self._parse([b"".join(self._partial_line)]) if self._partial_line else []
        self._partial_line.clear()
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
