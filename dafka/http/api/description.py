"""Route for the API's description."""

from __future__ import annotations

from functools import cache

from dafka.http.api.openapi import describe_api
from dafka.http.api.registry import ROUTES, Answer, RequiredPermission, route
from dafka.http.api.schemas import AnyValue
from dafka.http.server.documents import encode_document
from dafka.http.server.messages import JSON, AnyResponse, Request, Response


@route(
    "GET",
    "/openapi.json",
    needs=RequiredPermission.NOTHING,
    tag="Description",
    answers={200: Answer("The description.", AnyValue("An OpenAPI document."))},
)
async def describe(_request: Request) -> AnyResponse:
    """Describe this API as OpenAPI 3.1."""
    return Response(200, _encode(), JSON)


@cache
def _encode() -> bytes:
    return encode_document(describe_api(ROUTES))
