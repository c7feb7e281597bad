"""What every route needs: written down here, and compared with what a broker does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import pytest
import trio

from dafka.broker.access.permissions import Permissions
from dafka.broker.core.metadata.features import SUPPORTED
from dafka.http.api import ROUTES
from dafka.http.api.openapi import describe_api
from dafka.http.server.authentication import COOKIE
from dafka.http.server.principal import EVERYTHING
from tests.http.api.events import EventSource
from tests.http.api.test_openapi import check_answer
from tests.http.running import DEADLINE_S, Answer, RunningWeb, SharedWeb
from tests.http.secured import (
    ANYBODY,
    PASSWORD,
    USER,
    Account,
    Grant,
    Needs,
    Secured,
    lead_elsewhere,
    only,
    renamed,
    run_beside_leader,
    run_secured,
    without_one,
)
from tests.waiting import poll_until, wait_until

TOPIC, GROUP, OTHER_GROUP, QUEUE = "orders", "billing", "shipping", "jobs"
READ, WRITE, ADMIN = ("read", TOPIC), ("write", TOPIC), ("admin", TOPIC)
GROUPS, OTHER, OPERATOR = ("groups", GROUP), ("groups", OTHER_GROUP), ("admin", "*")
JOBS = ("groups", QUEUE)
SEE: Needs = [[READ], [WRITE], [ADMIN]]
RECORDS = "/topics/{topic}/records"
EVENTS = {"Accept": "text/event-stream"}
FROM_OTHER = {"topic": TOPIC, "to": {"group": OTHER_GROUP}}
FROM_GROUP = {"from": {"group": GROUP}}
SAID = {"receipt": "r", "others": "accept"}
LIMIT = "share.delivery.count.limit"
LINES, REST = "application/x-ndjson", "application/vnd.kafka.json.v2+json"


def need(*grants: Grant) -> Needs:
    return [list(grants)]


@attrs.frozen
class Use:
    """A request of a route, what it needs, and its status when it is permitted."""

    endpoint: str
    needs: Needs
    target: str = ""
    sent: dict[str, Any] = attrs.field(factory=dict)
    status: int = 200

    def ask(self, web: RunningWeb, names: dict[str, str] | None = None, method: str = "", **headers: Any) -> Answer:
        """Send the request, or one about other names."""
        own, _, path = self.endpoint.partition(" ")
        path = path.replace("...", "").format(topic=TOPIC, group=GROUP, queue=QUEUE, path="none", log=0, number=0)
        target, sent = renamed(path + self.target, names or {}), renamed(self.sent, names or {})
        answer = web.ask(method or own, target, **sent, **headers)
        if not method:
            check_answer(own, self.endpoint.partition(" ")[2], answer)
        return answer


RESTORED = {"key": "group/unused", "value": {"group_id": "unused", "settings": {}}}

USES = [
    *(Use(f"GET /{each}", ANYBODY) for each in ("", "dafka.js", "openapi.json", "session")),
    Use("GET /console/{path...}", ANYBODY, status=404),
    Use("POST /session", ANYBODY, sent={"document": {"user": "ada", "password": PASSWORD}}),
    Use("DELETE /session", ANYBODY, status=204),
    Use("GET /ws", ANYBODY, status=426),
    *(Use("GET /topics", USER, each) for each in ("", "?sizes=true")),
    Use("GET /groups", USER),
    Use("GET /overview", USER, "?history=true"),
    Use("POST /topics", need(("admin", "fresh")), sent={"document": {"name": "fresh"}}, status=201),
    Use("POST /topics", need(ADMIN), sent={"document": {"name": TOPIC}}, status=409),
    Use("GET /topics/{topic}", SEE, "?times=true"),
    Use("GET /topics/{topic}/offsets", SEE, "?time=0"),
    Use("GET /topics/{topic}/partitions", SEE),
    Use("GET /topics/{topic}/epochs", SEE),
    Use("PATCH /topics/{topic}", need(ADMIN), sent={"document": {"settings": {"retention.ms": "77"}}}),
    Use("DELETE /topics/{topic}", need(ADMIN), status=204),
    Use("PUT /topics/{topic}/logs/{log}/replicas", need(ADMIN), sent={"document": {"replicas": [0]}}),
    Use(f"GET {RECORDS}", need(READ)),
    Use(f"GET {RECORDS}", need(READ, GROUPS), f"?from=group:{GROUP}"),
    Use(f"GET {RECORDS}", need(READ, GROUPS), f"?to=group:{GROUP}"),
    Use(f"GET {RECORDS}", need(READ, GROUPS, OTHER), f"?from=group:{GROUP}&to=group:{OTHER_GROUP}"),
    Use(f"POST {RECORDS}", need(WRITE), sent={"body": b"x"}),
    Use(f"POST {RECORDS}", need(WRITE), sent={"body": b'{"value": "x"}', "Content_Type": LINES}),
    Use(f"POST {RECORDS}", need(WRITE), sent={"body": b'{"records": [{"value": 1}]}', "Content_Type": REST}),
    Use(f"DELETE {RECORDS}", need(ADMIN), "?before=0"),
    Use("PUT /topics/{topic}/queues/{queue}", need(READ, JOBS), sent={"document": {"from": "earliest"}}),
    Use("PUT /topics/{topic}/queues/{queue}", need(READ, JOBS, GROUPS), sent={"document": FROM_GROUP}),
    Use("PUT /topics/{topic}/queues/{queue}", need(READ, JOBS), sent={"document": {"settings": {LIMIT: "7"}}}),
    Use("GET /topics/{topic}/queues/{queue}", need(READ, JOBS)),
    Use("POST /topics/{topic}/queues/{queue}/receive", need(READ, JOBS), sent={"document": {}}),
    Use("POST /topics/{topic}/queues/{queue}/acknowledge", need(READ, JOBS), sent={"document": SAID}),
    Use("GET /groups/{group}", need(GROUPS)),
    Use("DELETE /groups/{group}", need(GROUPS), status=204),
    Use("PUT /groups/{group}/offsets", need(GROUPS, READ), sent={"document": {"topic": TOPIC, "to": "latest"}}),
    Use("PUT /groups/{group}/offsets", need(GROUPS, READ), sent={"document": {"topic": TOPIC, "offsets": {"0": 0}}}),
    Use("PUT /groups/{group}/offsets", need(GROUPS, READ, OTHER), sent={"document": FROM_OTHER}),
    *(
        Use(f"GET /{each}", need(OPERATOR))
        for each in ("cluster", "cluster/snapshot", "brokers", "brokers/{number}/logs")
    ),
    *(
        Use(f"GET /{each}", need(OPERATOR))
        for each in ("moves", "nodes", "storage", "storage/verification", "settings")
    ),
    Use("POST /cluster/feature-level", need(OPERATOR), sent={"document": {"level": SUPPORTED.levels.highest}}),
    Use("POST /cluster/restored-records", need(OPERATOR), sent={"document": {"records": [RESTORED]}}),
    Use("GET /cluster/log", need(OPERATOR), "?limit=3"),
    *(Use(f"POST /brokers/{{number}}/{each}", need(OPERATOR)) for each in ("drain", "undrain")),
    Use("POST /topics/{topic}/logs/{log}/recover", need(OPERATOR), sent={"document": {"broker": 0}}, status=400),
    Use("POST /brokers/{number}/forget", need(OPERATOR), sent={"document": {}}, status=400),
    Use("GET /storage/checksum", need(OPERATOR), f"?topic={TOPIC}&partition=none"),
    Use("POST /storage/verification", need(OPERATOR), status=202),
]
"""Every way to use a route. A new route, or a new way to name a group or a topic in a request, comes here."""


def test_every_route_is_in_the_table_and_described_like_it() -> None:
    assert {each.endpoint for each in USES} == {f"{each.method} {each.path}" for each in ROUTES}
    for path, operations in describe_api(ROUTES)["paths"].items():
        for method, described in operations.items():
            uses = [each for each in USES if each.endpoint.replace("...}", "}") == f"{method.upper()} {path}"]
            assert (described.get("security") == []) == (uses[0].needs is ANYBODY), path


def restore(web: SharedWeb, root: dict[str, Any]) -> None:
    """Make the topic and the groups as they were."""
    web.ask("POST", "/brokers/0/undrain", **root)
    poll_until(lambda: not web.ask("GET", "/moves", **root).document["moves"])
    web.ask("POST", "/topics", document={"name": TOPIC, "replica_count": 1}, **root)
    lead_elsewhere(web, TOPIC, root)
    web.ask("DELETE", "/topics/fresh", **root)
    web.ask("PATCH", f"/topics/{TOPIC}", document={"settings": {"retention.ms": None}}, **root)
    web.ask("DELETE", f"/groups/{QUEUE}", **root)
    queue = {"from": "earliest", "settings": {LIMIT: None}}
    answer = web.ask("PUT", f"/topics/{TOPIC}/queues/{QUEUE}", document=queue, **root)
    assert (answer.status, answer.document["locked_count"]) == (200, 0), answer.body
    for group in (GROUP, OTHER_GROUP):
        answer = web.ask("PUT", f"/groups/{group}/offsets", document={"topic": TOPIC, "offsets": {"0": 0}}, **root)
        assert answer.status == 200, answer.body


UNKNOWN = [b'"%b":null' % each for each in (b"start_offset", b"end_offset", b"in_sync")]
INCOMPLETE = [*UNKNOWN, b'"state":"running"']


def ask_complete(web: SharedWeb, target: str, headers: dict[str, Any]) -> Answer:
    """Return a document when what only leaders know is in it, who may not answer promptly, and nothing goes on."""
    found: list[Answer] = []

    def is_complete() -> bool:
        found[:] = [web.ask("GET", target, **headers)]
        return not any(each in found[0].body for each in INCOMPLETE)

    poll_until(is_complete)
    return found[0]


LEADERSHIP = {"leader", "leader_epoch", "in_sync"}
"""What brokers change by themselves when one of them is slow."""


def without_leaders(document: Any) -> Any:
    if isinstance(document, dict):
        return {name: without_leaders(each) for name, each in document.items() if name not in LEADERSHIP}
    return [without_leaders(each) for each in document] if isinstance(document, list) else document


def state_of(web: SharedWeb, root: dict[str, Any]) -> list[Any]:
    """Return what requests could have changed. A list of all groups leaves out those of brokers that do not answer."""
    brokers = web.ask("GET", "/brokers", **root).document["brokers"]
    targets = ["/topics", f"/topics/{TOPIC}", f"/groups/{GROUP}", f"/groups/{OTHER_GROUP}", "/storage/verification"]
    targets += [f"/topics/{TOPIC}/queues/{QUEUE}"]
    targets += ["/groups"] if len(brokers) == 1 else []
    found = [without_leaders(ask_complete(web, each, root).document) for each in targets]
    return [*found, [each["is_draining"] for each in brokers]]


@pytest.fixture(scope="module", params=[run_secured, run_beside_leader], ids=["leading", "forwarding"])
def secured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with request.param(tmp_path_factory.mktemp("users")) as (web, account):
        restore(web, account.root)
        yield web, account


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A broker that has no others beside it."""
    with run_secured(tmp_path_factory.mktemp("users")) as found:
        yield found


