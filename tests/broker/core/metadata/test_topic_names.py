"""Names of topics that metrics of Kafka's clients do not tell apart."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dafka.broker.core.metadata.topics import find_collision, find_collisions

names = st.text("a._", min_size=1, max_size=4)


@given(names, st.lists(names))
def test_names_collide_that_metrics_do_not_tell_apart(name: str, topics: list[str]) -> None:
    found = find_collision(name, topics)
    colliding = [each for each in topics if each != name and each.replace(".", "_") == name.replace(".", "_")]
    assert found == (colliding[0] if colliding else "")


@given(st.lists(names))
def test_of_several_names_each_collides_with_the_first_that_metrics_do_not_tell_apart(found: list[str]) -> None:
    earlier = {name: find_collision(name, found[: found.index(name)]) for name in found}
    assert find_collisions(found) == {name: each for name, each in earlier.items() if each}
