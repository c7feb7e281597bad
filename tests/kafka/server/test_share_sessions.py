"""Share sessions against a model: epochs, logs, connections that close, and limits."""

from __future__ import annotations

import uuid
from random import Random

import pytest

from dafka.broker.core.error_codes import ErrorCode
from dafka.kafka.protocol.constants import FINAL_EPOCH, INITIAL_EPOCH
from dafka.kafka.server.share_sessions import SharedLog, ShareMemberId, ShareSessions

SEEDS = 40
STEPS = 200
LOGS = [SharedLog(uuid.UUID(int=1), number) for number in range(8)]
MEMBERS = [ShareMemberId("g", member_id) for member_id in "abcde"]
SESSIONS_MAX, LOGS_MAX = 3, 9


@pytest.mark.parametrize("seed", range(SEEDS))
def test_sessions_are_those_of_the_model(seed: int) -> None:
    draw, sessions = Random(seed), ShareSessions(SESSIONS_MAX, LOGS_MAX)
    model: dict[ShareMemberId, tuple[int, str, dict[SharedLog, None]]] = {}
    for _ in range(STEPS):
        member, client = draw.choice(MEMBERS), draw.choice("xy")
        if draw.random() < 0.1:
            closed = sorted(each for each, (_, begun_on, _) in model.items() if begun_on == client)
            assert sessions.end_of(client) == closed
            for each in closed:
                del model[each]
        elif draw.random() < 0.1:
            sessions.end(member)
            model.pop(member, None)
        else:
            known = model.get(member)
            right = [FINAL_EPOCH] if known is None else [FINAL_EPOCH, known[0], known[0]]
            epoch = draw.choice([INITIAL_EPOCH, 7, *right])
            added, forgotten = draw.sample(LOGS, draw.randint(0, 3)), draw.sample(LOGS, draw.randint(0, 1))
            error, session = sessions.begin(member, epoch, client, added, forgotten)
            if epoch == INITIAL_EPOCH:
                model.pop(member, None)
                if len(model) == SESSIONS_MAX:
                    assert (error, session) == (ErrorCode.SHARE_SESSION_LIMIT_REACHED, None)
                    continue
                known = (0, client, {})
            elif known is None or epoch not in {FINAL_EPOCH, known[0]}:
                missing = ErrorCode.SHARE_SESSION_NOT_FOUND
                assert error is (missing if known is None else ErrorCode.INVALID_SHARE_SESSION_EPOCH)
                assert session is None
                continue
            logs = {each: None for each in (*known[2], *added) if each not in forgotten}
            model.pop(member, None)
            model[member] = (known[0] + 1, known[1], logs)
            if sum(len(each[2]) for each in model.values()) > LOGS_MAX and len(logs) > LOGS_MAX // SESSIONS_MAX:
                del model[member]
                assert (error, session) == (ErrorCode.SHARE_SESSION_LIMIT_REACHED, None)
                continue
            assert session is not None
            assert (error, list(session.logs)) == (ErrorCode.NONE, list(logs))
            assert session.epoch == known[0] + 1
            if logs and draw.random() < 0.5:
                delayed = draw.choice(list(logs))
                session.delay(delayed)
                del logs[delayed]
                logs[delayed] = None
        assert len(sessions) == len(model) <= SESSIONS_MAX


def test_epochs_begin_again_after_the_largest_one() -> None:
    sessions, member = ShareSessions(), MEMBERS[0]
    _, session = sessions.begin(member, INITIAL_EPOCH, "x")
    assert session is not None
    session.epoch = 2**31 - 1
    sessions.begin(member, 2**31 - 1, "x")
    assert session.epoch == 1