@contextmanager
def permitted(account: Account, permissions: Permissions) -> Iterator[dict[str, Any]]:
    """Give the user permissions during the block. Yields the headers with its token."""
    account.permit(permissions)
    try:
        yield account.bearer
    finally:
        account.permit(EVERYTHING)


def use_id(use: Use) -> str:
    return f"{use.endpoint}{use.target}"


@pytest.mark.parametrize("use", USES, ids=use_id)
def test_a_route_is_open_to_those_who_may_use_it(secured: Secured, use: Use) -> None:
    web, account = secured
    if use.needs is None:
        assert use.ask(web).status == use.status
        return
    for needed in use.needs:
        with permitted(account, only(needed)) as bearer:
            answer = use.ask(web, **bearer)
            assert answer.status == use.status, answer.body
        if not use.endpoint.startswith("GET"):
            restore(web, account.root)


@pytest.mark.parametrize("use", [each for each in USES if each.needs is not ANYBODY], ids=use_id)
def test_a_route_is_closed_without_one_of_its_permissions(secured: Secured, use: Use) -> None:
    web, account = secured
    before = state_of(web, account.root)
    can_stream = use.endpoint == f"GET {RECORDS}" and "to=" not in use.target
    variants: list[dict[str, Any]] = [{}, EVENTS] if can_stream else [{}]
    for variant in variants:
        answer = use.ask(web, **variant)
        assert (answer.status, answer.code) == (401, "unauthenticated")
        for missing, permissions in without_one(use.needs):
            with permitted(account, permissions) as bearer:
                answer = use.ask(web, **bearer, **variant)
                assert (answer.status, answer.code) == (403, "forbidden"), missing
                absent = {name: f"no-{name}" for _, name in missing if name != "*"}
                about_nothing = use.ask(web, absent, **bearer, **variant)
                assert (about_nothing.status, about_nothing.body) == (403, renamed(answer.body, absent)), missing
                if use.endpoint.startswith("GET"):
                    assert (use.ask(web, method="HEAD", **bearer, **variant).status) == 403
    assert state_of(web, account.root) == before


