"""Runs the command `dafka-conformance` with `python -m dafka_conformance`."""

from dafka_conformance.cli import main

main(prog_name="dafka-conformance")
