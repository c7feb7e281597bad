"""The table of clauses: reads and validates `clauses.toml`, and finds clauses by id.

The file is a list of `[[clause]]` tables with the keys of `model.Clause`. An error in it is one sentence with the file,
the clause and the expected value.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import attrs

from dafka_conformance.model import Clause, Dialect, Layer, Level, Role

GRAMMAR_SECTION = "Protocol Grammar"

BATCH_SECTION = "Record Batches"
"""The section of the clauses from RFC 46's companion about record batches (docs/spec/record-batches.md)."""

POSITION_SECTION = "Positions by Time"
"""The section of the clauses from RFC 46's companion about positions by time (docs/spec/positions-by-time.md)."""

COMPANION_SECTIONS = frozenset((BATCH_SECTION, POSITION_SECTION))

_REQUIRED: dict[str, type] = {"id": str, "section": str, "level": str, "text": str, "roles": list}
_OPTIONAL: dict[str, type] = {
    "untestable": str,
    "readings": dict,
    "holds": str,
    "absent": str,
    "erratum": int,
    "dialects": list,
    "layer": str,
}
_KEYS = _REQUIRED | _OPTIONAL
_KINDS = {str: "a text, not empty", list: "a list of roles", dict: "a table of texts", int: "a number above 0"}
_ID = re.compile(r"[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+")


class ClauseError(ValueError):
    """The clauses file is wrong. The text says where, what is wrong and what is expected."""


class UnknownClauseError(LookupError):
    """There is no clause with this id. The text suggests similar ids.

    Attributes:
        id: The unknown id.

    Args:
        clause_id: The unknown id.
        known_ids: All ids.
    """

    def __init__(self, clause_id: str, known_ids: list[str]) -> None:
        self.id = clause_id
        close = difflib.get_close_matches(clause_id, known_ids)
        hint = f"did you mean {_choice(close)}?" if close else "run dafka-conformance list --clauses to see all clauses"
        super().__init__(f"there is no clause {clause_id!r}; {hint}")


