"""Routes for browser sessions: log in, log out, and describe the user."""

from __future__ import annotations

from typing import Annotated

from dafka.broker.access.permissions import Permission, Permissions
from dafka.http.api.registry import Answer, RequiredPermission, Route
from dafka.http.server.authentication import COOKIE, session_of
from dafka.http.server.documents import Document, doc
from dafka.http.server.errors import WebError
from dafka.http.server.messages import AnyResponse, Request, Response, respond
from dafka.http.server.principal import Principal


class Session(Document):
    """The user of a client."""

    user: Annotated[
        str | None, doc("The name of the user; null if there are no users, or the client has not logged in.")
    ]
    must_log_in: Annotated[bool, doc("Whether the client has to prove who it is before it may do anything.")]
    is_administrator: Annotated[bool, doc("Whether the user may do what concerns the whole broker.")]
    permissions: Annotated[
        dict[str, list[str]], doc("For each kind of permission, patterns of names. `*` is any characters.")
    ]


class Login(Document):
    """A name and a password."""

    user: Annotated[str, doc("The name.", max_length=100)]
    password: Annotated[str, doc("The password.", max_length=1000)]


def _describe(principal: Principal) -> Session:
    permissions = principal.permissions if principal.is_known else Permissions()
    patterns = {each.value: permissions.patterns(each) for each in Permission}
    return Session(principal.user, not principal.is_known, permissions.is_administrator, patterns)


def _cookie(request: Request, secret: str) -> tuple[str, str]:
    """Return the header with the cookie of a session; of none, if the secret is empty.

    The broker ends sessions, not the browser, which does not know of the last request, and whose clock can jump.
    """
    ended = "" if secret else "; Max-Age=0"
    secure = "; Secure" if request.broker.security.tls is not None else ""
    return "Set-Cookie", f"{COOKIE}={secret}; Path=/{ended}; HttpOnly; SameSite=Strict{secure}"


@Route("GET /session", RequiredPermission.NOTHING, name="describeSession", tag="Session")
async def describe_session(request: Request) -> Session:
    """Describe the user and its permissions."""
    return _describe(request.principal)


@Route(
    "POST /session",
    RequiredPermission.NOTHING,
    name="logIn",
    tag="Session",
    answers={200: Answer("The user and its permissions. A cookie stands for the session.", Session)},
    errors=("unauthenticated", "too_many_requests"),
)
async def log_in(request: Request, document: Login) -> AnyResponse:
    """Log in with a password, from a browser.

    Other clients send a token or the password with each request. A session ends 12 hours after its last request, and
    when the browser or the broker is closed.
    """
    web = request.web
    user = await web.authenticator.log_in(
        document.user, document.password, host=request.host, is_private=request.is_private
    )
    if user is None:
        raise WebError("bad_request", "this broker has no users: everybody may do everything")
    former = session_of(request.head.headers)
    if former is not None:
        web.sessions.end(former)
    secret = web.sessions.begin(user)
    return respond(
        _describe(Principal(request.broker.security.users, user.name, host=request.host)),
        headers=(_cookie(request, secret),),
    )


@Route(
    "DELETE /session",
    RequiredPermission.NOTHING,
    name="logOut",
    tag="Session",
    answers={204: Answer("The session is over.")},
)
async def log_out(request: Request) -> AnyResponse:
    """Log out: end the session of the request's cookie."""
    secret = session_of(request.head.headers)
    if secret is not None:
        request.web.sessions.end(secret)
    return Response(204, headers=(_cookie(request, ""),))
