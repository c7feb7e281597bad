"""What brokers have written of topics decides which topics there are, in whatever order it is learned."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from dafka.broker.core.metadata.topic_table import TopicTable
from dafka.broker.core.metadata.topics import Deletion, Topic
from dafka.records import Partition

NAMES = ("orders", "events")
IDS = {f"{number:X}" * 32: (NAMES[number % 2], number // 2 % 3) for number in range(1, 9)}
"""Topics: their ids, each with its name and the time at which it was created."""

Statement = Topic | Deletion


@st.composite
def topics(draw: st.DrawFn) -> Topic:
    topic_id = draw(st.sampled_from(sorted(IDS)))
    name, created_at = IDS[topic_id]
    log_count = draw(st.integers(1, 3))
    placement = tuple((draw(st.sampled_from("ABC")),) for _ in range(log_count))
    settings = draw(st.sampled_from([{}, {"retention.ms": "1"}, {"retention.ms": "2"}]))
    return Topic(name, topic_id, log_count, settings, 0, placement, draw(st.integers(0, 2)), created_at)


deletions = st.builds(Deletion, topics(), st.dictionaries(st.sampled_from(["P", "Q"]), st.integers(0, 9)))


def learn(table: TopicTable, statements: Sequence[Statement]) -> None:
    for each in statements:
        if isinstance(each, Deletion):
            table.learn_deletion(each)
        else:
            table.learn(each)


def view(table: TopicTable) -> object:
    return {name: table.living(name) for name in NAMES}, table.deleted_ids, table.producer_starts


@settings(max_examples=40)
@given(st.lists(st.one_of(topics(), deletions), max_size=12), st.data())
def test_order_in_which_brokers_learn_does_not_matter(statements: list[Statement], data: st.DataObject) -> None:
    one, other = TopicTable(), TopicTable()
    learn(one, statements)
    indexes = range(len(statements))
    repeated = data.draw(st.lists(st.sampled_from(indexes), max_size=4)) if statements else []
    learn(other, [statements[each] for each in data.draw(st.permutations([*indexes, *repeated]))])
    assert view(one) == view(other)


@settings(max_examples=40)
@given(st.lists(st.one_of(topics(), deletions), max_size=12))
def test_deleted_topics_stay_deleted_and_others_stay(statements: list[Statement]) -> None:
    table = TopicTable()
    learn(table, statements)
    deleted = {each.topic.topic_id for each in statements if isinstance(each, Deletion)}
    known = {each.topic_id for each in statements if isinstance(each, Topic)}
    living = [topic for name in NAMES for topic in table.living(name)]
    assert table.deleted_ids == deleted
    assert {each.topic_id for each in living} == known - deleted
    for topic in living:
        records = [each for each in statements if isinstance(each, Topic) and each.topic_id == topic.topic_id]
        assert topic.revision == max(each.revision for each in records)
        assert topic.log_count == len(topic.placement) == max(each.log_count for each in records)
    for name in NAMES:
        found = table.find(name)
        assert found == next((each for each in living if each.name == name), None)
        assert found is None or found.created_at == min(each.created_at for each in living if each.name == name)


@settings(max_examples=40)
@given(st.lists(st.one_of(topics(), deletions), max_size=12), st.lists(st.booleans(), min_size=12, max_size=12))
def test_followers_of_changes_have_what_the_table_has(statements: list[Statement], cuts: list[bool]) -> None:
    """Whoever asks for what has changed, however often, ends with the topics of the table, and knows all deletions."""
    table, followed, dropped = TopicTable(), dict[str, Topic | None](), set[str]()
    for each, is_cut in zip(statements, cuts, strict=False):
        learn(table, [each])
        if is_cut:
            followed.update((name, table.find(name)) for name in table.take_changed())
            dropped |= {deletion.topic.topic_id for deletion in table.take_deletions()}
    followed.update((name, table.find(name)) for name in table.take_changed())
    dropped |= {deletion.topic.topic_id for deletion in table.take_deletions()}
    assert {name: topic for name in NAMES if (topic := followed.get(name)) is not None} == {
        name: topic for name in NAMES if (topic := table.find(name)) is not None
    }
    assert dropped == table.deleted_ids


def test_native_partitions_go_on_after_the_last_deletion() -> None:
    table = TopicTable()
    old, new = Topic("orders", "1D"), Topic("orders", "2D")
    learn(table, [Deletion(new, {"P": 9}), Deletion(old, {"P": 4, "Q": 2})])
    assert table.producer_starts == {Partition("orders", "P"): 9, Partition("orders", "Q"): 2}
    assert len(table.take_deletions()) == 2
    more = Deletion(new, {"P": 9, "Q": 3})
    learn(table, [Deletion(new, {"P": 8}), more])
    assert table.take_deletions() == [more], "its records are dropped, too"


def test_epochs_of_deleted_topics_are_the_largest_that_any_broker_knew() -> None:
    table, topic = TopicTable(), Topic("orders", "1D")
    learn(table, [*(Deletion(topic, {}, epoch) for epoch in (5, 9, 7)), Deletion(Topic("x", "2D"), {}, 1)])
    assert table.last_epochs == {"orders": 9, "x": 1}


def test_partitions_of_unknown_and_hidden_topics_are_orphans() -> None:
    table = TopicTable()
    first, hidden, deleted = (Topic("orders", f"{n}" * 32, created_at=n) for n in (1, 2, 3))
    learn(table, [first, hidden, Deletion(deleted)])
    places = {
        f"A/{first.topic_id}/0": False,
        f"A/{first.topic_id}/0/1024": False,
        f"A/{hidden.topic_id}/0": True,
        f"A/{'9' * 32}/0": True,
        f"A/{deleted.topic_id}/0": False,
        "A": False,
    }
    for address, is_orphan in places.items():
        assert table.is_orphan(Partition("orders", address)) == is_orphan, address
        assert not table.is_orphan(Partition("$logs", address))
    assert table.is_orphan(Partition("unknown", f"A/{first.topic_id}/0"))
