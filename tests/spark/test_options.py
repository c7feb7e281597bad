"""Options: their names, their values, and the errors for invalid ones."""

from __future__ import annotations

import pytest

from dafka.errors import ConfigError
from dafka.spark.options import Options, parse_subscription

ALLOWED = ("path", "subscribe", "subscribePattern", "minPartitions", "failOnDataLoss")


def options(**given: str) -> Options:
    return Options(given, ALLOWED, "reading stores")


def test_names_are_case_insensitive() -> None:
    assert options(MINPARTITIONS="5").get_int("minPartitions") == 5
    assert "subscribe" not in options(subscribepattern="x")


def test_options_of_spark_itself_are_ignored() -> None:
    options(checkpointLocation="x", queryName="y")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "subscribe_pattern",
            "option subscribe_pattern: there is no such option for reading stores; did you mean subscribePattern?",
        ),
        ("failondataLos", "did you mean failOnDataLoss?"),
        ("kafka.bootstrap.servers", "known are failOnDataLoss, minPartitions, path, subscribe, subscribePattern"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_known_one(name: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        options(**{name: "x"})
    assert sentence in str(caught.value)


@pytest.mark.parametrize("text", ["0", "-1", "many", "", "1.5", "1e3", str(2**63), "9" * 5000])
def test_invalid_numbers(text: str) -> None:
    with pytest.raises(
        ConfigError, match=r"^option minPartitions: expected a whole number from 1 to 2\*\*63 - 1, not '"
    ):
        options(minPartitions=text).get_int("minPartitions")


def test_numbers() -> None:
    assert options(minPartitions=f" {2**63 - 1} ").get_int("minPartitions") == 2**63 - 1
    assert options(minPartitions="0").get_int("minPartitions", minimum=0) == 0
    assert options().get_int("minPartitions", 7) == 7


def test_booleans() -> None:
    assert options(failOnDataLoss=" TRUE ").get_bool("failOnDataLoss", False)
    assert not options(failOnDataLoss="False").get_bool("failOnDataLoss", True)
    assert options().get_bool("failOnDataLoss", True)
    with pytest.raises(ConfigError, match=r"^option failOnDataLoss: expected true or false, not 'yes'$"):
        options(failOnDataLoss="yes").get_bool("failOnDataLoss", True)


def test_a_long_value_is_shortened_in_the_error() -> None:
    with pytest.raises(ConfigError) as caught:
        options(failOnDataLoss="x" * 10_000).get_bool("failOnDataLoss", True)
    assert len(str(caught.value)) < 250


def test_topics_by_name_and_by_pattern() -> None:
    by_name = parse_subscription(options(subscribe=" orders, naïve,orders"))
    assert by_name.topics == ("orders", "naïve")
    assert by_name.matches("orders")
    assert not by_name.matches("orders2")
    by_pattern = parse_subscription(options(subscribePattern="ord.*|x"))
    assert by_pattern.matches("orders")
    assert not by_pattern.matches("x2")  # the pattern must match the whole name
    assert parse_subscription(options()).matches("whatever")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"subscribe": "a", "subscribePattern": "b"}, "option subscribePattern: expected this or subscribe, not both"),
        ({"subscribePattern": "("}, "option subscribePattern: expected a regular expression, not '('"),
        ({"subscribe": "a,,b"}, "option subscribe: expected topics separated by commas, not 'a,,b'"),
        ({"subscribe": ""}, "option subscribe: expected topics separated by commas, not ''"),
    ],
)
def test_invalid_subscriptions(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_subscription(options(**given))
    assert str(caught.value) == sentence
