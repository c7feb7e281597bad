"""What the controller adds to commands: epochs that no deleted topic had, replicas and their generations."""

from __future__ import annotations

from itertools import product
from unittest.mock import Mock

import pytest

from dafka.broker.core.metadata.brokers import BrokerRegistration, Brokers
from dafka.broker.core.metadata.commands import (
    AddLogs,
    ChangeReplicas,
    CloseTopic,
    CreateTopic,
    DeleteTopic,
    DrainBroker,
    Order,
    RegisterBroker,
)
from dafka.broker.core.metadata.completion import CommandCompleter
from dafka.broker.core.metadata.leader_and_isr import EPOCH_STEP
from dafka.broker.core.metadata.outcome import DONE
from dafka.broker.core.metadata.planner import Planner, PlannerSettings
from tests.broker.core.metadata.test_cluster_state import begin, topic


def test_a_topic_begins_after_all_leader_epochs_of_a_deleted_one_with_its_name() -> None:
    for is_alone, first_epoch, latest, last_asked in product((True, False), (0, 2048), (0, 4096), (0, 1024)):
        state, brokers = begin(), Brokers(BrokerRegistration(address="a"), 1.0)
        if not is_alone:
            brokers.record_registration(BrokerRegistration(address="b"))
        planner = Planner(state, brokers, PlannerSettings())
        completer = CommandCompleter(state, planner, brokers, Mock(return_value=latest))
        create = CreateTopic(topic("orders", "2D"))
        made = completer.complete(create, 0.0, 77)
        assert isinstance(made, CreateTopic)
        assert (made.topic.first_epoch, made.topic.created_at, made.topic.placement) == (0, 77, create.topic.placement)
        state.apply(Order(CreateTopic(topic(first_epoch=first_epoch))))
        delete = completer.complete(DeleteTopic("1D", last_asked), 0.0, 0)
        assert delete == DeleteTopic("1D", max(first_epoch, latest))
        assert [state.apply(Order(each)) for each in (delete, CloseTopic("1D", {}))] == [DONE, DONE]
        made = completer.complete(create, 0.0, 77)
        assert isinstance(made, CreateTopic)
        last = max(first_epoch, latest)
        is_first = is_alone and not last
        missed = last + 8 * EPOCH_STEP  # leaders that the controller has perhaps not heard of
        assert made.topic.first_epoch == 0 if is_first else made.topic.first_epoch > missed


@pytest.mark.parametrize(("silent_s", "expected"), [(0.9, (3, "")), (1.0, (1, "b"))])
def test_a_store_takes_the_place_of_its_former_id_if_no_broker_is_heard_with_it(
    silent_s: float, expected: tuple[int, str]
) -> None:
    state, brokers = begin(), Brokers(BrokerRegistration(address="a"), 1.0)
    brokers.record_heartbeat("b", 5.0)
    completer = CommandCompleter(state, Planner(state, brokers, PlannerSettings()), brokers, lambda _: 0)
    found = completer.complete(RegisterBroker("d", replaces="b"), 5.0 + silent_s, 0)
    assert isinstance(found, RegisterBroker)
    assert (found.number, found.replaces) == expected


def test_replicas_that_a_command_does_not_name_are_chosen_or_stay() -> None:
    state, brokers = begin(), Brokers(BrokerRegistration(address="a"), 1.0)
    completer = CommandCompleter(state, Planner(state, brokers, PlannerSettings()), brokers, lambda _: 0)
    state.apply(Order(CreateTopic(topic("orders", "1D", ("a", "b")))))
    assert completer.complete(ChangeReplicas("1D", 0), 0.0, 0) == ChangeReplicas("1D", 0, ("a", "b"), generation=1)
    change = completer.complete(ChangeReplicas("1D", 0, ("c",), generation=9), 0.0, 0)
    assert change == ChangeReplicas("1D", 0, ("c",), generation=1)
    state.apply(Order(change))
    cancelled = completer.complete(ChangeReplicas("1D", 0), 0.0, 0)
    assert cancelled == ChangeReplicas("1D", 0, ("a", "b"), generation=2)
    for count in (0, 1, 2, 4):
        added = completer.complete(AddLogs("1D", count, (("c",),) * (count == 2)), 0.0, 0)
        assert isinstance(added, AddLogs)
        assert (added.log_count, len(added.placement)) == (count, max(count - 1, 0))
        assert count != 2 or added.placement == (("c",),)
    for other in (ChangeReplicas("1D", 1), AddLogs("9D", 2), DeleteTopic("9D", 3), DrainBroker("a", True)):
        assert completer.complete(other, 0.0, 0) == other
