"""DescribeClientQuotas and AlterClientQuotas."""

from __future__ import annotations

from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.protocol.tables import Boolean, Float64, Int8, Int16, Int32, Request, Response, String, Struct, field


class ComponentData(Struct):
    """An item of `DescribeClientQuotasRequest.components`."""

    entity_type: String
    match_type: Int8
    match: String | None


class DescribeClientQuotasRequest(Request, key=ApiKey.DESCRIBE_CLIENT_QUOTAS, versions="0-1", flexible="1+"):
    """Ask for the quotas of entities."""

    components: list[ComponentData]
    strict: Boolean


class EntityData(Struct):
    """An item of `EntryData.entity`. The name is None for the default."""

    entity_type: String
    entity_name: String | None


class ValueData(Struct):
    """An item of `EntryData.values`."""

    key: String
    value: Float64


class EntryData(Struct):
    """An item of `DescribeClientQuotasResponse.entries`."""

    entity: list[EntityData]
    values: list[ValueData]


class DescribeClientQuotasResponse(Response, key=ApiKey.DESCRIBE_CLIENT_QUOTAS, versions="0-1", flexible="1+"):
    """The quotas of entities."""

    throttle_time_ms: Int32 = field(default=0)
    error_code: Int16
    error_message: String | None
    entries: list[EntryData] | None


class OpData(Struct):
    """An item of `AlteredEntryData.ops`."""

    key: String
    value: Float64
    remove: Boolean


class AlteredEntryData(Struct):
    """An item of `AlterClientQuotasRequest.entries`."""

    entity: list[EntityData]
    ops: list[OpData]


class AlterClientQuotasRequest(Request, key=ApiKey.ALTER_CLIENT_QUOTAS, versions="0-1", flexible="1+"):
    """Set and remove quotas of entities."""

    entries: list[AlteredEntryData]
    validate_only: Boolean


class EntryResult(Struct):
    """An item of `AlterClientQuotasResponse.entries`."""

    error_code: Int16
    error_message: String | None
    entity: list[EntityData]


class AlterClientQuotasResponse(Response, key=ApiKey.ALTER_CLIENT_QUOTAS, versions="0-1", flexible="1+"):
    """Whether the quotas of each entity were changed."""

    throttle_time_ms: Int32 = field(default=0)
    entries: list[EntryResult]
