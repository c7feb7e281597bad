"""The limits of transactions. Names and defaults are those of Kafka's broker settings, without dots."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class TransactionSettings:
    """The limits of transactions.

    Attributes:
        transaction_max_timeout_ms: The longest timeout of a transaction.
        transactional_id_expiration_ms: How long an unused transactional id is retained.
        transactional_ids_max: The maximum number of transactional ids. Kafka has no such limit.
    """

    transaction_max_timeout_ms: int = 900_000
    transactional_id_expiration_ms: int = 7 * 24 * 3_600_000
    transactional_ids_max: int = 100_000
