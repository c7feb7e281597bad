from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

EMBEDDER = """
    import dafka
    import pytest
    import trio

    {override}

    @pytest.mark.trio
    async def test_record_goes_through(dafka_cluster):
        with trio.fail_after(20):
            async with dafka.open_producer("orders", dafka_cluster.config) as producer:
                await producer.send(b"tea")
            assert dafka_cluster.store.statistics().records_stored == 1
            assert producer.endpoint != dafka_cluster.store.endpoint
            assert dafka_cluster.config.producer.silence_ms == {silence_ms}
"""

OVERRIDE = """
    @pytest.fixture
    def dafka_config():
        return dafka.Config().with_producer(silence_ms=77)

    def test_broker_has_the_settings(dafka_kafka):
        assert dafka_kafka.bootstrap_servers.startswith("127.0.0.1:")
        assert dafka_kafka.config.producer.silence_ms == 77
"""


def test_embedder_needs_no_trio_mode(pytester: pytest.Pytester) -> None:
    defaults = EMBEDDER.format(override="", silence_ms=5000)
    own = EMBEDDER.format(override=OVERRIDE.strip(), silence_ms=77)
    pytester.makeconftest('pytest_plugins = ["dafka.testing.plugin"]')
    pytester.makepyfile(test_defaults=defaults, test_own_config=own)
    pytester.runpytest_subprocess("-W", "error").assert_outcomes(passed=3)
