"""Runs the command `dafka-conformance` with `python -m dafka_conformance`."""

from dafka._entry import conformance

conformance()
