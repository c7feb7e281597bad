"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs: the settings of topics and brokers."""

from __future__ import annotations

from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.protocol.tables import Boolean, Int8, Int16, Int32, Request, Response, String, Struct, field


class DescribeConfigsResource(Struct):
    """An item of `DescribeConfigsRequest.resources`."""

    resource_type: Int8
    resource_name: String
    configuration_keys: list[String] | None


class DescribeConfigsRequest(Request, key=ApiKey.DESCRIBE_CONFIGS, versions="0-4", flexible="4+"):
    """Ask for settings."""

    resources: list[DescribeConfigsResource]
    include_synonyms: Boolean = field("1+", default=False)
    include_documentation: Boolean = field("3+", default=False)


class DescribeConfigsSynonym(Struct):
    """An item of `DescribeConfigsResourceResult.synonyms`."""

    name: String
    value: String | None
    source: Int8


class DescribeConfigsResourceResult(Struct):
    """An item of `DescribeConfigsResult.configs`."""

    name: String
    value: String | None
    read_only: Boolean
    config_source: Int8 = field("1+", default=-1)
    is_default: Boolean = field("0", default=False)
    is_sensitive: Boolean
    synonyms: list[DescribeConfigsSynonym] = field("1+", default=[])
    config_type: Int8 = field("3+", default=0)
    documentation: String | None = field("3+", default=None)


class DescribeConfigsResult(Struct):
    """An item of `DescribeConfigsResponse.results`."""

    error_code: Int16
    error_message: String | None
    resource_type: Int8
    resource_name: String
    configs: list[DescribeConfigsResourceResult]


class DescribeConfigsResponse(Response, key=ApiKey.DESCRIBE_CONFIGS, versions="0-4", flexible="4+"):
    """Settings, and where their values come from."""

    throttle_time_ms: Int32 = field(default=0)
    results: list[DescribeConfigsResult]


class AlterableConfig(Struct):
    """An item of `AlterConfigsResource.configs`."""

    name: String
    value: String | None


class AlterConfigsResource(Struct):
    """An item of `AlterConfigsRequest.resources`."""

    resource_type: Int8
    resource_name: String
    configs: list[AlterableConfig]


class AlterConfigsRequest(Request, key=ApiKey.ALTER_CONFIGS, versions="0-2", flexible="2+"):
    """Replace all settings of topics or brokers."""

    resources: list[AlterConfigsResource]
    validate_only: Boolean


class AlterConfigsResourceResponse(Struct):
    """An item of `AlterConfigsResponse.responses`."""

    error_code: Int16
    error_message: String | None
    resource_type: Int8
    resource_name: String


class AlterConfigsResponse(Response, key=ApiKey.ALTER_CONFIGS, versions="0-2", flexible="2+"):
    """Whether the settings were replaced."""

    throttle_time_ms: Int32 = field(default=0)
    responses: list[AlterConfigsResourceResponse]


class IncrementalAlterableConfig(Struct):
    """An item of `AlterConfigsResource.configs`."""

    name: String
    config_operation: Int8
    value: String | None


class IncrementalAlterConfigsResource(Struct):
    """An item of `IncrementalAlterConfigsRequest.resources`."""

    resource_type: Int8
    resource_name: String
    configs: list[IncrementalAlterableConfig]


class IncrementalAlterConfigsRequest(Request, key=ApiKey.INCREMENTAL_ALTER_CONFIGS, versions="0-1", flexible="1+"):
    """Change some settings of topics or brokers."""

    resources: list[IncrementalAlterConfigsResource]
    validate_only: Boolean


class IncrementalAlterConfigsResponse(Response, key=ApiKey.INCREMENTAL_ALTER_CONFIGS, versions="0-1", flexible="1+"):
    """Whether the settings were changed."""

    throttle_time_ms: Int32 = field(default=0)
    responses: list[AlterConfigsResourceResponse]


class ListConfigResourcesRequest(Request, key=ApiKey.LIST_CONFIG_RESOURCES, versions="0-1", flexible="0+"):
    """Ask what has settings, by types."""

    resource_types: list[Int8] = field("1+", default=[])


class ConfigResource(Struct):
    """An item of `ListConfigResourcesResponse.config_resources`."""

    resource_name: String
    resource_type: Int8 = field("1+", default=16)


class ListConfigResourcesResponse(Response, key=ApiKey.LIST_CONFIG_RESOURCES, versions="0-1", flexible="0+"):
    """What has settings."""

    throttle_time_ms: Int32 = field(default=0)
    error_code: Int16
    config_resources: list[ConfigResource]