def test_lists_have_what_the_user_may_see(alone: Secured) -> None:
    web, account = alone
    names, mixed = ["seen.admin", "seen.read", "seen.write", "unseen.a", "unseen.b"], "/groups/mixed"
    for name in names:
        assert web.ask("POST", "/topics", document={"name": name, "log_count": 2}, **account.root).status == 201
        web.ask("PUT", f"/groups/{name}/offsets", document={"topic": name, "to": "latest"}, **account.root)
        web.ask("POST", f"/topics/{name}/records", b"x", **account.root)
    for topic in ("seen.read", "unseen.a"):
        commit = {"topic": topic, "offsets": {"0": 0, "1": 0}}
        web.ask("PUT", f"{mixed}/offsets", document=commit, **account.root)
    seen = Permissions(read=("seen.read",), write=("seen.write",), admin=("seen.a*",), groups=("seen.[a]", "seen.r*"))
    with permitted(account, seen) as bearer:
        page = web.ask("GET", "/topics?limit=2", **bearer).document
        rest = web.ask("GET", f"/topics?after={page['next']}", **bearer).document
        found = [(each["name"], each["permissions"]) for each in page["topics"] + rest["topics"]]
        assert found == [(f"seen.{kind}", [kind]) for kind in ("admin", "read", "write")]
        assert (page["topic_count"], rest["topic_count"], rest["next"]) == (3, 3, None)
        groups = web.ask("GET", "/groups", **bearer).document
        assert ([each["group"] for each in groups["groups"]], groups["group_count"]) == (["seen.read"], 1)
        overview = web.ask("GET", "/overview", **bearer).document
        assert [overview["counts"][each] for each in ("topics", "logs", "groups")] == [3, 6, 1]
        assert (overview["storage"], overview["problems"]) == (None, None)
        session = web.ask("GET", "/session", **bearer).document
        assert session["permissions"]["admin"] == ["seen.a*"]
        assert (session["user"], session["is_administrator"]) == ("ada", False)
    reader = Permissions(read=("seen.*",), groups=("mixed",))
    for permissions, expected in (
        (attrs.evolve(reader, admin=("*.a",)), ["seen.read", "unseen.a"]),
        (reader, ["seen.read"]),
    ):
        with permitted(account, permissions) as bearer:
            group = ask_complete(web, mixed, bearer).document
            assert sorted({each["topic"] for each in group["offsets"]}) == expected
            assert group["lag"] == len(expected)
    for name in names:
        web.ask("DELETE", f"/topics/{name}", **account.root)
        web.ask("DELETE", f"/groups/{name}", **account.root)
    web.ask("DELETE", mixed, **account.root)


