"""The error codes of Kafka's protocol, as its clients for Python number them."""

from __future__ import annotations

from aiokafka import errors

from dafka.broker.core.error_codes import ErrorCode, error_name

RENAMED = {-1, 0, 6, 10, 13, 17, 39}
"""Codes whose names have changed since that client was written."""


def test_error_codes_have_the_numbers_and_names_that_clients_know() -> None:
    found = [each for each in vars(errors).values() if isinstance(each, type) and hasattr(each, "errno")]
    known = {each.errno: vars(each)["message"] for each in found if issubclass(each, errors.BrokerResponseError)}
    shared = {code: name for code, name in known.items() if code in set(ErrorCode) and isinstance(name, str)}
    different = {code: (name, error_name(code)) for code, name in shared.items() if name != error_name(code)}
    assert len(shared) > 60
    assert different.keys() == RENAMED


NEWER = (  # noqa: SIM905 (a list would take a line for each)
    "TOPIC_DELETION_DISABLED FENCED_LEADER_EPOCH UNKNOWN_LEADER_EPOCH UNSUPPORTED_COMPRESSION_TYPE "
    "STALE_BROKER_EPOCH OFFSET_NOT_AVAILABLE MEMBER_ID_REQUIRED PREFERRED_LEADER_NOT_AVAILABLE "
    "GROUP_MAX_SIZE_REACHED FENCED_INSTANCE_ID ELIGIBLE_LEADERS_NOT_AVAILABLE ELECTION_NOT_NEEDED "
    "NO_REASSIGNMENT_IN_PROGRESS GROUP_SUBSCRIBED_TO_TOPIC INVALID_RECORD UNSTABLE_OFFSET_COMMIT "
    "THROTTLING_QUOTA_EXCEEDED PRODUCER_FENCED RESOURCE_NOT_FOUND DUPLICATE_RESOURCE UNACCEPTABLE_CREDENTIAL "
    "INCONSISTENT_VOTER_SET INVALID_UPDATE_VERSION FEATURE_UPDATE_FAILED PRINCIPAL_DESERIALIZATION_FAILURE "
    "SNAPSHOT_NOT_FOUND POSITION_OUT_OF_RANGE UNKNOWN_TOPIC_ID DUPLICATE_BROKER_REGISTRATION "
    "BROKER_ID_NOT_REGISTERED INCONSISTENT_TOPIC_ID INCONSISTENT_CLUSTER_ID TRANSACTIONAL_ID_NOT_FOUND "
    "FETCH_SESSION_TOPIC_ID_ERROR INELIGIBLE_REPLICA NEW_LEADER_ELECTED OFFSET_MOVED_TO_TIERED_STORAGE "
    "FENCED_MEMBER_EPOCH UNRELEASED_INSTANCE_ID UNSUPPORTED_ASSIGNOR STALE_MEMBER_EPOCH MISMATCHED_ENDPOINT_TYPE "
    "UNSUPPORTED_ENDPOINT_TYPE UNKNOWN_CONTROLLER_ID UNKNOWN_SUBSCRIPTION_ID TELEMETRY_TOO_LARGE "
    "INVALID_REGISTRATION TRANSACTION_ABORTABLE INVALID_RECORD_STATE SHARE_SESSION_NOT_FOUND "
    "INVALID_SHARE_SESSION_EPOCH FENCED_STATE_EPOCH INVALID_VOTER_KEY DUPLICATE_VOTER VOTER_NOT_FOUND "
    "INVALID_REGULAR_EXPRESSION REBOOTSTRAP_REQUIRED STREAMS_INVALID_TOPOLOGY "
    "STREAMS_INVALID_TOPOLOGY_EPOCH STREAMS_TOPOLOGY_FENCED SHARE_SESSION_LIMIT_REACHED "
).split()
"""The names of the codes from 73 on, which that client does not know all."""


def test_codes_are_all_numbers_of_kafka_4_without_gaps() -> None:
    assert sorted(ErrorCode) == [*range(-1, 134)]
    assert len(ErrorCode.__members__) == 135, "no name stands for another one"
    assert [error_name(code) for code in range(73, 134)] == NEWER
    assert error_name(999) == "error 999"
