"""A broker with its coordinators: each has its own settings, and its groups have theirs."""

from __future__ import annotations

import gc
from typing import Any

import attrs

from dafka.broker.broker import SOURCE_READS_MAX, StartupProgress
from dafka.broker.core.coordination.effects import Answer
from dafka.broker.core.coordination.state_records import SHARDS
from dafka.broker.core.groups.settings import GroupSettings
from dafka.broker.core.groups.share.settings import ShareSettings
from dafka.broker.core.metadata.commands import AlterGroupSettings, Order
from dafka.broker.core.transactions.coordinator import TransactionSettings
from dafka.config import Config
from dafka.steady_clock import steady_now_ms
from tests.http.running import open_broker_service


async def test_coordinators_have_the_settings_of_their_broker_and_groups_their_own() -> None:
    own = {
        "consumer_session_timeout_ms": 11_000,
        "share_members_max": 7,
        "rebalance_delay_ms": 13,
        "session_timeout_min_ms": 1_234,
    }
    config = Config().with_kafka(**own)  # type: ignore[arg-type]
    async with open_broker_service(config=config) as broker:
        shards: list[Any] = list(broker._coordinators.served())
        assert [each.log.number for each in shards] == [*range(SHARDS)]
        for shard in shards:
            expected = GroupSettings(
                group_consumer_session_timeout_ms=11_000,
                group_share_session_timeout_ms=11_000,
                group_share_max_size=7,
                group_initial_rebalance_delay_ms=13,
                group_min_session_timeout_ms=1_234,
                groups_max=GroupSettings().groups_max // SHARDS,
            )
            found = shard.groups._settings
            assert attrs.evolve(found, own_timeout_of=expected.own_timeout_of) == expected
            ids_max = TransactionSettings().transactional_ids_max // SHARDS
            assert shard.transactions._settings == TransactionSettings(transactional_ids_max=ids_max)
        calls = [each.transactions.init_producer_id(0, None, 0, None, steady_now_ms()) for each in shards * 3]
        results: list[Any] = [each.result for actions in calls for each in actions if isinstance(each, Answer)]
        ids = [each.producer.producer_id for each in results]
        assert len(set(ids)) == len(ids) == 3 * SHARDS

        timeout_of, state = shards[0].groups._settings.own_timeout_of, broker.node.tables.state
        assert [timeout_of("g", each) for each in ("consumer", "share")] == [None, None]
        assert broker._share_settings_of("g") == ShareSettings()
        settings = {
            "share.session.timeout.ms": "5000",
            "share.delivery.count.limit": "9",
            "errors.deadletterqueue.topic.name": "dead",
        }
        assert state.apply(Order(AlterGroupSettings("g", settings))).reason == ""
        assert [timeout_of("g", each) for each in ("consumer", "share")] == [None, 5000]
        assert [broker.group_setting("g", f"{each}.session.timeout.ms") for each in ("consumer", "share")] == [
            "11000",
            "5000",
        ]
        shares = broker._share_settings_of("g")
        assert (shares.limits.delivery_count_max, shares.dead_letter_topic) == (9, "dead")
        assert broker._share_settings_of("h") == ShareSettings()
        one = broker.reads_of("ada")
        assert broker.reads_of("ada") is one is not broker.reads_of("bob")
        assert one.total_tokens == SOURCE_READS_MAX
        del one
        gc.collect()
        assert not broker._reads, "a source without reads takes no memory"


def test_a_broker_that_starts_says_what_it_waits_for() -> None:
    progress, node = StartupProgress(), attrs.make_class("Node", ["joining"])
    joining = attrs.make_class("Joining", ["waits_for"])
    assert str(progress) == "it reads its storage"
    for waits_for, expected in (("others", "others"), ("", "it loads the logs of groups and transactions")):
        progress.node = node(joining(waits_for))
        assert str(progress) == expected
