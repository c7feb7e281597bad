"""Sessions of browsers end in time, and there are not too many of them."""

from __future__ import annotations

from dafka.broker.access.permissions import Permissions
from dafka.broker.access.users_file import User
from dafka.http.server.authentication import SESSION_S, SESSIONS_MAX, USER_SESSIONS_MAX, Sessions

ANNE = User("anne", {}, Permissions())
BOB = User("bob", {}, Permissions())


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


def test_a_session_lasts_while_it_is_used() -> None:
    clock = Clock()
    sessions = Sessions(clock)
    secret = sessions.begin(ANNE)
    for _ in range(3):
        clock.time += SESSION_S - 1
        assert sessions.is_open(secret)
        assert sessions.find(secret) == ANNE
    clock.time += SESSION_S
    assert not sessions.is_open(secret)
    assert sessions.find(secret) is None


def test_a_session_that_was_ended_is_over() -> None:
    sessions = Sessions(Clock())
    secret, other = sessions.begin(ANNE), sessions.begin(ANNE)
    sessions.end(secret)
    sessions.end("unknown")
    assert (sessions.find(secret), sessions.find(other)) == (None, ANNE)


def test_a_user_with_many_sessions_ends_none_of_others() -> None:
    sessions = Sessions(Clock())
    other = sessions.begin(BOB)
    secrets = [sessions.begin(ANNE) for _ in range(USER_SESSIONS_MAX + 5)]
    assert sessions.is_open(other)
    assert [sessions.is_open(each) for each in secrets] == [False] * 5 + [True] * USER_SESSIONS_MAX


def test_the_session_that_was_not_used_for_longest_gives_way() -> None:
    sessions = Sessions(Clock())
    secrets = [sessions.begin(User(f"user-{number}", {}, Permissions())) for number in range(SESSIONS_MAX)]
    sessions.find(secrets[0])
    sessions.begin(ANNE)
    assert (sessions.is_open(secrets[0]), sessions.is_open(secrets[1])) == (True, False)
