"""The table of clauses: reads `clauses.toml`, checks it, and finds a clause by its name.

The file is a list of `[[clause]]` tables with the keys of `model.Clause`. A mistake in it is reported as one sentence
that names the file, the clause and what would be right. Nothing else of the suite reads the file.
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

from dafka_conformance.model import Clause, Dialect, Level, Role

GRAMMAR_SECTION = "Protocol Grammar"

_REQUIRED: dict[str, type] = {"id": str, "section": str, "level": str, "text": str, "roles": list}
_OPTIONAL: dict[str, type] = {"untestable": str, "readings": dict, "holds": str, "erratum": int, "dialects": list}
_KEYS = _REQUIRED | _OPTIONAL
_KINDS = {str: "a text that is not empty", list: "a list of roles", dict: "a table of texts", int: "a number above 0"}
_ID = re.compile(r"[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+")


class ClauseError(ValueError):
    """The table is not as it has to be; the text says where, what is wrong and what would be right."""


class UnknownClauseError(LookupError):
    """There is no clause of that name; the text suggests those that are spelt alike.

    Attributes:
        id: the name that was asked for.
    """

    def __init__(self, clause_id: str, known_ids: list[str]) -> None:
        self.id = clause_id
        close = difflib.get_close_matches(clause_id, known_ids)
        hint = f"did you mean {_choice(close)}?" if close else "`dafka-conformance list --clauses` shows them all"
        super().__init__(f"there is no clause {clause_id!r}; {hint}")


@attrs.frozen
class Clauses:
    """Clauses in the order of their file, each under a name of its own.

    Raises `ClauseError` where two have the same name.
    """

    _clauses: tuple[Clause, ...]
    _by_id: Mapping[str, Clause] = attrs.field(init=False, repr=False, eq=False)

    @_by_id.default
    def _index(self) -> Mapping[str, Clause]:
        by_id: dict[str, Clause] = {}
        for clause in self._clauses:
            if clause.id in by_id:
                raise ClauseError(f"clause {clause.id!r} stands there twice; every clause needs an id of its own")
            by_id[clause.id] = clause
        return by_id

    @classmethod
    def load(cls, path: Path | None = None) -> Clauses:
        """The clauses of a TOML file; without a path, those of RFC 46 that come with the suite.

        Raises `ClauseError` where the file cannot be read or is not as it has to be.
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
        """The clause of this name. Raises `UnknownClauseError` where there is none."""
        try:
            return self._by_id[clause_id]
        except KeyError:
            raise UnknownClauseError(clause_id, list(self._by_id)) from None

    def with_messages(self, roles: Mapping[str, Iterable[Role]]) -> Clauses:
        """These, and a clause for each message that another grammar adds: `roles` says who says it."""
        new = [
            Clause(
                id=f"grammar.{name}",
                section=GRAMMAR_SECTION,
                level=Level.GRAMMAR,
                text=f"A node says {name} where the traffic rules have it, and its frames are as its rule says.",
                roles=tuple(speakers),
            )
            for name, speakers in roles.items()
            if f"grammar.{name}" not in self
        ]
        return Clauses((*self._clauses, *new)) if new else self

    def testable(self) -> tuple[Clause, ...]:
        """Those that can be tested from outside, in the order of the file."""
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
            raise ClauseError(f"unknown table {key!r}; the file holds [[clause]] tables alone")
    entries = document.get("clause", [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ClauseError("'clause' is to be written as [[clause]], once for each clause")
    return [_parse_clause(entry, number) for number, entry in enumerate(entries, start=1)]


def _parse_clause(entry: Mapping[str, Any], number: int) -> Clause:
    """One table as a clause; `number` names it where it has no id."""
    where = f"clause {entry['id']!r}" if entry.get("id") else f"clause no. {number}"
    for key, value in entry.items():
        if key not in _KEYS:
            raise ClauseError(f"{where} has the unknown key {key!r}; it may be {_choice(list(_KEYS))}")
        # A bool is an int to isinstance, and no value of any key may be empty.
        if type(value) is not _KEYS[key] or not value or (type(value) is int and value < 0):
            raise ClauseError(f"{where}: {key} is {value!r}; it has to be {_KINDS[_KEYS[key]]}")
    missing = [key for key in _REQUIRED if key not in entry]
    if missing:
        raise ClauseError(f"{where} lacks {' and '.join(missing)}")
    if not _ID.fullmatch(entry["id"]):
        raise ClauseError(f"{where}: an id is words of letters, digits and hyphens with dots between, as in 'ack.sent'")
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
    )


def _level(name: str, where: str) -> Level:
    try:
        return Level(name)
    except ValueError:
        levels = _choice([level.value for level in Level])
        raise ClauseError(f"{where} has the unknown level {name!r}; it may be {levels}") from None


def _dialects(entry: Mapping[str, Any], where: str) -> tuple[Dialect, ...]:
    names = [dialect.value for dialect in Dialect]
    for name in entry.get("dialects", ()):
        if name not in names:
            raise ClauseError(f"{where} has the unknown dialect {name!r}; it may be {_choice(names)}")
    return tuple(Dialect(name) for name in entry.get("dialects", names))


def _roles(titles: list[Any], where: str) -> tuple[Role, ...]:
    by_title = {role.title: role for role in Role}
    for title in titles:
        if title not in by_title:
            raise ClauseError(f"{where} has the unknown role {title!r}; it may be {_choice(list(by_title))}")
        if titles.count(title) > 1:
            raise ClauseError(f"{where} names the role {title!r} twice; once is enough")
    return tuple(by_title[title] for title in titles)


def _readings(entry: Mapping[str, Any], where: str) -> Mapping[str, str]:
    """Several readings, of which one holds; or none of either."""
    readings: dict[str, Any] = entry.get("readings", {})
    for name, text in readings.items():
        if not isinstance(text, str) or not text:
            raise ClauseError(f"{where}: the reading {name!r} is {text!r}; it has to be {_KINDS[str]}")
    if len(readings) == 1:
        raise ClauseError(f"{where} has one reading alone; readings are for clauses that have several")
    if readings and "holds" not in entry:
        raise ClauseError(f"{where} has readings, but 'holds' does not say which is taken: {_choice(list(readings))}")
    if "holds" in entry and entry["holds"] not in readings:
        among = _choice(list(readings)) if readings else "left out, since there are no readings"
        raise ClauseError(f"{where}: {entry['holds']!r} in 'holds' is none of its readings; it may be {among}")
    return MappingProxyType(readings)


def _choice(words: list[str]) -> str:
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
