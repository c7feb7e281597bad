"""The limits of producers and transactions. Names and defaults are those of Kafka's broker settings, without dots."""

from __future__ import annotations

import attrs

from dafka.protocol.logs.producer_batches import PRODUCER_EXPIRY_MS


@attrs.frozen(kw_only=True)
class TransactionSettings:
    """The limits of producers and transactions.

    Attributes:
        transaction_max_timeout_ms: The longest timeout that a producer may ask for.
        transactional_id_expiration_ms: How long a transactional id without transactions is kept.
        transactional_ids_max: The number of transactional ids. Kafka has no such limit.
        producer_id_expiration_ms: How long a log remembers the sequences of a producer that sends nothing.
        producers_max: The number of producers that a log remembers. Beyond it the log forgets those that have sent
            nothing for the longest time, and have no open transaction there. Kafka has no such limit.
    """

    transaction_max_timeout_ms: int = 900_000
    transactional_id_expiration_ms: int = 7 * 24 * 3_600_000
    transactional_ids_max: int = 100_000
    producer_id_expiration_ms: int = PRODUCER_EXPIRY_MS
    producers_max: int = 100_000
