"""The conformance suite of the Dafka protocol (ZeroMQ RFC 46): any node, in any language, against the grammar.

It plays the other roles itself, over real ZeroMQ sockets, and knows nothing of the inside of what it tests. What it
expects is derived from `grammar/dafka.abnf` and listed, clause by clause, in `clauses.toml`.
"""
