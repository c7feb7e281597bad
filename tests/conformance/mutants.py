"""Nodes of ours that are broken on purpose, and the scenario that is to find each out."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest

from dafka.wire.primitives import FrameReader
from dafka_conformance.model import Dialect
from dafka_conformance.targets.base import Target


@attrs.frozen
class Mutant:
    """A way to break a role.

    Attributes:
        name: role and fault, as in `store-acks-unstored`.
        scenario: the scenario that is meant to find it.
        clause: the clause that it is found to violate.
        message: a part of the finding's text, by which a reader knows what is wrong.
        apply: breaks the role, for as long as the monkeypatch lasts.
        dialect: the dialect that is spoken.
        target: makes the target that is broken, for a fault that takes processes; else `embedded` is, by `apply`.
    """

    name: str
    scenario: str
    clause: str
    message: str
    apply: Callable[[pytest.MonkeyPatch], None]
    dialect: Dialect = Dialect.RFC46
    target: Callable[[], Target] | None = None


def accept_any(field: str, patch: pytest.MonkeyPatch) -> None:
    """A field that has one value by the grammar is read, and not looked at."""
    literal = FrameReader.expect_bytes

    def read(self: FrameReader, expected: bytes, name: str) -> None:
        if name == field:
            self.read_bytes(len(expected), name)
        else:
            literal(self, expected, name)

    patch.setattr(FrameReader, "expect_bytes", read)


def accept_trailing(patch: pytest.MonkeyPatch) -> None:
    """What follows a message's last field is not looked at."""
    patch.setattr(FrameReader, "expect_end", lambda _self: None)
