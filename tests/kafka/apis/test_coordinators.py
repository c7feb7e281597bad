"""What clients send about groups and transactions reaches the coordinator, and its answer reaches the clients."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple, cast

import attrs
import pytest
import trio

from dafka.broker.coordinator.coordinator_shard import CoordinatorError
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups import results
from dafka.broker.core.groups.results import (
    CommitRequest,
    DeleteOffsetsResult,
    FetchedOffset,
    JoinedMember,
    JoinRequest,
    JoinResult,
    LeaveResult,
    LeavingMember,
    OffsetToCommit,
)
from dafka.broker.core.log.producer_state import Producer
from dafka.broker.core.topic_partition import TopicPartition
from dafka.broker.core.transactions.coordinator import EndResult, InitProducerResult
from dafka.broker.core.transactions.transaction import Transaction, TransactionPhase
from dafka.kafka.protocol.constants import ApiKey
from tests.kafka.apis.door import Log, logs_in, of_logs
from tests.kafka.apis.fake_cluster import ENDPOINT, OWN, SECOND, THIRD, FakeCluster

Values = dict[str, Any]

NONE, UNKNOWN, OTHER = ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.REBALANCE_IN_PROGRESS
FENCED, ELSEWHERE = ErrorCode.PRODUCER_FENCED, ErrorCode.NOT_COORDINATOR
LOG, MISSING = TopicPartition("t", 0), TopicPartition("t", 7)


class Coordinator:
    """A coordinator of groups and of transactions that keeps what it is asked, and gives one answer."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        async def answer(*arguments: Any, **options: Any) -> Any:
            await trio.lowlevel.checkpoint()
            self.asked += [name, *arguments, *options.values()]
            if isinstance(self.answer, Exception):
                raise self.answer
            return self.answer

        return answer


async def ask(api: ApiKey, version: int, values: Values, answer: Any) -> tuple[list[Any], Values]:
    """Return what the coordinator is asked if a client sends a request, and the response made from its answer."""
    cluster, coordinator = FakeCluster(), Coordinator(answer)
    broker = cast(Any, cluster.listener.broker)
    broker.groups = broker.transactions = coordinator
    found = await cluster.ask(api, version, **values)
    return coordinator.asked, found


class Exchange(NamedTuple):
    """A request in some versions, what the coordinator is asked and answers, and what must be in the response."""

    api: ApiKey
    versions: range
    values: Values
    asked: list[Any]
    answer: Any
    expected: Values


def exchange(called: str, values: Values, asked: list[Any], answer: Any, expected: Values) -> Exchange:
    """Return the exchange of an API in its versions, such as `FETCH 0-12`."""
    api, _, versions = called.partition(" ")
    first, last = map(int, versions.split("-"))
    return Exchange(ApiKey[api], range(first, last + 1), values, asked, answer, expected)


def items(names: str, *rows: tuple[Any, ...]) -> list[Values]:
    """Return the items of a list in a message from the names of their fields, and the values of each."""
    return [dict(zip(names.split(), each, strict=True)) for each in rows]


ID: Values = {"group_id": "g", "member_id": "m", "group_instance_id": "i"}
MEMBER: Values = {**ID, "generation_id": 3}
LEAVING: Values = {"group_id": "g", "member_id": "m"}
LEFT = LeaveResult(NONE, (results.LeftMember("m", "i", OTHER), results.LeftMember("n", None, UNKNOWN)))
JOINING: Values = {**ID, "session_timeout_ms": 5, "protocol_type": "p"}
JOINED = JoinResult(OTHER, "n", 4, "q", "a", "l", True, (JoinedMember("x", "y", b"z"), JoinedMember("v", None, b"w")))
ANSWERED = {"error_code": OTHER, "generation_id": 4, "protocol_name": "a", "leader": "l", "member_id": "n"}
TYPED: Values = {"protocol_type": "q", "protocol_name": "b"}
OFFSETS: Values = {"committed_offset": 8, "committed_leader_epoch": 6, "committed_metadata": "data"}
IN_TRANSACTION: Values = {"transactional_id": "x", "producer_id": 70, "producer_epoch": 2}
ADDED: Values = {**IN_TRANSACTION, "topics": items("name partitions", ("t", [0]), ("t", [0]))}
EVERY_TRANSACTION: Values = {"state_filters": [], "producer_id_filters": []}
MADE = Producer(70, 2)
DESCRIBED = results.DescribedGroup(
    "g", OTHER, "Stable", "p", "range", 3, (results.DescribedMember("m", "i", "client", "host", b"1", b"2"),)
)


