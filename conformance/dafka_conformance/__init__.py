"""The conformance suite of the Dafka protocol (ZeroMQ RFC 46), for implementations in any language.

The suite starts one node of an implementation (the target), runs scripted peers for the other roles over real ZeroMQ
sockets, and checks every message of the target. It does not use the target's internals. The requirements come from
`grammar/dafka.abnf` and are listed, clause by clause, in `clauses.toml`.
"""
