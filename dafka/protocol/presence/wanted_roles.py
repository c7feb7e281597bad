"""The roles that a node of each role connects to, because it has something to hear from them.

| role | hears |
| --- | --- |
| producer | ACKs, FETCHes and GET-HEADS of stores; FETCHes and GET-HEADS of consumers; the questions of observers |
| store | records and heads of producers; FETCHes, answers and greetings of all others |
| consumer | records, heads and answers of producers and stores |
| reader | answers of stores, which alone say what is durable |
| observer | everything |

Observers learn the roles and topics of nodes from their subscriptions, so every node connects to observers. Nodes whose
role is not known are wanted by all. The relation is symmetric: a node answers on connections that its peer has made.
"""

from __future__ import annotations

from dafka.wire import Role

_EVERY = (Role.PRODUCER, Role.STORE, Role.CONSUMER, Role.READER, Role.OBSERVER, Role.ANY)

WANTED_ROLES: dict[Role, tuple[Role, ...]] = {
    Role.PRODUCER: (Role.STORE, Role.CONSUMER, Role.OBSERVER, Role.ANY),
    Role.STORE: _EVERY,
    Role.CONSUMER: (Role.PRODUCER, Role.STORE, Role.OBSERVER, Role.ANY),
    Role.READER: (Role.STORE, Role.OBSERVER, Role.ANY),
    Role.OBSERVER: _EVERY,
    Role.ANY: _EVERY,
}
"""The roles that a node connects to, by its own role."""