def make_transaction(name: str, **others: Any) -> Transaction:
    values = {"producer_id": 70, "started_at_ms": 8, "phase": TransactionPhase.ONGOING, **others}
    return Transaction(transactional_id=name, producer_epoch=2, transaction_timeout_ms=5, updated_at_ms=9, **values)


def exchanges() -> Iterator[Exchange]:
    for versions, asked_ms, ms, knows_id, skips in (
        ("0-0", -1, 5, False, False),
        ("1-3", 6, 6, False, False),
        ("4-8", 6, 6, True, False),
        ("9-9", 0, 0, True, True),
    ):
        joining = {
            **JOINING,
            "rebalance_timeout_ms": asked_ms,
            "protocols": items("name metadata", ("b", b"1"), ("a", b"2")),
        }
        request = JoinRequest(
            **JOINING,
            protocols=(("b", b"1"), ("a", b"2")),
            client_id="test",
            client_host="192.0.2.1",
            rebalance_timeout_ms=ms,
            requires_known_member_id=knows_id,
            supports_skipping_assignment=skips,
        )
        expected = {**ANSWERED, "skip_assignment": skips}
        if skips:
            members = items("member_id group_instance_id metadata", *JOINED.members)
            expected |= {"protocol_type": "q", "members": members}
        yield exchange(f"JOIN_GROUP {versions}", joining, ["join_group", request], JOINED, expected)
    for versions, name in (("0-6", ""), ("7-9", None)):
        refused = JoinResult(OTHER, "")
        joining = {**JOINING, "rebalance_timeout_ms": 0, "protocols": []}
        yield exchange(f"JOIN_GROUP {versions}", joining, [], refused, {"error_code": OTHER, "protocol_name": name})
    yield exchange(
        "SYNC_GROUP 5-5",
        {**MEMBER, **TYPED, "assignments": items("member_id assignment", ("b", b"1"))},
        ["sync_group", results.SyncRequest(**MEMBER, **TYPED, assignments=(("b", b"1"),))],
        results.SyncResult(OTHER, "r", "s", b"mine"),
        {"error_code": OTHER, "protocol_type": "r", "protocol_name": "s", "assignment": b"mine"},
    )
    yield exchange("HEARTBEAT 0-4", MEMBER, ["heartbeat", "g", 3, "m", "i"], OTHER, {"error_code": OTHER})
    asked: list[Any] = ["leave_group", "g", (LeavingMember("m"),)]
    yield exchange("LEAVE_GROUP 0-2", LEAVING, asked, LEFT, {"error_code": OTHER})
    for answer in (LeaveResult(UNKNOWN, LEFT.members), LeaveResult(NONE)):
        yield exchange("LEAVE_GROUP 0-2", LEAVING, asked, answer, {"error_code": answer.error_code})
    for answer in (LEFT, LeaveResult(UNKNOWN)):
        yield exchange(
            "LEAVE_GROUP 3-5",
            {"group_id": "g", "members": items("member_id group_instance_id", ("m", None), ("", "i"))},
            ["leave_group", "g", (LeavingMember("m"), LeavingMember("", "i"))],
            answer,
            {
                "error_code": answer.error_code,
                "members": items("member_id group_instance_id error_code", *answer.members),
            },
        )
    yield exchange(
        "LIST_GROUPS 5-5",
        {"states_filter": ["Empty"], "types_filter": ["classic"]},
        ["list_groups", ["Empty"], ["classic"]],
        [DESCRIBED],
        {"groups": items("group_id protocol_type group_state group_type", ("g", "p", "Stable", "classic"))},
    )
    deleted = {"results": items("group_id error_code", ("g", OTHER), ("h", NONE))}
    groups = ["g", "h"]
    yield exchange(
        "DELETE_GROUPS 0-2", {"groups_names": groups}, ["delete_groups", groups], {"g": OTHER, "h": NONE}, deleted
    )
    nothing: Values = {"group_id": "g", "topics": []}
    yield exchange(
        "OFFSET_DELETE 0-0", nothing, [], DeleteOffsetsResult(UNKNOWN), {"error_code": UNKNOWN, "topics": []}
    )
    for called, values in (
        ("LIST_GROUPS 0-5", {}),
        ("LIST_TRANSACTIONS 0-2", EVERY_TRANSACTION),
        ("OFFSET_FETCH 2-7", {"group_id": "g", "topics": None}),
    ):
        yield exchange(called, values, [], CoordinatorError(ELSEWHERE), {"error_code": ELSEWHERE})
    yield from exchanges_of_producers()