@pytest.mark.parametrize("log_count", [1, 2])
@pytest.mark.parametrize(
    ("end", "code"),
    [(Account.remove, "unauthenticated"), (Account.revoke_token, "unauthenticated"), (None, "forbidden")],
)
async def test_a_stream_ends_when_its_user_may_not_read_any_more(
    alone: Secured, end: Callable[[Account], None] | None, code: str, log_count: int
) -> None:
    web, account = alone
    account.permit(EVERYTHING)
    topic, target = f"stream.{log_count}.{code}", f"/topics/stream.{log_count}.{code}/records"
    await web.request("POST", "/topics", document={"name": topic, "log_count": log_count}, **account.root)
    source = EventSource()
    with trio.fail_after(DEADLINE_S):
        async with source.connect(web, f"{target}?from=latest", **account.bearer) as stream:
            await source.wait_begun(stream)
            await web.request("POST", target, b"before", **account.root)
            await source.read(stream, 1)
            if end is None:
                account.permit(only([("write", topic), ("admin", topic), ("read", f"{topic}.")]))
            else:
                end(account)
            await web.request("POST", target, b"secret", **account.root)
            with pytest.raises(AssertionError, match="the stream has ended"):
                await source.read(stream, 2)
    assert source.values() == ["before"]
    assert [each["code"] for each in source.errors] == [code]
    await web.request("DELETE", f"/topics/{topic}", **account.root)


