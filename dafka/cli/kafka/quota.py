"""`dafka quota`: lists, sets and removes the quotas of clients."""

from __future__ import annotations

from typing import Any

import click

from dafka.broker.core.client_quotas import (
    EntityType,
    QuotaEntity,
    QuotaKey,
    find_entity_problem,
    find_limit_problem,
    list_limits,
    make_entity,
)
from dafka.cli.kafka.client import KafkaClient, check_error
from dafka.cli.kafka.options import client_options, json_option
from dafka.cli.options import add_options
from dafka.cli.terminal import UsageMistake, print_json_lines, print_table
from dafka.config.values import parse_size_bytes
from dafka.kafka.protocol.constants import MATCHES_DEFAULT, MATCHES_NAME
from dafka.kafka.protocol.messages.quotas import (
    AlterClientQuotasRequest,
    AlteredEntryData,
    ComponentData,
    DescribeClientQuotasRequest,
    EntityData,
    OpData,
)

_ANY = "*"
_BYTE_RATES = {QuotaKey.PRODUCER_BYTE_RATE.value, QuotaKey.CONSUMER_BYTE_RATE.value}
_OPTIONS = {"for_user": EntityType.USER, "for_client": EntityType.CLIENT_ID, "for_ip": EntityType.IP}
_LIMITS = ", ".join(each.value for each in QuotaKey)

_entity_options = add_options(
    click.option("--for-user", metavar="USER", help="Clients of this user; * for users without a quota of their own."),
    click.option(
        "--for-client", metavar="ID", help="Clients with this client id; * for client ids without a quota of their own."
    ),
    click.option(
        "--for-ip",
        metavar="ADDRESS",
        help="Connections from this address; * for addresses without a quota of their own.",
    ),
)


@click.group()
def quota() -> None:
    """List, set and remove quotas, which limit what clients use of each broker.

    The most specific quota counts. A quota of a user with a client id comes first, then one of the user, then one of
    the client id.
    """


@quota.command("list")
@_entity_options
@json_option
@client_options
def list_quotas(as_json: bool, client: KafkaClient, **entity: str | None) -> None:
    """List the quotas, per second: bytes, logs that are created and deleted, connections."""
    components = [
        ComponentData(
            entity_type=_OPTIONS[option].value,
            match_type=MATCHES_DEFAULT if name == _ANY else MATCHES_NAME,
            match=None if name == _ANY else name,
        )
        for option, name in entity.items()
        if name is not None
    ]
    answer = client.ask(DescribeClientQuotasRequest(components=components, strict=False))
    check_error(answer.error_code, "the quotas", answer.error_message)
    found = [({part.entity_type: part.entity_name for part in each.entity}, each.values) for each in answer.entries]
    found.sort(key=lambda each: [str(each[0].get(kind.value, "")) for kind in EntityType])
    if as_json:
        print_json_lines(
            {"entity": named, "limits": {limit.key: limit.value for limit in limits}} for named, limits in found
        )
        return
    rows = [
        (*(_cell(named, kind) for kind in EntityType), limit.key, f"{limit.value:,.10g}")
        for named, limits in found
        for limit in limits
    ]
    print_table(("user", "client id", "ip", "limit"), ("per second",), rows)


def _cell(named: dict[str, str | None], kind: EntityType) -> str:
    if kind.value not in named:
        return "-"
    return _ANY if named[kind.value] is None else str(named[kind.value])


def _complete_limit(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    return [f"{each.value}=" for each in QuotaKey if each.value.startswith(incomplete)]


@quota.command("set")
@click.argument("limits", nargs=-1, required=True, metavar="LIMIT=VALUE...", shell_complete=_complete_limit)
@_entity_options
@client_options
def set_quota(limits: tuple[str, ...], client: KafkaClient, **entity: str | None) -> None:
    """Set limits per second of a user, a client id, a client id of a user, or an address.

    The LIMITs are producer_byte_rate and consumer_byte_rate, such as 10MB, controller_mutation_rate (logs that are
    created and deleted), and for addresses connection_creation_rate.
    """
    named = _read_entity(entity)
    values = dict(_read_limit(named, each) for each in limits)
    _alter(client, named, [OpData(key=name, value=value, remove=False) for name, value in values.items()])
    for name, value in values.items():
        click.echo(f"{name} is {value:,.10g} per second for {_describe(named)}", err=True)


@quota.command()
@click.argument("limits", nargs=-1, type=click.Choice([each.value for each in QuotaKey]), metavar="[LIMIT...]")
@_entity_options
@client_options
def remove(limits: tuple[str, ...], client: KafkaClient, **entity: str | None) -> None:
    """Remove limits of a user, a client id, a client id of a user, or an address; without LIMITs, all of them."""
    named = _read_entity(entity)
    names = list(dict.fromkeys(limits)) or list_limits(named)
    for name in names:
        if problem := find_limit_problem(named, name, 1.0):
            raise UsageMistake(problem)
    _alter(client, named, [OpData(key=name, value=0.0, remove=True) for name in names])
    click.echo(f"removed {', '.join(names)} of {_describe(named)}", err=True)


def _read_entity(given: dict[str, str | None]) -> QuotaEntity:
    """Return the entity of options. Raise `UsageMistake` if there is none."""
    names = {kind: given[option] for option, kind in _OPTIONS.items() if given[option] is not None}
    if not names:
        raise UsageMistake("expected for whom: --for-user, --for-client, both, or --for-ip")
    entity = make_entity({kind: None if name == _ANY else name for kind, name in names.items()})
    if problem := find_entity_problem(entity):
        raise UsageMistake(problem)
    return entity


def _read_limit(entity: QuotaEntity, text: str) -> tuple[str, float]:
    """Return the name and the value of a limit. Raise `UsageMistake` if it is not possible."""
    name, separator, given = text.partition("=")
    if not separator:
        raise UsageMistake(f"expected LIMIT=VALUE with one of {_LIMITS}, not {text!r}")
    try:
        value = float(parse_size_bytes(given)) if name in _BYTE_RATES else float(given)
    except ValueError as error:
        reason = f"expected a number, not {given!r}" if name not in _BYTE_RATES else error
        raise UsageMistake(f"{name}: {reason}") from None
    if problem := find_limit_problem(entity, name, value):
        raise UsageMistake(problem)
    return name, value


def _alter(client: KafkaClient, entity: QuotaEntity, ops: list[Any]) -> None:
    parts = [
        EntityData(entity_type=each.kind.value, entity_name=None if each.is_default else each.name)
        for each in entity.parts
    ]
    entry = AlteredEntryData(entity=parts, ops=ops)
    (result,) = client.ask(AlterClientQuotasRequest(entries=[entry], validate_only=False)).entries
    check_error(result.error_code, f"the quotas of {_describe(entity)}", result.error_message)


def _describe(entity: QuotaEntity) -> str:
    return ", ".join(f"{each.kind.value} {_ANY if each.is_default else each.name}" for each in entity.parts)
