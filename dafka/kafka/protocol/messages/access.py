"""ACLs, and the SCRAM credentials of users."""

from __future__ import annotations

from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.protocol.tables import Bytes, Int8, Int16, Int32, Request, Response, String, Struct, field


class DescribeAclsRequest(Request, key=ApiKey.DESCRIBE_ACLS, versions="0-3", flexible="2+"):
    """Ask for the ACLs that a filter selects."""

    resource_type_filter: Int8
    resource_name_filter: String | None
    pattern_type_filter: Int8 = field("1+", default=3)
    principal_filter: String | None
    host_filter: String | None
    operation: Int8
    permission_type: Int8


class AclDescription(Struct):
    """An item of `DescribeAclsResource.acls`."""

    principal: String
    host: String
    operation: Int8
    permission_type: Int8


class DescribeAclsResource(Struct):
    """An item of `DescribeAclsResponse.resources`."""

    resource_type: Int8
    resource_name: String
    pattern_type: Int8 = field("1+", default=3)
    acls: list[AclDescription]


class DescribeAclsResponse(Response, key=ApiKey.DESCRIBE_ACLS, versions="0-3", flexible="2+"):
    """ACLs, by what they are about."""

    throttle_time_ms: Int32 = field(default=0)
    error_code: Int16
    error_message: String | None
    resources: list[DescribeAclsResource]


class AclCreation(Struct):
    """An item of `CreateAclsRequest.creations`."""

    resource_type: Int8
    resource_name: String
    resource_pattern_type: Int8 = field("1+", default=3)
    principal: String
    host: String
    operation: Int8
    permission_type: Int8


class CreateAclsRequest(Request, key=ApiKey.CREATE_ACLS, versions="0-3", flexible="2+"):
    """Create ACLs."""

    creations: list[AclCreation]


class AclCreationResult(Struct):
    """An item of `CreateAclsResponse.results`."""

    error_code: Int16
    error_message: String | None


class CreateAclsResponse(Response, key=ApiKey.CREATE_ACLS, versions="0-3", flexible="2+"):
    """Whether each ACL was created."""

    throttle_time_ms: Int32 = field(default=0)
    results: list[AclCreationResult]


class DeleteAclsFilter(Struct):
    """An item of `DeleteAclsRequest.filters`."""

    resource_type_filter: Int8
    resource_name_filter: String | None
    pattern_type_filter: Int8 = field("1+", default=3)
    principal_filter: String | None
    host_filter: String | None
    operation: Int8
    permission_type: Int8


class DeleteAclsRequest(Request, key=ApiKey.DELETE_ACLS, versions="0-3", flexible="2+"):
    """Delete the ACLs that filters select."""

    filters: list[DeleteAclsFilter]


class DeleteAclsMatchingAcl(Struct):
    """An item of `DeleteAclsFilterResult.matching_acls`."""

    error_code: Int16
    error_message: String | None
    resource_type: Int8
    resource_name: String
    pattern_type: Int8 = field("1+", default=3)
    principal: String
    host: String
    operation: Int8
    permission_type: Int8


class DeleteAclsFilterResult(Struct):
    """An item of `DeleteAclsResponse.filter_results`."""

    error_code: Int16
    error_message: String | None
    matching_acls: list[DeleteAclsMatchingAcl]


class DeleteAclsResponse(Response, key=ApiKey.DELETE_ACLS, versions="0-3", flexible="2+"):
    """The ACLs that each filter has selected, and whether they were deleted."""

    throttle_time_ms: Int32 = field(default=0)
    filter_results: list[DeleteAclsFilterResult]


class UserName(Struct):
    """An item of `DescribeUserScramCredentialsRequest.users`."""

    name: String


class DescribeUserScramCredentialsRequest(
    Request, key=ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, versions="0", flexible="0+"
):
    """Ask which credentials users have. None or no users are all."""

    users: list[UserName] | None


class CredentialInfo(Struct):
    """An item of `DescribeUserScramCredentialsResult.credential_infos`."""

    mechanism: Int8
    iterations: Int32


class DescribeUserScramCredentialsResult(Struct):
    """An item of `DescribeUserScramCredentialsResponse.results`."""

    user: String
    error_code: Int16
    error_message: String | None
    credential_infos: list[CredentialInfo]


class DescribeUserScramCredentialsResponse(
    Response, key=ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, versions="0", flexible="0+"
):
    """Which credentials users have, without what they consist of."""

    throttle_time_ms: Int32 = field(default=0)
    error_code: Int16
    error_message: String | None
    results: list[DescribeUserScramCredentialsResult]


class ScramCredentialDeletion(Struct):
    """An item of `AlterUserScramCredentialsRequest.deletions`."""

    name: String
    mechanism: Int8


class ScramCredentialUpsertion(Struct):
    """An item of `AlterUserScramCredentialsRequest.upsertions`."""

    name: String
    mechanism: Int8
    iterations: Int32
    salt: Bytes
    salted_password: Bytes


class AlterUserScramCredentialsRequest(Request, key=ApiKey.ALTER_USER_SCRAM_CREDENTIALS, versions="0", flexible="0+"):
    """Delete and set credentials of users. The client has hashed the passwords."""

    deletions: list[ScramCredentialDeletion]
    upsertions: list[ScramCredentialUpsertion]


class AlterUserScramCredentialsResult(Struct):
    """An item of `AlterUserScramCredentialsResponse.results`."""

    user: String
    error_code: Int16
    error_message: String | None


class AlterUserScramCredentialsResponse(Response, key=ApiKey.ALTER_USER_SCRAM_CREDENTIALS, versions="0", flexible="0+"):
    """Whether the credentials of each user were changed."""

    throttle_time_ms: Int32 = field(default=0)
    results: list[AlterUserScramCredentialsResult]
