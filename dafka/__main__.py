"""`python -m dafka` is the `dafka` command."""

from dafka._entry import main

main()