def exchanges_of_producers() -> Iterator[Exchange]:
    """Yield what producers of transactions ask. Older versions do not know the error PRODUCER_FENCED."""
    old = ErrorCode.INVALID_PRODUCER_EPOCH
    for versions, answer, error in (("0-3", FENCED, old), ("4-5", FENCED, FENCED), ("0-5", OTHER, OTHER)):
        yield exchange(
            f"INIT_PRODUCER_ID {versions}",
            {**IN_TRANSACTION, "transaction_timeout_ms": 5},
            ["init_producer_id", "x", 5, MADE],
            InitProducerResult(answer, Producer(71, 4)),
            {"error_code": error, "producer_id": 71, "producer_epoch": 4},
        )
    new = {"transactional_id": None, "transaction_timeout_ms": 0}
    yield exchange(
        "INIT_PRODUCER_ID 0-5", new, ["init_producer_id", None, 0, Producer(-1, -1)], InitProducerResult(OTHER), {}
    )
    for versions, answer, error in (("0-1", FENCED, old), ("2-3", FENCED, FENCED), ("0-3", OTHER, OTHER)):
        said = {"error_code": error}
        for is_commit, new_version in product((False, True), ([], [5]) if answer is OTHER else ([],)):
            first, last = (*new_version, *new_version) or map(int, versions.split("-"))
            ending, ended = {**IN_TRANSACTION, "committed": is_commit}, EndResult(answer, Producer(71, 4))
            own = {"producer_id": 71, "producer_epoch": 4} if new_version else {}
            asked = ["end_transaction", "x", MADE, is_commit, bool(new_version)]
            yield exchange(f"END_TXN {first}-{last}", ending, asked, ended, said | own)
        in_group = {**IN_TRANSACTION, "group_id": "g"}
        yield exchange(f"ADD_OFFSETS_TO_TXN {versions}", in_group, ["add_offsets", "x", MADE, "g"], answer, said)
        results_of_logs = items("partition_index partition_error_code", (0, error))
        yield exchange(
            f"ADD_PARTITIONS_TO_TXN {versions}",
            {f"v3_and_below_{name}": value for name, value in ADDED.items()},
            ["add_partitions", "x", MADE, [LOG, LOG]],
            answer,
            {"results_by_topic_v3_and_below": items("name results_by_partition", *[("t", results_of_logs)] * 2)},
        )


async def test_fields_of_requests_reach_the_coordinator_and_its_answer_comes_back() -> None:
    for each in exchanges():
        for version in each.versions:
            asked, found = await ask(each.api, version, each.values, each.answer)
            assert not each.asked or asked == each.asked
            assert found | each.expected == found, (each.api, version)


@pytest.mark.parametrize("version", range(5))
async def test_members_of_a_group_that_is_loaded_get_no_error_that_clients_do_not_expect(version: int) -> None:
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    _, beaten = await ask(ApiKey.HEARTBEAT, version, MEMBER, loading)
    assert beaten["error_code"] == NONE
    _, synced = await ask(ApiKey.SYNC_GROUP, version, {**MEMBER, "assignments": []}, results.SyncResult(loading))
    assert synced["error_code"] == ErrorCode.REBALANCE_IN_PROGRESS


