"""Groups and transactions through Kafka's APIs: what each version answers in each state of one group or transaction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from random import Random
from typing import Any

import pytest

from dafka import Config
from dafka.batches import encode_batch
from dafka.broker.core.error_codes import ErrorCode
from dafka.kafka.protocol.constants import ApiKey
from tests.kafka.apis.door import Client, Door, Log, logs_in, open_door

NONE = ErrorCode.NONE
UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
UNKNOWN_MEMBER, ILLEGAL = ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION
NUMBERS = count()


@pytest.fixture(scope="module")
def door() -> Iterator[Door]:
    with open_door(Config().with_kafka(rebalance_delay_ms=0, auto_create_topics="off")) as found:
        yield found


@pytest.fixture(scope="module")
def client(door: Door) -> Iterator[Client]:
    with door.connect() as found:
        found.create_topics("t", "u")
        yield found


def new_name() -> str:
    return f"name-{next(NUMBERS)}"


def join(client: Client, group: str, member: str = "", version: int = 3, **others: Any) -> dict[str, Any]:
    values = {
        "group_id": group,
        "member_id": member,
        "session_timeout_ms": 60_000,
        "rebalance_timeout_ms": 60_000,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"metadata"}],
        **others,
    }
    found: dict[str, Any] = client.ask(ApiKey.JOIN_GROUP, version, **values)
    return found


def open_group(client: Client) -> tuple[str, dict[str, Any]]:
    """Return a new stable group, and the fields that identify its only member."""
    group = new_name()
    joined = join(client, group)
    member = {"group_id": group, "member_id": joined["member_id"], "generation_id": joined["generation_id"]}
    assignments = [{"member_id": joined["member_id"], "assignment": b"assigned"}]
    assert client.ask(ApiKey.SYNC_GROUP, 3, **member, assignments=assignments)["assignment"] == b"assigned"
    return group, member


def commit(client: Client, group: str, offsets: Mapping[Log, int], version: int = 7, **member: Any) -> list[int]:
    if "generation_id" in member:
        member["generation_id_or_member_epoch"] = member.pop("generation_id")
    logs = {log: {"committed_offset": each, "committed_metadata": f"at {each}"} for log, each in offsets.items()}
    found = client.ask_logs(ApiKey.OFFSET_COMMIT, version, logs, **{"group_id": group, **member})
    return [each["error_code"] for each in found.values()]


def fetched(client: Client, version: int, *groups: str, topics: Any = None, **others: Any) -> list[dict[Log, Any]]:
    """Return what is said about the offsets of each group."""
    asked = [{"group_id": each, "topics": topics} for each in groups]
    if version < 8:
        answers = [client.ask(ApiKey.OFFSET_FETCH, version, **each, **others) for each in asked]
    else:
        answers = client.ask(ApiKey.OFFSET_FETCH, version, groups=asked, **others)["groups"]
    assert [each["error_code"] for each in answers] == [NONE] * len(groups)
    return [logs_in(ApiKey.OFFSET_COMMIT, each) for each in answers]


T0, T1, U0, U1, T2, MISSING = ("t", 0), ("t", 1), ("u", 0), ("u", 1), ("t", 2), ("unknown", 0)


@pytest.mark.parametrize("seed", range(4))
def test_any_history_of_committed_offsets_follows_a_dictionary(client: Client, seed: int) -> None:
    """Offsets are committed by a member, by groups without members and in transactions, and deleted."""
    random, stable = Random(seed), open_group(client)
    members = {stable[0]: stable[1], new_name(): {}, new_name(): {}}
    model: dict[str, dict[Log, int]] = {each: {} for each in members}
    pending: dict[str, dict[Log, int]] = {each: {} for each in members}
    superseded: dict[str, set[Log]] = {each: set() for each in members}  # by a commit after that of the transaction
    name = new_name()
    producer = begin(client, name)
    for _ in range(60):
        group, member = random.choice([*members.items()])
        offsets = {log: random.randrange(100) for log in random.sample([T0, T1, U0, U1, T2, MISSING], 3)}
        known = {log: offset for log, offset in offsets.items() if log not in {T2, MISSING}}
        errors = [NONE if log in known else UNKNOWN for log in offsets]
        kind = random.choice(["commit", "commit", "wrong", "delete", "transaction", "end"])
        if kind == "commit":
            assert commit(client, group, offsets, random.randrange(1, 10), **member) == errors
            model[group] |= known
            superseded[group] |= pending[group].keys() & known.keys()
        elif kind == "wrong" and member:
            changes: list[tuple[dict[str, Any], ErrorCode]] = [
                ({"generation_id": 0}, ILLEGAL),
                ({"member_id": "somebody"}, UNKNOWN_MEMBER),
                ({"generation_id": -1, "member_id": ""}, UNKNOWN_MEMBER),
            ]
            change, error = random.choice(changes)
            assert commit(client, group, {T0: 9}, random.randrange(1, 10), **{**member, **change}) == [error]
        elif kind == "delete" and not member and model[group]:
            found = client.ask_logs(ApiKey.OFFSET_DELETE, 0, {log: {} for log in known}, group_id=group)
            assert {each["error_code"] for each in found.values()} <= {NONE}
            model[group] = {log: offset for log, offset in model[group].items() if log not in known}
        elif kind == "transaction":
            identity = {"transactional_id": name, "group_id": group, **producer}
            assert client.ask(ApiKey.ADD_OFFSETS_TO_TXN, random.randrange(5), **identity)["error_code"] == NONE
            logs = {
                log: {"committed_offset": each, "committed_metadata": f"at {each}"} for log, each in offsets.items()
            }
            found = client.ask_logs(ApiKey.TXN_OFFSET_COMMIT, random.randrange(3), logs, **identity)
            assert [each["error_code"] for each in found.values()] == errors
            pending[group] |= known
            superseded[group] -= known.keys()
        elif kind == "end" and any(pending.values()):
            is_committed = random.random() < 0.5
            assert end(client, name, producer, is_committed=is_committed) == NONE
            for each, offsets in pending.items():
                newer = {log: offset for log, offset in offsets.items() if log not in superseded[each]}
                model[each] |= newer if is_committed else {}
                offsets.clear()
                superseded[each].clear()
        check_offsets(client, random, model, pending)
    client.ask(ApiKey.END_TXN, 2, transactional_id=name, committed=False, **producer)


def check_offsets(
    client: Client, random: Random, model: dict[str, dict[Log, int]], pending: dict[str, dict[Log, int]]
) -> None:
    version = random.randrange(1, 10)
    topics = [{"name": "t", "partition_indexes": [1, 0]}, {"name": "unknown", "partition_indexes": [0]}]
    for group, found in zip(model, fetched(client, version, *model, topics=topics), strict=True):
        expected = {log: model[group].get(log, -1) for log in (T1, T0, MISSING)}
        assert {log: (each["committed_offset"], each["error_code"]) for log, each in found.items()} == {
            log: (offset, NONE) for log, offset in expected.items()
        }
    if version >= 2:
        for group, found in zip(model, fetched(client, version, *model), strict=True):
            assert {log: (each["committed_offset"], each["metadata"]) for log, each in found.items()} == {
                log: (offset, f"at {offset}") for log, offset in model[group].items()
            }
    if version >= 7:
        for group, found in zip(
            model, fetched(client, version, *model, topics=topics, require_stable=True), strict=True
        ):
            unstable = {log for log, each in found.items() if each["error_code"] == ErrorCode.UNSTABLE_OFFSET_COMMIT}
            assert unstable == {T0, T1} & pending[group].keys()


@pytest.mark.parametrize("version", range(6))
def test_coordinators_are_found_by_the_kind_of_key(client: Client, version: int) -> None:
    for kind, error in ((0, NONE), (1, NONE), (2, ErrorCode.INVALID_REQUEST)) if version else ((0, NONE),):
        asked = {"key": "k", "key_type": kind} if version < 4 else {"coordinator_keys": ["k", "l"], "key_type": kind}
        answer = client.ask(ApiKey.FIND_COORDINATOR, version, **asked)
        found = [answer] if version < 4 else answer["coordinators"]
        assert [each.get("key", "k") for each in found] == ["k", "l"][: len(found)]
        for each in found:
            assert (each["error_code"], each["node_id"]) == (error, -1 if error else 0)
            port = int(client.socket.getpeername()[1])
            assert (each["host"], each["port"]) == (("", -1) if error else ("127.0.0.1", port))


def begin(client: Client, name: str | None, version: int = 1, **others: Any) -> dict[str, Any]:
    values = {"transactional_id": name, "transaction_timeout_ms": 60_000, **others}
    found = client.ask(ApiKey.INIT_PRODUCER_ID, version, **values)
    assert found["error_code"] == NONE
    return {"producer_id": found["producer_id"], "producer_epoch": found["producer_epoch"]}


def add(client: Client, name: str, producer: dict[str, Any], *logs: tuple[str, int], version: int = 2) -> list[int]:
    fields = {
        **producer,
        "transactional_id": name,
        "topics": [{"name": topic, "partitions": [log]} for topic, log in logs],
    }
    found = client.ask(
        ApiKey.ADD_PARTITIONS_TO_TXN, version, **{f"v3_and_below_{key}": value for key, value in fields.items()}
    )
    results = [each["results_by_partition"][0] for each in found["results_by_topic_v3_and_below"]]
    return [each["partition_error_code"] for each in results]


def end(client: Client, name: str, producer: dict[str, Any], *, is_committed: bool = True, version: int = 2) -> int:
    values = {**producer, "transactional_id": name, "committed": is_committed}
    return int(client.ask(ApiKey.END_TXN, version, **values)["error_code"])


def test_logs_are_added_to_the_transaction_of_the_newest_producer_all_or_none(client: Client) -> None:
    name = new_name()
    old, new = begin(client, name), begin(client, name)
    for version in range(4):
        expected = [ErrorCode.OPERATION_NOT_ATTEMPTED, UNKNOWN]
        assert add(client, name, new, ("t", 0), ("unknown", 0), version=version) == expected
    assert end(client, name, new) == ErrorCode.INVALID_TXN_STATE, "nothing was added"
    assert add(client, name, new, ("t", 0), ("u", 1)) == [NONE, NONE]
    assert [end(client, name, each) for each in (old, new)] == [ErrorCode.PRODUCER_FENCED, NONE]


def test_producers_of_a_log_are_described(client: Client) -> None:
    name = new_name()
    producer = begin(client, name)
    for sequence in range(2):
        assert add(client, name, producer, ("u", 0)) == [NONE]
        batch = encode_batch(0, [b"x"], timestamps=5, base_sequence=sequence, is_transactional=True, **producer)
        offset = client.append("u", batch, transactional_id=name)
        for is_open in (True, False):
            asked = [{"name": topic, "partition_indexes": [0, 9]} for topic in ("unknown", "u")]
            unknown, known = client.ask(ApiKey.DESCRIBE_PRODUCERS, 0, topics=asked)["topics"]
            assert [each["error_code"] for each in unknown["partitions"]] == [UNKNOWN, UNKNOWN]
            log, missing = known["partitions"]
            assert missing["error_code"] == UNKNOWN
            state = next(each for each in log["active_producers"] if each["producer_id"] == producer["producer_id"])
            assert (state["producer_epoch"], state["last_sequence"]) == (producer["producer_epoch"], sequence)
            assert state["current_txn_start_offset"] == (offset if is_open else -1)
            if is_open:
                assert end(client, name, producer) == NONE
