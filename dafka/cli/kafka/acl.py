"""`dafka acl`: lists, creates and deletes the ACLs of a cluster."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any

import click

from dafka.broker.core.acls import (
    CLUSTER_NAME,
    EVERY_NAME,
    PRINCIPAL_PREFIX,
    Acl,
    AclEffect,
    AclFilter,
    Operation,
    PatternType,
    ResourceType,
    find_acl_problem,
    spell,
)
from dafka.cli.kafka.client import KafkaClient, check_error, report_results
from dafka.cli.kafka.options import client_options, json_option
from dafka.cli.options import Decorator, add_options
from dafka.cli.terminal import UsageMistake, confirm, print_json_lines, print_table, yes_option
from dafka.kafka.protocol.messages.access import (
    AclCreation,
    CreateAclsRequest,
    DeleteAclsFilter,
    DeleteAclsRequest,
    DescribeAclsRequest,
)
from dafka.text import counted

_OPERATIONS = {
    spell(each): each
    for each in Operation
    if each not in {Operation.ANY, Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS}
}
_COLUMNS = ("principal", "effect", "operation", "resource", "name", "host")
_STAR = "* at its end stands for any characters"


def _resource_options(what: str, *, multiple: bool) -> Decorator:
    """Return the options that name resources."""
    named = (("topic", "topic"), ("group", "group of consumers"), ("transaction", "transactional id"))
    return add_options(
        *(
            click.option(f"--{name}", metavar="PATTERN", multiple=multiple, help=f"{what} this {kind}; {_STAR}.")
            for name, kind in named
        ),
        click.option("--cluster", is_flag=True, help=f"{what} the cluster."),
    )


_filter_options = add_options(
    click.option("--principal", metavar="NAME", help="Only ACLs for this user; * for ACLs for all users."),
    _resource_options("Only ACLs about", multiple=False),
    click.option("--operation", type=click.Choice([*_OPERATIONS]), help="Only ACLs for this operation."),
    click.option("--host", metavar="ADDRESS", help="Only ACLs for clients at this address; * for all addresses."),
)


@click.group()
def acl() -> None:
    """List, create and delete ACLs, which say what users may do in a cluster.

    They count on every broker, for users of the cluster and of the brokers' files. `dafka user` manages such a file.
    """


@acl.command("list")
@_filter_options
@json_option
@client_options
def list_acls(as_json: bool, client: KafkaClient, **chosen: Any) -> None:
    """List the ACLs. A topic, a group or a transactional id selects all ACLs that apply to it."""
    found = _describe(client, _read_filter(chosen, PatternType.MATCH))
    if as_json:
        print_json_lines(map(_document, found))
    else:
        _print(found)


@acl.command()
@click.option("--allow", metavar="NAME", multiple=True, help="A user to whom it is allowed; * for all users.")
@click.option("--deny", metavar="NAME", multiple=True, help="A user to whom it is denied, whatever else allows it.")
@click.option("--operation", "operations", type=click.Choice([*_OPERATIONS]), multiple=True, help="An operation.")
@_resource_options("About", multiple=True)
@click.option("--host", "hosts", metavar="ADDRESS", multiple=True, help="Only for clients at this address.")
@client_options
def create(
    allow: tuple[str, ...],
    deny: tuple[str, ...],
    operations: tuple[str, ...],
    topic: tuple[str, ...],
    group: tuple[str, ...],
    transaction: tuple[str, ...],
    cluster: bool,
    hosts: tuple[str, ...],
    client: KafkaClient,
) -> None:
    """Create ACLs: one for each user, operation, resource and address that is named.

    dafka acl create --allow anne --operation read --topic 'orders-*' --group readers
    """
    effects = [(AclEffect.ALLOW, name) for name in allow] + [(AclEffect.DENY, name) for name in deny]
    named = ((ResourceType.TOPIC, topic), (ResourceType.GROUP, group), (ResourceType.TRANSACTIONAL_ID, transaction))
    resources = [(kind, *_read_pattern(each)) for kind, patterns in named for each in patterns]
    resources += [(ResourceType.CLUSTER, CLUSTER_NAME, PatternType.LITERAL)] * cluster
    if not effects:
        raise UsageMistake("expected users: name them with --allow or --deny")
    if not operations:
        raise UsageMistake("expected what is allowed or denied: name it with --operation")
    if not resources:
        raise UsageMistake("expected what the ACLs are about: --topic, --group, --transaction or --cluster")
    acls = [
        Acl(kind, name, _principal(user), _OPERATIONS[operation], pattern_type, host, effect)
        for (effect, user), operation, (kind, name, pattern_type), host in product(
            effects, operations, resources, hosts or (EVERY_NAME,)
        )
    ]
    for each in acls:
        if problem := find_acl_problem(each):
            raise UsageMistake(problem)
    results = client.ask(CreateAclsRequest(creations=[_creation(each) for each in acls])).results
    report_results(
        (f"created: {each}", f"the ACL '{each}'", result.error_code, result.error_message)
        for each, result in zip(acls, results, strict=True)
    )


@acl.command()
@_filter_options
@yes_option
@client_options
def delete(yes: bool, client: KafkaClient, **chosen: Any) -> None:
    """Delete the ACLs that the options select, by exactly these patterns.

    What the file of users of a broker permits is not deleted: `dafka user change` does that.
    """
    if not any(chosen.values()):
        raise UsageMistake("expected which ACLs: --principal, --topic, --group, --transaction, --cluster or others")
    wanted = _read_filter(chosen, PatternType.LITERAL)
    found = _describe(client, wanted)
    if not found:
        raise UsageMistake("there are no such ACLs")
    if not yes:
        _print(found)
    confirm(f"Delete {counted(len(found), 'ACL')}?", yes=yes, declined="nothing was deleted")
    (result,) = client.ask(DeleteAclsRequest(filters=[DeleteAclsFilter(**_filter_fields(wanted))])).filter_results
    check_error(result.error_code, "the ACLs", result.error_message)
    deleted = [
        (_read_acl(each.resource_type, each.resource_name, each.pattern_type, each), each)
        for each in result.matching_acls
    ]
    report_results(
        (f"deleted: {about}", f"the ACL '{about}'", each.error_code, each.error_message) for about, each in deleted
    )


def _describe(client: KafkaClient, chosen: AclFilter) -> list[Acl]:
    answer = client.ask(DescribeAclsRequest(**_filter_fields(chosen)))
    check_error(answer.error_code, "the ACLs", answer.error_message)
    found = [
        _read_acl(resource.resource_type, resource.resource_name, resource.pattern_type, each)
        for resource in answer.resources
        for each in resource.acls
    ]
    return sorted(found, key=lambda each: (each.principal, each.resource_type, each.name, each.operation))


def _read_acl(resource_type: int, name: str, pattern_type: int, found: Any) -> Acl:
    return Acl(
        ResourceType(resource_type),
        name,
        found.principal,
        Operation(found.operation),
        PatternType(pattern_type),
        found.host,
        AclEffect(found.permission_type),
    )


def _read_pattern(text: str) -> tuple[str, PatternType]:
    """Return the name and the type of a pattern. Raise `UsageMistake` if a star is elsewhere than at its end."""
    name = text.removesuffix(EVERY_NAME)
    if EVERY_NAME in name:
        raise UsageMistake(f"expected a name, what names begin with and *, or * alone, not {text!r}")
    return (name, PatternType.PREFIXED) if name and name != text else (text, PatternType.LITERAL)


def _principal(user: str) -> str:
    return PRINCIPAL_PREFIX + user.removeprefix(PRINCIPAL_PREFIX)


def _read_filter(chosen: dict[str, Any], named: PatternType) -> AclFilter:
    """Return the filter of options. Names without a star select patterns of a type."""
    kinds = {
        "topic": ResourceType.TOPIC,
        "group": ResourceType.GROUP,
        "transaction": ResourceType.TRANSACTIONAL_ID,
        "cluster": ResourceType.CLUSTER,
    }
    given = [each for each in kinds if chosen[each]]
    if len(given) > 1:
        raise UsageMistake(f"expected one of --{' and --'.join(given)}")
    kind, name, pattern_type = ResourceType.ANY, None, PatternType.ANY
    if given:
        kind = kinds[given[0]]
    if given and kind is not ResourceType.CLUSTER:
        name, pattern_type = _read_pattern(chosen[given[0]])
        if pattern_type is PatternType.LITERAL and name != EVERY_NAME:
            pattern_type = named
    principal, operation = chosen["principal"], chosen["operation"]
    return AclFilter(
        kind,
        name,
        pattern_type,
        None if principal is None else _principal(principal),
        chosen["host"],
        Operation.ANY if operation is None else _OPERATIONS[operation],
    )


def _filter_fields(chosen: AclFilter) -> dict[str, Any]:
    return {
        "resource_type_filter": chosen.resource_type,
        "resource_name_filter": chosen.name,
        "pattern_type_filter": chosen.pattern_type,
        "principal_filter": chosen.principal,
        "host_filter": chosen.host,
        "operation": chosen.operation,
        "permission_type": chosen.effect,
    }


def _creation(each: Acl) -> AclCreation:
    return AclCreation(
        resource_type=each.resource_type,
        resource_name=each.name,
        resource_pattern_type=each.pattern_type,
        principal=each.principal,
        host=each.host,
        operation=each.operation,
        permission_type=each.effect,
    )


def _cells(each: Acl) -> tuple[str, ...]:
    effect, operation, kind = map(spell, (each.effect, each.operation, each.resource_type))
    return each.principal.removeprefix(PRINCIPAL_PREFIX), effect, operation, kind, each.pattern, each.host


def _document(each: Acl) -> dict[str, str]:
    return dict(zip(_COLUMNS, _cells(each), strict=True))


def _print(found: Iterable[Acl]) -> None:
    print_table(_COLUMNS, (), list(map(_cells, found)))