@attrs.frozen
class Clauses:
    """The clauses in the order of their file, by id.

    Raises:
        ClauseError: Two clauses have the same id.
    """

    _clauses: tuple[Clause, ...]
    _by_id: Mapping[str, Clause] = attrs.field(init=False, repr=False, eq=False)

    @_by_id.default
    def _index(self) -> Mapping[str, Clause]:
        by_id: dict[str, Clause] = {}
        for clause in self._clauses:
            if clause.id in by_id:
                raise ClauseError(f"clause {clause.id!r} is defined twice: every clause needs a unique id")
            by_id[clause.id] = clause
        return by_id

    @classmethod
    def load(cls, path: Path | None = None) -> Clauses:
        """Load the clauses of a TOML file.

        Args:
            path: The file; the suite's own clauses of RFC 46 by default.

        Returns:
            The clauses.

        Raises:
            ClauseError: The file cannot be read or is wrong.
        """
        source: Path | Traversable = resources.files(__package__) / "clauses.toml" if path is None else path
        try:
            document = tomllib.loads(source.read_text(encoding="utf-8"))
            return cls(tuple(_parse(document)))
        except OSError as error:
            raise ClauseError(f"cannot read {source}: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ClauseError(f"{source} is not TOML: {error}") from error
        except ClauseError as error:
            raise ClauseError(f"{source}: {error}") from error

    def get(self, clause_id: str) -> Clause:
        """Return the clause with this id. Raise `UnknownClauseError` if there is none."""
        try:
            return self._by_id[clause_id]
        except KeyError:
            raise UnknownClauseError(clause_id, list(self._by_id)) from None

    def with_messages(self, roles: Mapping[str, Iterable[Role]]) -> Clauses:
        """Return these clauses and one more for each message that another grammar adds.

        Args:
            roles: The roles that send each message, by the message's name.

        Returns:
            The clauses.
        """
        new = [
            Clause(
                id=f"grammar.{name}",
                section=GRAMMAR_SECTION,
                level=Level.GRAMMAR,
                text=f"A node sends {name} in the order of the traffic rules, and its frames match its rule.",
                roles=tuple(speakers),
                layer=Layer.FORM,
            )
            for name, speakers in roles.items()
            if f"grammar.{name}" not in self
        ]
        return Clauses((*self._clauses, *new)) if new else self

    def testable(self) -> tuple[Clause, ...]:
        """Return the clauses that can be tested from outside, in the order of the file."""
        return tuple(clause for clause in self._clauses if not clause.untestable)

    def __iter__(self) -> Iterator[Clause]:
        return iter(self._clauses)

    def __len__(self) -> int:
        return len(self._clauses)

    def __contains__(self, clause_id: object) -> bool:
        return clause_id in self._by_id


def _parse(document: Mapping[str, Any]) -> list[Clause]:
    for key in document:
        if key != "clause":
            raise ClauseError(f"unknown table {key!r}: expected only [[clause]] tables")
    entries = document.get("clause", [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ClauseError("expected each clause as a table [[clause]]")
    return [_parse_clause(entry, number) for number, entry in enumerate(entries, start=1)]


def _parse_clause(entry: Mapping[str, Any], number: int) -> Clause:
    """Return the clause of one table. `number` names it in errors if it has no id."""
    where = f"clause {entry['id']!r}" if entry.get("id") else f"clause no. {number}"
    for key, value in entry.items():
        if key not in _KEYS:
            raise ClauseError(f"{where} has the unknown key {key!r}: expected {_choice(list(_KEYS))}")
        # A bool is an int to isinstance, and no value of any key may be empty.
        if type(value) is not _KEYS[key] or not value or (type(value) is int and value < 0):
            raise ClauseError(f"{where}: {key} is {value!r}: expected {_KINDS[_KEYS[key]]}")
    missing = [key for key in _REQUIRED if key not in entry]
    if missing:
        raise ClauseError(f"{where} has no {' and no '.join(missing)}: add {'it' if len(missing) == 1 else 'them'}")
    if not _ID.fullmatch(entry["id"]):
        raise ClauseError(f"{where}: expected an id of words (letters, digits, hyphens) with dots, such as 'ack.sent'")
    return Clause(
        id=entry["id"],
        section=entry["section"],
        level=_level(entry["level"], where),
        text=entry["text"],
        roles=_roles(entry["roles"], where),
        untestable=entry.get("untestable", ""),
        readings=_readings(entry, where),
        holds=entry.get("holds", ""),
        erratum=entry.get("erratum", 0),
        dialects=_dialects(entry, where),
        layer=_layer(entry.get("layer", "behavior"), where),
        absent=entry.get("absent", ""),
    )


def _level(name: str, where: str) -> Level:
    try:
        return Level(name)
    except ValueError:
        levels = _choice([level.value for level in Level])
        raise ClauseError(f"{where} has the unknown level {name!r}: expected {levels}") from None


def _layer(name: str, where: str) -> Layer:
    layers = {layer.name.lower(): layer for layer in Layer}
    if name not in layers:
        raise ClauseError(f"{where} has the unknown layer {name!r}: expected {_choice(list(layers))}")
    return layers[name]


def _dialects(entry: Mapping[str, Any], where: str) -> tuple[Dialect, ...]:
    names = [dialect.value for dialect in Dialect]
    for name in entry.get("dialects", ()):
        if name not in names:
            raise ClauseError(f"{where} has the unknown dialect {name!r}: expected {_choice(names)}")
    return tuple(Dialect(name) for name in entry.get("dialects", names))


def _roles(titles: list[Any], where: str) -> tuple[Role, ...]:
    by_title = {role.title: role for role in Role}
    for title in titles:
        if title not in by_title:
            raise ClauseError(f"{where} has the unknown role {title!r}: expected {_choice(list(by_title))}")
        if titles.count(title) > 1:
            raise ClauseError(f"{where} names the role {title!r} twice: expected it once")
    return tuple(by_title[title] for title in titles)


def _readings(entry: Mapping[str, Any], where: str) -> Mapping[str, str]:
    """Return the readings of a clause: none, or at least two, and one of these must hold."""
    readings: dict[str, Any] = entry.get("readings", {})
    for name, text in readings.items():
        if not isinstance(text, str) or not text:
            raise ClauseError(f"{where}: the reading {name!r} is {text!r}: expected {_KINDS[str]}")
    if len(readings) == 1:
        raise ClauseError(f"{where} has only one reading: expected several or none")
    if readings and "holds" not in entry:
        raise ClauseError(f"{where} has readings but no 'holds': expected {_choice(list(readings))}")
    if "holds" in entry and entry["holds"] not in readings:
        among = _choice(list(readings)) if readings else "no 'holds', since there are no readings"
        raise ClauseError(f"{where}: 'holds' is {entry['holds']!r}: expected {among}")
    if "absent" in entry and entry["absent"] not in readings:
        raise ClauseError(f"{where}: 'absent' is {entry['absent']!r}: expected one of its readings")
    return MappingProxyType(readings)


def _choice(words: list[str]) -> str:
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