async def test_groups_and_transactions_are_described_with_all_that_the_coordinator_knows() -> None:
    """Versions of DescribeGroups before 6 do not know that there can be no group."""
    for version, answer in product(range(7), (NONE, OTHER, ErrorCode.GROUP_ID_NOT_FOUND)):
        described = {"g": attrs.evolve(DESCRIBED, error_code=answer)}
        asked, found = await ask(ApiKey.DESCRIBE_GROUPS, version, {"groups": ["g"]}, described)
        error = OTHER if answer is OTHER else answer if version >= 6 else NONE
        names = "error_code group_id group_state protocol_type protocol_data"
        (expected,) = items(names, (error, "g", "Stable", "p", "range"))
        if version >= 4:
            names = "member_id group_instance_id client_id client_host member_metadata member_assignment"
            expected["members"] = items(names, ("m", "i", "client", "host", b"1", b"2"))
        assert (asked, found["groups"][0] | expected) == (["describe_groups", ["g"]], found["groups"][0])
    for failed, error in ((CoordinatorError(ELSEWHERE), ELSEWHERE), (None, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)):
        _, found = await ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": ["x"]}, failed)
        assert found["transaction_states"][0]["error_code"] == error
    transaction = make_transaction("x", partitions=frozenset([TopicPartition("u", 1), MISSING, LOG]))
    asked, found = await ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": ["x"]}, transaction)
    state = {**IN_TRANSACTION, "transaction_state": "Ongoing", "transaction_timeout_ms": 5, "error_code": NONE}
    topics = items("topic partitions", ("t", [0, 7]), ("u", [1]))
    assert (asked, found["transaction_states"]) == (
        ["describe_transaction", "x"],
        [{**state, "transaction_start_time_ms": 8, "topics": topics}],
    )


async def test_transactions_are_listed_that_match_every_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dafka.kafka.apis.transactions.steady_now_ms", lambda: 100)
    phases = [TransactionPhase.ONGOING, TransactionPhase.COMPLETE_COMMIT]
    known = [
        make_transaction(f"{phase.value} {producer} {start}", producer_id=producer, phase=phase, started_at_ms=start)
        for phase, producer, start in product(phases, (70, 71), (-1, 0, 90, 91, 100))
    ]
    states: list[list[str]] = [[], ["Ongoing"], ["Ongoing", "Never"], ["Empty"]]
    for wanted, producers, duration_ms, pattern in product(
        states, ([], [71], [71, 72]), (-1, 0, 10, 100, 101), (None, "", "Ong.* 9[0-9]", "70")
    ):
        values = {"state_filters": wanted, "producer_id_filters": producers, "duration_filter": duration_ms}
        asked, found = await ask(ApiKey.LIST_TRANSACTIONS, 2, {**values, "transactional_id_pattern": pattern}, known)
        assert (asked, found["unknown_state_filters"]) == (
            ["list_transactions"],
            [each for each in wanted if each == "Never"],
        )
        assert found["transaction_states"] == items(
            "transactional_id producer_id transaction_state",
            *(
                (each.transactional_id, each.producer_id, each.phase.value)
                for each in known
                if (not wanted or each.phase.value in wanted)
                and (not producers or each.producer_id in producers)
                and (duration_ms < 0 or (each.started_at_ms >= 0 and 100 - each.started_at_ms >= duration_ms))
                and (not pattern or re.fullmatch(pattern, each.transactional_id))
            ),
        )
    values = {**EVERY_TRANSACTION, "transactional_id_pattern": "("}
    asked, found = await ask(ApiKey.LIST_TRANSACTIONS, 2, values, known)
    assert (asked, found["error_code"], found["transaction_states"]) == ([], ErrorCode.INVALID_REGULAR_EXPRESSION, [])


async def test_offsets_are_committed_and_deleted_for_known_logs_in_the_name_of_their_member() -> None:
    """Only versions 2 to 4 say how long offsets are kept."""
    both: dict[Log, Values] = {LOG: OFFSETS, MISSING: OFFSETS}
    for api, versions, values, others in (
        (ApiKey.OFFSET_COMMIT, range(1, 10), {**ID, "generation_id_or_member_epoch": 3, "retention_time_ms": 5}, []),
        (ApiKey.TXN_OFFSET_COMMIT, range(5), {**MEMBER, **IN_TRANSACTION}, ["x", MADE, False]),
        (ApiKey.TXN_OFFSET_COMMIT, range(5, 6), {**MEMBER, **IN_TRANSACTION}, ["x", MADE, True]),
    ):
        for version in versions:
            kept_ms = 5 if not others and version in {2, 3, 4} else None
            asked, found = await ask(api, version, of_logs(api, both, **values), {LOG: OTHER})
            assert asked[1:] == [
                CommitRequest(**MEMBER, retention_ms=kept_ms, offsets={LOG: OffsetToCommit(8, 6, "data")}),
                *others,
            ]
            errors = {log: each["error_code"] for log, each in logs_in(api, found).items()}
            assert errors == {LOG: OTHER, MISSING: UNKNOWN}
    abortable = ErrorCode.TRANSACTION_ABORTABLE
    for version, error in [(each, ErrorCode.INVALID_TXN_STATE if each < 4 else abortable) for each in range(6)]:
        _, found = await ask(api, version, of_logs(api, both, **values), {LOG: ErrorCode.INVALID_TXN_STATE})
        assert logs_in(api, found)[LOG]["error_code"] == error
    api = ApiKey.OFFSET_DELETE
    asked, found = await ask(
        api, 0, of_logs(api, {LOG: {}, MISSING: {}}, group_id="g"), DeleteOffsetsResult(NONE, {MISSING: OTHER})
    )
    assert asked == ["delete_offsets", "g", [LOG, MISSING]]
    assert [each["error_code"] for each in logs_in(api, found).values()] == [NONE, OTHER]


