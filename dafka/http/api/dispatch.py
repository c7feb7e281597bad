"""Answers requests: finds the route, checks permissions, and converts errors to responses."""

from __future__ import annotations

import logging

from dafka.errors import ConfigError, StorageError
from dafka.http.api.registry import find_route
from dafka.http.server.documents import decode_document, parse_document
from dafka.http.server.errors import WebError, refused_request
from dafka.http.server.messages import JSON, AnyResponse, Request, Response, respond_error
from dafka.http.server.principal import Principal
from dafka.http1.head import RequestError, parse_target

DOCUMENT_BYTES_MAX = 2**20
"""The maximum size of a JSON request document. Records can be larger."""

_LOGGER = logging.getLogger("dafka.http")


async def answer_request(request: Request) -> AnyResponse:
    """Return the response to a request; for an error, the response that describes it."""
    try:
        return await _answer(request)
    except WebError as error:
        return respond_error(error)
    except ConfigError as error:
        return respond_error(WebError("bad_request", str(error)))
    except StorageError as error:
        _LOGGER.warning("%s %s: %s", request.head.method, request.head.path, error)
        return respond_error(WebError("storage_failed", str(error)))
    except Exception:
        # A bug in this program must not affect other clients.
        _LOGGER.exception("%s %s failed", request.head.method, request.head.path)
        return respond_error(WebError("internal_error", "the request failed; the broker's log has the reason"))


async def answer_get(request: Request, target: str, principal: Principal) -> AnyResponse:
    """Return the response to GET for a client that is connected over another protocol by `request`."""
    try:
        head = parse_target("GET", target, {})
    except RequestError as error:
        return respond_error(refused_request(error))
    return await answer_request(Request(request.web, head, principal, request.host, request.is_private))


async def _answer(request: Request) -> AnyResponse:
    head = request.head
    if head.method == "OPTIONS":
        return Response(204)
    route, request.arguments = find_route(head.method, head.segments)
    request.web.counters.requests[head.method, route.path] += 1
    route.check_access(request.principal, request.arguments)
    request.query = route.parse_query(head.parameters)
    if route.document is not None:
        if request.content_type != JSON:
            raise WebError("unsupported", f"expected the header Content-Type: {JSON}")
        document = decode_document(await request.read_body(DOCUMENT_BYTES_MAX))
        request.document = parse_document(document, route.document)
    if route.changes_topics:
        await request.broker.node.leases.wait_topics()
    return await route.handler(request)
