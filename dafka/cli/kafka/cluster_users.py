"""`dafka user cluster`: the users of a cluster, who log in with a password at every broker."""

from __future__ import annotations

import hashlib
import secrets

import click

from dafka.broker.access.credentials import DEFAULT_ITERATIONS, prepare_password
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.scram_credentials import ScramMechanism
from dafka.cli.kafka.client import KafkaClient, check_error
from dafka.cli.kafka.options import client_options, json_option, read_password
from dafka.cli.options import usage_mistakes
from dafka.cli.terminal import UsageMistake, print_json_lines, print_table
from dafka.kafka.protocol.messages.access import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
    UserName,
)

_SALT_BYTES = 32


@click.group()
def cluster() -> None:
    """Manage the users of a cluster, over a broker. They log in at every broker that has --users.

    `dafka acl` says what they may do. Users of a broker's file are shown, and are changed in the file.
    """


@cluster.command()
@click.argument("name")
@click.option(
    "--new-password-file",
    type=click.Path(),
    metavar="FILE",
    help="A file whose first line is the password of the new user.  [default: ask for it]",
)
@client_options
def add(name: str, new_password_file: str | None, client: KafkaClient) -> None:
    """Add user NAME, or give it another password. The password is hashed here, and not sent."""
    with usage_mistakes():
        password = prepare_password(read_password(new_password_file, is_new=True))
    upsertions = []
    for each in ScramMechanism:
        salt = secrets.token_bytes(_SALT_BYTES)
        salted = hashlib.pbkdf2_hmac(each.hash_name, password, salt, DEFAULT_ITERATIONS)
        upsertions.append(
            ScramCredentialUpsertion(
                name=name, mechanism=each, iterations=DEFAULT_ITERATIONS, salt=salt, salted_password=salted
            )
        )
    (result,) = client.ask(AlterUserScramCredentialsRequest(deletions=[], upsertions=upsertions)).results
    check_error(result.error_code, f"user {name!r}", result.error_message)
    click.echo(f"added {name} to the cluster: `dafka acl create --allow {name}` says what it may do", err=True)


@cluster.command()
@click.argument("name")
@client_options
def remove(name: str, client: KafkaClient) -> None:
    """Remove user NAME. Brokers disconnect its clients at their next request. Its ACLs remain."""
    deletions = [ScramCredentialDeletion(name=name, mechanism=each) for each in _find(client, name)]
    (result,) = client.ask(AlterUserScramCredentialsRequest(deletions=deletions, upsertions=[])).results
    check_error(result.error_code, f"user {name!r}", result.error_message)
    click.echo(f"removed {name} from the cluster", err=True)


def _find(client: KafkaClient, name: str) -> list[int]:
    """Return the mechanisms for which a user has credentials. Raise `UsageMistake` if it does not exist."""
    answer = client.ask(DescribeUserScramCredentialsRequest(users=[UserName(name=name)]))
    check_error(answer.error_code, f"user {name!r}", answer.error_message)
    (found,) = answer.results
    if found.error_code == ErrorCode.RESOURCE_NOT_FOUND:
        raise UsageMistake(f"there is no user {name!r}")
    check_error(found.error_code, f"user {name!r}", found.error_message)
    return [each.mechanism for each in found.credential_infos]


@cluster.command("list")
@json_option
@client_options
def list_users(as_json: bool, client: KafkaClient) -> None:
    """List the users of the cluster and of the broker's file, with their mechanisms."""
    answer = client.ask(DescribeUserScramCredentialsRequest(users=None))
    check_error(answer.error_code, "the users", answer.error_message)
    found = {
        each.user: {ScramMechanism(info.mechanism).sasl_name: info.iterations for info in each.credential_infos}
        for each in sorted(answer.results, key=lambda each: each.user)
    }
    if as_json:
        print_json_lines({"user": name, "iterations": iterations} for name, iterations in found.items())
    else:
        print_table(("user", "mechanisms"), (), [(name, ", ".join(kinds)) for name, kinds in found.items()])
