"""DescribeClientQuotas and AlterClientQuotas: how much users, client ids and addresses may use."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress

from dafka.broker.access.permissions import Permissions
from dafka.broker.core.acls import Operation, ResourceType, normalize_host
from dafka.broker.core.client_quotas import (
    EntityPart,
    EntityType,
    QuotaEntity,
    find_entity_problem,
    find_limit_problem,
    make_entity,
)
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.metadata.commands import AlterClientQuota
from dafka.kafka.apis.shared.authorization import CLUSTER_REFUSED, require_cluster
from dafka.kafka.apis.shared.changes import RefusedPartError, make_all, make_change, requester_of
from dafka.kafka.apis.shared.registry import Decision, RequestContext, handles
from dafka.kafka.apis.shared.repeats import MESSAGE
from dafka.kafka.protocol.constants import MATCHES_ANY, MATCHES_DEFAULT, MATCHES_NAME
from dafka.kafka.protocol.messages.quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlteredEntryData,
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    EntryResult,
    ValueData,
)


@handles(
    DescribeClientQuotasRequest,
    require_cluster(Operation.DESCRIBE_CONFIGS, DescribeClientQuotasResponse, error_message=None, entries=None),
    awaits_metadata=True,
)
async def describe_quotas(
    context: RequestContext, request: DescribeClientQuotasRequest
) -> DescribeClientQuotasResponse:
    """Answer with the quotas of the entities that a filter selects."""
    try:
        filters = _read_filters(request.components)
    except RefusedPartError as refused:
        return DescribeClientQuotasResponse(error_code=refused.error_code, error_message=str(refused), entries=None)
    entries = [
        EntryData(
            entity=_describe_entity(each.entity),
            values=[ValueData(key=name, value=float(limit)) for name, limit in each.limits.items()],
        )
        for each in context.broker.node.tables.state.quotas.list_quotas()
        if _is_selected(each.entity, filters, is_strict=request.strict)
    ]
    return DescribeClientQuotasResponse(error_code=ErrorCode.NONE, error_message=None, entries=entries)


def _describe_entity(entity: QuotaEntity) -> list[EntityData]:
    return [
        EntityData(entity_type=each.kind.value, entity_name=None if each.is_default else each.name)
        for each in entity.parts
    ]


def _read_filters(components: list[ComponentData]) -> dict[EntityType, ComponentData]:
    """Return what a request selects by type. Raise `RefusedPartError` if it is not possible."""
    found: dict[EntityType, ComponentData] = {}
    for each in components:
        kind = _read_type(each.entity_type)
        if kind in found:
            raise RefusedPartError(f"the type {kind.value} is asked for twice")
        if each.match_type not in {MATCHES_NAME, MATCHES_DEFAULT, MATCHES_ANY}:
            raise RefusedPartError(
                f"expected 0 (a name), 1 (the default) or 2 (any) as the match, not {each.match_type}"
            )
        if each.match_type == MATCHES_NAME and not each.match:
            raise RefusedPartError(f"the name of the {kind.value} is missing")
        if kind is EntityType.IP and each.match:
            with suppress(ValueError):  # no quota has a name that is no address
                each.match = normalize_host(each.match)
        found[kind] = each
    return found


def _is_selected(entity: QuotaEntity, filters: dict[EntityType, ComponentData], *, is_strict: bool) -> bool:
    parts = {each.kind: each for each in entity.parts}
    if not filters.keys() <= parts.keys() or (is_strict and filters.keys() != parts.keys()):
        return False
    return all(_matches(parts[kind], each) for kind, each in filters.items())


def _matches(part: EntityPart, asked: ComponentData) -> bool:
    if asked.match_type == MATCHES_NAME:
        return not part.is_default and part.name == asked.match
    return asked.match_type == MATCHES_ANY or part.is_default


def _authorize_alteration(user: Permissions, _context: RequestContext, request: AlterClientQuotasRequest) -> Decision:
    """Require the permission to change settings of the cluster."""
    if user.allow(Operation.ALTER_CONFIGS, ResourceType.CLUSTER):
        return None
    entries = [
        EntryResult(error_code=CLUSTER_REFUSED, error_message=None, entity=each.entity) for each in request.entries
    ]
    return AlterClientQuotasResponse(entries=entries)


@handles(AlterClientQuotasRequest, _authorize_alteration, awaits_metadata=True)
async def alter_quotas(context: RequestContext, request: AlterClientQuotasRequest) -> AlterClientQuotasResponse:
    """Set and remove quotas: all that the request names for an entity, or none of them if one is not possible.

    An entity that is named more than once is refused.
    """
    counts = Counter(map(_identify, request.entries))

    async def alter(entry: AlteredEntryData) -> EntryResult:
        error, message = ErrorCode.NONE, None
        try:
            if counts[_identify(entry)] > 1:
                raise RefusedPartError(MESSAGE)
            command = _read_entry(entry)
        except RefusedPartError as refused:
            error, message = refused.error_code, str(refused)
        else:
            if not request.validate_only:
                change = context.broker.node.admin.change(command, requester_of(context))
                error, message = await make_change(change)
        return EntryResult(error_code=error, error_message=message, entity=entry.entity)

    return AlterClientQuotasResponse(entries=await make_all(alter, request.entries))


def _identify(entry: AlteredEntryData) -> frozenset[tuple[str, str | None]]:
    return frozenset((each.entity_type, each.entity_name) for each in entry.entity)


def _read_entry(entry: AlteredEntryData) -> AlterClientQuota:
    """Return the command that changes the quotas of an entity. Raise `RefusedPartError` if it is not possible."""
    parts = {_read_type(each.entity_type): each.entity_name for each in entry.entity}
    if len(parts) < len(entry.entity):
        raise RefusedPartError("the entity names a type twice")
    if address := parts.get(EntityType.IP):
        try:
            parts[EntityType.IP] = normalize_host(address)
        except ValueError:
            raise RefusedPartError(f"expected an address as the ip, not {address[:100]!r}") from None
    entity = make_entity(parts)
    problem = find_entity_problem(entity)
    if len({each.key for each in entry.ops}) < len(entry.ops):
        problem = problem or "a quota is changed twice"
    for each in entry.ops:
        problem = problem or find_limit_problem(entity, each.key, 1.0 if each.remove else each.value)
    if problem:
        raise RefusedPartError(problem)
    limits = {each.key: _write_number(each.value) for each in entry.ops if not each.remove}
    return AlterClientQuota(entity, limits, tuple(each.key for each in entry.ops if each.remove))


def _write_number(value: float) -> str:
    return str(int(value)) if value.is_integer() else repr(value)


def _read_type(name: str) -> EntityType:
    try:
        return EntityType(name)
    except ValueError:
        expected = ", ".join(each.value for each in EntityType)
        message = f"there are no quotas for the type {name[:100]!r}: expected {expected}"
        raise RefusedPartError(message, ErrorCode.UNSUPPORTED_VERSION) from None