@pytest.mark.parametrize("version", range(1, 10))
async def test_committed_offsets_are_read_with_their_epochs_and_errors(version: int) -> None:
    values: Values = {"group_id": "g", "topics": [{"name": "t", "partition_indexes": [7, 0]}]}
    values = {"groups": [values]} if version >= 8 else values
    found_offsets = {MISSING: FetchedOffset(-1, -1, "", UNKNOWN), LOG: FetchedOffset(8, 6, "data", NONE)}
    for is_stable in (False, True):
        asked, found = await ask(ApiKey.OFFSET_FETCH, version, {**values, "require_stable": is_stable}, found_offsets)
        assert asked == ["fetch_offsets", "g", [MISSING, LOG], is_stable]
        logs = logs_in(ApiKey.OFFSET_COMMIT, found["groups"][0] if version >= 8 else found)
        assert [(each["error_code"], each["committed_offset"], each["metadata"]) for each in logs.values()] == [
            (UNKNOWN, -1, ""),
            (NONE, 8, "data"),
        ]
        assert logs[LOG]["committed_leader_epoch"] == (6 if version >= 5 else -1)
    _, found = await ask(ApiKey.OFFSET_FETCH, version, values, CoordinatorError(ELSEWHERE))
    group = found["groups"][0] if version >= 8 else found
    assert group["error_code"] == (ELSEWHERE if version >= 2 else NONE)
    assert {each["error_code"] for each in logs_in(ApiKey.OFFSET_COMMIT, group).values()} == {ELSEWHERE}


async def test_logs_are_added_to_a_transaction_all_or_none() -> None:
    for version in range(4):
        logs = items("name partitions", ("t", [0, 7]), ("unknown", [0]))
        added = {f"v3_and_below_{name}": value for name, value in {**ADDED, "topics": logs}.items()}
        asked, found = await ask(ApiKey.ADD_PARTITIONS_TO_TXN, version, added, NONE)
        topics = {each["name"]: each["results_by_partition"] for each in found["results_by_topic_v3_and_below"]}
        names = "partition_index partition_error_code"
        known = items(names, (0, ErrorCode.OPERATION_NOT_ATTEMPTED), (7, UNKNOWN))
        assert (asked, topics) == ([], {"t": known, "unknown": items(names, (0, UNKNOWN))})


async def test_coordinators_are_found_by_the_kind_of_key_if_clients_reach_them() -> None:
    cluster, unavailable = FakeCluster(), ErrorCode.COORDINATOR_NOT_AVAILABLE
    own, second = (NONE, 0, *ENDPOINT), (NONE, 1, "fd00::1", 9093)
    keys = {"own": (OWN, own), "second": (SECOND, second), "third": (THIRD, (unavailable, -1, "", -1))}
    places = {key: cluster.broker.brokers.find(address) for key, (address, _) in keys.items()}
    cast(Any, cluster.listener.broker).coordinator_of = places.get
    names = ("error_code", "node_id", "host", "port")
    for version, kind in product(range(7), (0, 1, 2, 3)):
        answers = {**{key: each for key, (_, each) in keys.items()}, "none": (unavailable, -1, "", -1)}
        if kind == 3:
            answers = dict.fromkeys(answers, (ErrorCode.INVALID_REQUEST, -1, "", -1))
        found: list[Values] = []
        for several in [[each] for each in answers] if version < 4 else [[*answers]]:
            values = {"key": several[0]} if version < 4 else {"coordinator_keys": several}
            answer = await cluster.ask(ApiKey.FIND_COORDINATOR, version, key_type=kind, **values)
            found += [answer] if version < 4 else answer["coordinators"]
        assert [tuple(each[name] for name in names) for each in found] == [*answers.values()]
        assert version < 4 or [each["key"] for each in found] == [*answers]
