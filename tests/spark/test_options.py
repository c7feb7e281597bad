"""Options: their names, their values, and the sentences for what they cannot be."""

from __future__ import annotations

import pytest

from dafka.errors import ConfigError
from dafka.spark.options import Options, read_subscription

ALLOWED = ("path", "subscribe", "subscribePattern", "minPartitions", "failOnDataLoss")


def options(**given: str) -> Options:
    return Options(given, ALLOWED, "reading stores")


def test_names_do_not_mind_case() -> None:
    assert options(MINPARTITIONS="5").get_int("minPartitions") == 5
    assert "subscribe" not in options(subscribepattern="x")


def test_sparks_own_options_are_let_through() -> None:
    options(checkpointLocation="x", queryName="y")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "subscribe_pattern",
            "option subscribe_pattern: there is none of this name for reading stores; did you mean subscribePattern?",
        ),
        ("failondataLos", "did you mean failOnDataLoss?"),
        ("kafka.bootstrap.servers", "known are failOnDataLoss, minPartitions, path, subscribe, subscribePattern"),
    ],
)
def test_an_unknown_name_is_told_the_nearest(name: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        options(**{name: "x"})
    assert sentence in str(caught.value)


@pytest.mark.parametrize("text", ["0", "-1", "many", "", "1.5", "1e3", str(2**63), "9" * 5000])
def test_no_number(text: str) -> None:
    with pytest.raises(
        ConfigError, match=r"^option minPartitions: expected a whole number from 1 up, below 2\*\*63, not '"
    ):
        options(minPartitions=text).get_int("minPartitions")


def test_numbers() -> None:
    assert options(minPartitions=f" {2**63 - 1} ").get_int("minPartitions") == 2**63 - 1
    assert options(minPartitions="0").get_int("minPartitions", minimum=0) == 0
    assert options().get_int("minPartitions", 7) == 7


def test_flags() -> None:
    assert options(failOnDataLoss=" TRUE ").get_bool("failOnDataLoss", False)
    assert not options(failOnDataLoss="False").get_bool("failOnDataLoss", True)
    assert options().get_bool("failOnDataLoss", True)
    with pytest.raises(ConfigError, match=r"^option failOnDataLoss: expected true or false, not 'yes'$"):
        options(failOnDataLoss="yes").get_bool("failOnDataLoss", True)


def test_a_long_value_is_not_repeated_whole() -> None:
    with pytest.raises(ConfigError) as caught:
        options(failOnDataLoss="x" * 10_000).get_bool("failOnDataLoss", True)
    assert len(str(caught.value)) < 250


def test_topics_by_name_and_by_pattern() -> None:
    by_name = read_subscription(options(subscribe=" orders, naïve,orders"))
    assert by_name.topics == ("orders", "naïve")
    assert by_name.matches("orders")
    assert not by_name.matches("orders2")
    by_pattern = read_subscription(options(subscribePattern="ord.*|x"))
    assert by_pattern.matches("orders")
    assert not by_pattern.matches("x2")  # the whole name is meant
    assert read_subscription(options()).matches("whatever")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"subscribe": "a", "subscribePattern": "b"}, "option subscribePattern: give it or subscribe, not both"),
        ({"subscribePattern": "("}, "option subscribePattern: expected a regular expression, not '('"),
        ({"subscribe": "a,,b"}, "option subscribe: expected topics with commas between, not 'a,,b'"),
        ({"subscribe": ""}, "option subscribe: expected topics with commas between, not ''"),
    ],
)
def test_no_subscription(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_subscription(options(**given))
    assert str(caught.value) == sentence
