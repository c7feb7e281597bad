"""The processes that send and receive: one module a system, each with `produce` and `consume`.

`python -m dafka.bench.clients MODULE ROLE TASK` runs one of them. Such a process writes a line of JSON to standard
output for each thing that happens (see `control`), and waits for a line on standard input where it says it is ready.
"""
