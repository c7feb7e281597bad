"""The steps of scripted scenarios: given, when, then and never, with the grammar's message names.

A node is its role's letter, with a number from the second node on: `P`, `P2`, `C`, `S2`. The letter of the target's
role without a number is the target. All other nodes are scripted peers, which join when a step first names them.

    given P holds 0..9                 P has these records, and answers FETCH and GET-HEADS by itself
    given S2 holds 0..9 of P           S2 does the same for P's partition
    given S stored 0..9 of P           the target store has acknowledged these records
    given P published 10               the target producer has published 10 records, without an ACK
    given P2 on "other"                P2 has another topic

    when P:RECORD 0..9                 a peer sends these messages; fields that are not named have their usual values
    when P:RECORD 3 version=02         a peer sends a malformed message: `signature`, `version` and `id` (in hex), `cut`
                                       and `append` (a number of bytes), `frames` (a number of frames to add)
    when P publishes 3                 the target producer is given 3 records
    when P leaves                      a peer disappears without notice
    when S is killed; when S restarts; when the tower restarts
    when 1.5 s pass

    then S:ACK 9 topic=P               the target sends this in time; the named fields must match
    then S:DIRECT-RECORD 0..9          the target sends each of these in order, to the last requestor
    then C delivers 0..9 of P          the target delivers these records in order, once each
    then S subscribes RECORD           the target has this subscription at a peer; topic=... as for messages
    then S lives                       the target is still running
    never S:ACK topic=P2               the target has not sent this since the script began
    never C delivers 5..9 of P         the target has not delivered these records

Values are numbers, "text", hex:00FF, `topic` (the testbed's topic), or a node, which stands for its address. A step may
end with the clauses that it tests, in brackets; otherwise it tests the scenario's first clause.
"""

from __future__ import annotations

import re

import attrs

_CLAUSE = re.compile(r"\s*\[([a-zA-Z0-9.\- ,]+)\]\s*$")
_WORD = re.compile(r'(?:[^\s"]|"[^"]*")+')
_RANGE = re.compile(r"(\d+)(?:\.\.(\d+))?")
_MESSAGE = re.compile(r"([PCST]\d?):([A-Z][A-Z-]*[A-Z])(?:\s+(.*))?", re.DOTALL)
_ACTIONS = (
    ("holds", re.compile(r"(?P<node>[PS]\d?) holds (?P<range>\d+(?:\.\.\d+)?)(?: of (?P<of>P\d?))?")),
    ("stored", re.compile(r"(?P<node>S) stored (?P<range>\d+(?:\.\.\d+)?) of (?P<of>P\d?)")),
    ("published", re.compile(r"(?P<node>P) published (?P<count>\d+)")),
    ("publishes", re.compile(r"(?P<node>P) publishes (?P<count>\d+)")),
    ("on", re.compile(r"(?P<node>[PCS]\d?) on (?P<value>\S.*)")),
    ("leaves", re.compile(r"(?P<node>[PCS]\d?) leaves")),
    ("killed", re.compile(r"(?P<node>[PCST]) is killed")),
    ("restarts", re.compile(r"(?P<node>[PCST]) restarts")),
    ("tower", re.compile(r"the tower restarts")),
    ("pass", re.compile(r"(?P<seconds>\d+(?:\.\d+)?) s pass")),
    ("delivers", re.compile(r"(?P<node>C) delivers (?P<range>\d+(?:\.\.\d+)?)(?: of (?P<of>P\d?))?")),
    ("subscribes", re.compile(r"(?P<node>[PCS]) subscribes (?P<message>[A-Z-]+)(?:\s+topic=(?P<value>\S+))?")),
    ("lives", re.compile(r"(?P<node>[PCST]) lives")),
    ("joins", re.compile(r"(?P<node>[PCS]\d?)(?: joins)?")),
)
_ALLOWED = {
    "given": {"holds", "stored", "published", "on", "joins"},
    "when": {"publishes", "leaves", "killed", "restarts", "tower", "pass", "joins", "send"},
    "then": {"delivers", "subscribes", "lives", "send"},
    "never": {"delivers", "subscribes", "send"},
}


class ScriptError(Exception):
    """A script or one of its steps is wrong. The text says which, and what is expected."""


@attrs.frozen
class Step:
    """A parsed step.

    Attributes:
        text: The step as written.
        keyword: given, when, then or never.
        action: The action or expectation: "send" for messages, otherwise the verb.
        node: The label of the node that acts; empty for the tower and for time.
        message: The message's name, for "send" and "subscribes".
        first, last: The sequences; -1 if the step has none.
        of: The label of the producer whose partition is meant; empty for the usual one.
        count: The number of records to publish.
        seconds: The duration, for "pass".
        values: The fields that are named, as written.
        clauses: The clauses that it tests.
    """

    text: str
    keyword: str
    action: str
    node: str = ""
    message: str = ""
    first: int = -1
    last: int = -1
    of: str = ""
    count: int = 0
    seconds: float = 0.0
    values: dict[str, str] = attrs.field(factory=dict)
    clauses: tuple[str, ...] = ()


def read_step(text: str) -> Step:
    """Parse a step. Raise `ScriptError` if it is wrong."""
    line = text.strip()
    clauses: tuple[str, ...] = ()
    match = _CLAUSE.search(line)
    if match:
        line, clauses = line[: match.start()], tuple(part.strip() for part in match[1].split(","))
    keyword, _, rest = line.partition(" ")
    if keyword not in _ALLOWED:
        raise ScriptError(f"{text!r}: expected given, when, then or never at its beginning")
    step = _read_message(text, keyword, rest) or _read_action(text, keyword, rest)
    if step is None or step.action not in _ALLOWED[keyword]:
        raise ScriptError(f"{text!r}: {rest!r} is not a step that can follow {keyword!r}")
    return attrs.evolve(step, clauses=clauses)


def _read_message(text: str, keyword: str, rest: str) -> Step | None:
    match = _MESSAGE.fullmatch(rest)
    if match is None:
        return None
    node, message, arguments = match.groups()
    first = last = -1
    values: dict[str, str] = {}
    for word in _WORD.findall(arguments or ""):
        name, is_named, value = word.partition("=")
        if is_named:
            values[name] = value
        elif _RANGE.fullmatch(word) and first < 0:
            first, last = _read_range(word)
        else:
            raise ScriptError(f"{text!r}: expected a sequence such as 3 or 0..9, or field=value, not {word!r}")
    return Step(text, keyword, "send", node, message, first, last, values=values)


def _read_action(text: str, keyword: str, rest: str) -> Step | None:
    for action, pattern in _ACTIONS:
        match = pattern.fullmatch(rest)
        if match is None:
            continue
        parts = {name: value for name, value in match.groupdict().items() if value is not None}
        first, last = _read_range(parts["range"]) if "range" in parts else (-1, -1)
        return Step(
            text,
            keyword,
            action,
            parts.get("node", ""),
            parts.get("message", ""),
            first,
            last,
            parts.get("of", ""),
            int(parts.get("count", 0)),
            float(parts.get("seconds", 0)),
            {"topic": parts["value"]} if "value" in parts else {},
        )
    return None


def _read_range(text: str) -> tuple[int, int]:
    match = _RANGE.fullmatch(text)
    assert match is not None
    return int(match[1]), int(match[2] or match[1])