@pytest.mark.parametrize("kept", [[("write", "polled")], [("write", "polled"), ("read", "polled")]])
async def test_a_request_that_waits_gets_nothing_that_its_user_may_not_read_any_more(
    alone: Secured, kept: list[Grant]
) -> None:
    """A user that may not use a queue any more gets none of its records."""
    web, account = alone
    account.permit(EVERYTHING)
    await web.request("POST", "/topics", document={"name": "polled"}, **account.root)
    target, queue, answers = "/topics/polled/records", "/topics/polled/queues/pollers", list[Answer]()
    await web.request("PUT", queue, document={"from": "latest"}, **account.root)
    counted = ("GET", "/topics/{topic}/records"), ("POST", "/topics/{topic}/queues/{queue}/receive")
    before = [web.server.counters.requests[each] for each in counted]

    async def ask(method: str, path: str, document: Any = None) -> None:
        answers.append(await web.request(method, path, document=document, **account.bearer))

    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, "POST", f"{queue}/receive", {"wait_ms": 60_000})
            if len(kept) == 1:
                nursery.start_soon(ask, "GET", f"{target}?from=latest&wait_ms=60000")
            requests = web.server.counters.requests
            expected = [before[0] + (len(kept) == 1), before[1] + 1]
            await wait_until(lambda: [requests[each] for each in counted] == expected)
            account.permit(only(kept))
            await web.request("POST", target, b"secret", **account.root)
    assert {each.code for each in answers} == {"forbidden"}
    assert (await web.request("GET", queue, **account.root)).document["available_count"] == 1
    await web.request("DELETE", "/topics/polled", **account.root)
    await web.request("DELETE", "/groups/pollers", **account.root)


def test_the_log_of_the_cluster_says_who_has_changed_it(alone: Secured) -> None:
    web, account = alone
    changes: list[tuple[str, str, Any]] = [
        ("POST", "/topics", {"name": "logged"}),
        ("PATCH", "/topics/logged", {"settings": {"retention.ms": "7"}}),
        ("PUT", "/topics/logged/queues/loggers", {"settings": {LIMIT: "7"}}),
        ("POST", "/cluster/restored-records", {"records": [RESTORED]}),
        ("DELETE", "/topics/logged", None),
    ]
    account.permit(EVERYTHING)
    for method, target, document in changes:
        assert web.ask(method, target, document=document, **account.bearer).status < 300, target
    found = web.ask("GET", "/cluster/log?limit=1000", **account.root).document["changes"]
    kinds = [each["kind"] for each in found if each["ordered_by"] == "ada at 127.0.0.1"]
    assert kinds[-5:] == [
        "create-topic",
        "alter-settings",
        "alter-group-settings",
        "alter-group-settings",
        "delete-topic",
    ]


def test_a_browser_logs_in_and_out(alone: Secured) -> None:
    web, account = alone
    account.permit(EVERYTHING)
    session = web.ask("GET", "/session").document
    assert (session["must_log_in"], session["user"], session["is_administrator"]) == (True, None, False)
    login = {"user": "ada", "password": "wrong"}
    refused = web.ask("POST", "/session", document=login)
    assert (refused.code, "Set-Cookie" in refused.headers) == ("unauthenticated", False)
    entered = web.ask("POST", "/session", document={**login, "password": PASSWORD})
    assert (entered.document["user"], entered.document["must_log_in"]) == ("ada", False)
    secret, *attributes = entered.headers["Set-Cookie"].split("; ")
    assert attributes == ["Path=/", "HttpOnly", "SameSite=Strict"]
    cookie: dict[str, Any] = {"Cookie": secret}
    assert web.ask("GET", "/session", **cookie).document["is_administrator"]
    again = web.ask("POST", "/session", document={**login, "password": PASSWORD}, **cookie)
    assert web.ask("GET", "/topics", **cookie).code == "unauthenticated", "the former session has ended"
    cookie = {"Cookie": again.headers["Set-Cookie"].partition(";")[0]}
    left = web.ask("DELETE", "/session", **cookie)
    assert (left.status, left.headers["Set-Cookie"].split("; ")[:3]) == (204, [f"{COOKIE}=", "Path=/", "Max-Age=0"])
    assert web.ask("GET", "/topics", **cookie).code == "unauthenticated"


def test_a_broker_without_users_has_no_sessions(web: SharedWeb) -> None:
    assert web.ask("GET", "/session").document["must_log_in"] is False
    assert web.ask("POST", "/session", document={"user": "ada", "password": "x"}).code == "bad_request"
