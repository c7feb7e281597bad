"""Quotas that clients set are those that they are shown, and the ones that count for what they do then."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from random import Random
from typing import Any, TypeAlias

import pytest

from dafka.batches import encode_batch
from dafka.broker.core.error_codes import ErrorCode
from dafka.kafka.protocol.constants import ApiKey
from tests.kafka.apis.door import Client, Door, of_logs, open_door
from tests.kafka.share_member import ShareMember
from tests.waiting import poll_until

Entity: TypeAlias = tuple[tuple[str, str | None], ...]
"""Types and names. The name is None for the default."""

RATES = ["producer_byte_rate", "consumer_byte_rate", "controller_mutation_rate"]


@pytest.fixture(scope="module")
def door() -> Iterator[Door]:
    with open_door() as found:
        yield found


def alter(client: Client, *entries: tuple[Entity, dict[str, float | None]], validate_only: bool = False) -> list[Any]:
    asked = [
        {
            "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
            "ops": [
                {"key": key, "value": 0.0 if value is None else value, "remove": value is None}
                for key, value in limits.items()
            ],
        }
        for entity, limits in entries
    ]
    answer = client.ask(ApiKey.ALTER_CLIENT_QUOTAS, 1, entries=asked, validate_only=validate_only)
    for each, (entity, _) in zip(answer["entries"], entries, strict=True):
        assert [(part["entity_type"], part["entity_name"]) for part in each["entity"]] == list(entity)
    return [(each["error_code"], each["error_message"]) for each in answer["entries"]]


def ask(client: Client, *components: tuple[str, int, str | None], strict: bool = False, version: int = 1) -> Any:
    asked = [{"entity_type": kind, "match_type": match, "match": name} for kind, match, name in components]
    return client.ask(ApiKey.DESCRIBE_CLIENT_QUOTAS, version, components=asked, strict=strict)


def describe(client: Client, *components: tuple[str, int, str | None], strict: bool = False) -> dict[Entity, Any]:
    answer = ask(client, *components, strict=strict)
    assert answer["error_code"] == ErrorCode.NONE
    return {
        tuple((part["entity_type"], part["entity_name"]) for part in each["entity"]): {
            value["key"]: value["value"] for value in each["values"]
        }
        for each in answer["entries"]
    }


def is_selected(entity: Entity, components: list[tuple[str, int, str | None]], *, strict: bool) -> bool:
    """Return whether a filter selects an entity, as Kafka's documentation says it."""
    names = dict(entity)
    for kind, match, name in components:
        if kind not in names or (match == 0 and names[kind] != name) or (match == 1 and names[kind] is not None):
            return False
    return not strict or {kind for kind, _, _ in components} == {*names}


def test_what_is_set_is_shown_by_every_filter_that_selects_it(door: Door) -> None:
    draw, model = Random(1), dict[Entity, dict[str, float]]()
    entities: list[Entity] = [
        tuple((kind, name) for kind, name in (("user", user), ("client-id", client)) if name != "-")
        for user, client in product(("a", "b", None, "-"), repeat=2)
        if (user, client) != ("-", "-")
    ]
    with door.connect() as client:
        for _ in range(60):
            entity = draw.choice(entities)
            limits = {each: draw.choice([1.0, 0.5, 2.0**53, None]) for each in draw.sample(RATES, draw.randint(1, 2))}
            assert alter(client, (entity, limits)) == [(ErrorCode.NONE, None)]
            known = model.setdefault(entity, {})
            for key, value in limits.items():
                known.pop(key, None)
                if value is not None:
                    known[key] = value
            if not known:
                del model[entity]
            components: list[tuple[str, int, str | None]] = [
                (kind, draw.choice([0, 1, 2]), draw.choice("ab"))
                for kind in draw.sample(["user", "client-id", "ip"], draw.randint(0, 2))
            ]
            strict = draw.random() < 0.5
            expected = {each: limits for each, limits in model.items() if is_selected(each, components, strict=strict)}
            assert describe(client, *components, strict=strict) == expected
        assert describe(client) == model
        assert alter(client, *((each, dict.fromkeys(RATES)) for each in entities)) == [(0, None)] * len(entities)
        assert describe(client) == {}


def test_an_address_is_found_in_any_form(door: Door) -> None:
    limits: dict[str, float | None] = {"connection_creation_rate": 7.0}
    with door.connect() as client:
        assert alter(client, ((("ip", "2001:DB8:0::1"),), limits)) == [(ErrorCode.NONE, None)]
        for name, is_found in (("2001:DB8:0::1", True), ("2001:db8::1", True), ("2001:db8::2", False), ("a", False)):
            expected = {(("ip", "2001:db8::1"),): limits} if is_found else {}
            assert describe(client, ("ip", 0, name)) == expected, name
        alter(client, ((("ip", "2001:db8::1"),), {"connection_creation_rate": None}))


