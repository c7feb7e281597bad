"""`python -m dafka_conformance` is the `dafka-conformance` command."""

from dafka._entry import conformance

conformance()
