"""`python -m dafka_conformance` is the command `dafka-conformance`."""

from dafka_conformance.cli import main

main(prog_name="dafka-conformance")