def test_what_is_no_quota_is_refused_by_itself(door: Door) -> None:
    user: Entity = (("user", "anne"),)
    wrong: list[tuple[Entity, dict[str, float | None], ErrorCode, str]] = [
        (user, {"request_percentage": 50.0}, ErrorCode.INVALID_REQUEST, "cannot be measured here"),
        ((("user", "b"),), {"producer_byte_rate": -1.0}, ErrorCode.INVALID_REQUEST, "expected a number above 0"),
        ((("user", "c"),), {"producer_byte_rate": 1.0, "x": 1.0}, ErrorCode.INVALID_REQUEST, "there is no quota 'x'"),
        ((), {"producer_byte_rate": 1.0}, ErrorCode.INVALID_REQUEST, "the entity is empty"),
        ((("user", ""),), {"producer_byte_rate": 1.0}, ErrorCode.INVALID_REQUEST, "the name of the user is empty"),
        ((*user, ("user", "d")), {"producer_byte_rate": 1.0}, ErrorCode.INVALID_REQUEST, "names a type twice"),
        ((("user", "e"),), {"producer_byte_rate": 1.0}, ErrorCode.INVALID_REQUEST, "names it more than once"),
        ((("user", "e"),), {"producer_byte_rate": None}, ErrorCode.INVALID_REQUEST, "names it more than once"),
        ((("ip", "localhost"),), {"connection_creation_rate": 1.0}, ErrorCode.INVALID_REQUEST, "expected an address"),
        ((("ip", "::1"),), {"connection_creation_rate": 0.5}, ErrorCode.INVALID_REQUEST, "expected a whole number"),
        ((("ip", "::2"),), {"connection_creation_rate": 0.0}, ErrorCode.INVALID_REQUEST, "expected a number above 0"),
        ((("group", "g"),), {"producer_byte_rate": 1.0}, ErrorCode.UNSUPPORTED_VERSION, "for the type 'group'"),
    ]
    right: tuple[Entity, dict[str, float | None]] = ((("user", "bob"),), {"producer_byte_rate": 10.0**12})
    with door.connect() as client:
        results = alter(client, *((entity, limits) for entity, limits, _, _ in wrong), right)
        assert results.pop() == (ErrorCode.NONE, None)
        for (_, _, error, reason), found in zip(wrong, results, strict=True):
            assert (found[0], reason in found[1]) == (error, True), found
        assert alter(client, (user, {"producer_byte_rate": 1.0}), validate_only=True) == [(ErrorCode.NONE, None)]
        assert describe(client) == {right[0]: right[1]}
        assert alter(client, (right[0], {"producer_byte_rate": None})) == [(ErrorCode.NONE, None)]
        for components, error in (
            ([("user", 0, None)], ErrorCode.INVALID_REQUEST),
            ([("user", 3, "a")], ErrorCode.INVALID_REQUEST),
            ([("user", 2, None), ("user", 1, None)], ErrorCode.INVALID_REQUEST),
            ([("group", 2, None)], ErrorCode.UNSUPPORTED_VERSION),
        ):
            answer = ask(client, *components)
            assert (answer["error_code"], answer["entries"], bool(answer["error_message"])) == (error, None, True)


def test_quotas_count_on_connections_that_are_open_already(door: Door) -> None:
    asked = of_logs(ApiKey.PRODUCE, {("metered", 0): {"records": encode_batch(0, [bytes(1000)], timestamps=1)}})
    anonymous: Entity = (("user", "ANONYMOUS"),)
    with door.connect() as client, door.connect() as producer:
        client.create_topics("metered")
        assert producer.ask(ApiKey.PRODUCE, 7, **asked)["throttle_time_ms"] == 0
        alter(client, (anonymous, {"producer_byte_rate": 0.1}))
        assert producer.ask(ApiKey.PRODUCE, 7, **asked)["throttle_time_ms"] > 10**6
        alter(client, (anonymous, {"producer_byte_rate": None}))
    with door.connect() as producer:
        assert producer.ask(ApiKey.PRODUCE, 7, **asked)["throttle_time_ms"] == 0


def test_an_address_may_open_so_many_connections_and_no_more(door: Door) -> None:
    address: Entity = (("ip", "127.0.0.1"),)

    def is_served() -> bool:
        with door.connect() as client:
            client.send(ApiKey.API_VERSIONS, 0)
            return client.receive() is not None

    with door.connect() as client:
        assert alter(client, (address, {"connection_creation_rate": 1.0})) == [(ErrorCode.NONE, None)]
        poll_until(lambda: not is_served())
        poll_until(is_served)  # at the lowest rate, too, an administrator gets in
        alter(client, (address, {"connection_creation_rate": None}))
    assert all(is_served() for _ in range(20))


BATCH = encode_batch(0, [bytes(1000)], timestamps=1)


def fetch(servers: str, _member: ShareMember) -> Any:
    """Fetch much more than any quota here allows, from a log that has it."""
    with Client(servers) as client:
        asked = of_logs(ApiKey.FETCH, {("fetched", 0): {}}, min_bytes=10**6, max_bytes=10**6, max_wait_ms=10**7)
        return client.ask(ApiKey.FETCH, 12, **asked)


def share_fetch(_servers: str, member: ShareMember) -> Any:
    return member.fetch(max_bytes=10**6, max_records=10**4, batch_size=10**4)


def test_one_response_has_what_a_quota_allows_in_ten_seconds_or_one_batch(door: Door) -> None:
    anyone: Entity = (("client-id", None),)
    member = ShareMember(door.servers, "limited", "fetched", "a")
    with door.connect() as client, member.client:
        client.create_topics("fetched", logs=1)
        member.begin()  # the group begins at the end of the log
        for _ in range(20):
            client.append("fetched", BATCH)
        for function, rate in product((fetch, share_fetch), (1.0, 500.0)):
            alter(client, (anyone, {"consumer_byte_rate": rate}))
            answer = function(door.servers, member)
            ((part,),) = [each["partitions"] for each in answer["responses"]]
            allowed = max(10 * rate, len(BATCH))
            assert allowed - len(BATCH) < len(part["records"]) <= allowed, (function, rate)
            assert answer["throttle_time_ms"] <= 1000 * (10 + 2 * len(BATCH) / rate)
        alter(client, (anyone, {"consumer_byte_rate": None}))
