"""`dafka cluster snapshot` and `restore`: a backup of the metadata of a cluster."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import click

from dafka.broker.core.metadata.cluster_state import ClusterState
from dafka.broker.core.metadata.restoring import take_restored
from dafka.broker.core.metadata.snapshots import read_snapshot_file
from dafka.cli.kafka.http_client import HttpClient
from dafka.cli.kafka.options import http_options
from dafka.cli.terminal import UsageMistake, confirm, yes_option
from dafka.durable_files import replace_text
from dafka.errors import StorageFormatError
from dafka.internal_topics import is_internal_topic
from dafka.text import counted

FILE_MODE = 0o600
"""Who may read the file: only its owner, since it has names, addresses and hashed passwords."""

_REQUEST_RECORDS = 200
"""How many records of the snapshot are sent in one request."""


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--overwrite", is_flag=True, help="Replace FILE if it exists.")
@http_options
def snapshot(file: Path, overwrite: bool, client: HttpClient) -> None:
    """Write the metadata of the cluster to FILE: topics, settings, replicas, brokers, users, ACLs and quotas.

    It has salted and hashed passwords, so keep it secret. It has no records and committed offsets, and no users of a
    broker's file: copy them with `dafka storage copy` and the file.
    """
    if file.exists() and not overwrite:
        raise UsageMistake(f"{file} exists: choose another file, or give --overwrite")
    found = client.ask("GET", "/cluster/snapshot")
    try:
        replace_text(file, found["file"], FILE_MODE, keeps_mode=False)
    except OSError as error:
        raise UsageMistake(f"cannot write {file}: {error.strerror}") from None
    click.echo(f"wrote the metadata of the cluster {found['cluster_id']} at offset {found['offset']}", err=True)


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@yes_option
@http_options
def restore(file: Path, yes: bool, client: HttpClient) -> None:
    """Restore the metadata of a snapshot in FILE in a new cluster without topics.

    Users, ACLs, quotas, settings of groups, and topics with their settings are restored. Users, ACLs and quotas that
    the new cluster has already stay. Records and committed offsets are not restored, nor brokers and the replicas of
    logs: the new cluster chooses replicas itself. Topics get new ids, so that storages of the former cluster never mix
    with those of the new one.
    """
    state = _read_file(file)
    topics = [topic for name, topic in sorted(state.topics.items()) if not is_internal_topic(name)]
    if client.ask("GET", "/topics?limit=1")["topic_count"]:
        raise UsageMistake("this cluster has topics: restore into a new one, whose brokers have empty storages")
    restored = take_restored(state.records)
    counts = [
        (len(state.access.list_credentials()), "user"),
        (len(list(state.access.list_acls())), "ACL"),
        (len(state.quotas.list_quotas()), "quota"),
    ]
    settings = f"the settings of {counted(len(list(state.group_settings.groups())), 'group')}"
    logs = sum(each.log_count for each in topics)
    click.echo(
        f"this restores {', '.join(counted(*each) for each in counts)} and {settings}, and creates "
        f"{counted(len(topics), 'topic')} with {counted(logs, 'log')}, all of them empty: records, committed offsets, "
        "brokers and the replicas of logs are not restored",
        err=True,
    )
    confirm("Restore them?", yes=yes, declined="nothing was restored")
    for first in range(0, len(restored), _REQUEST_RECORDS):
        part = [{"key": key.decode(), "value": json.loads(value)} for key, value in restored[first:][:_REQUEST_RECORDS]]
        client.ask("POST", "/cluster/restored-records", {"records": part})
    for each in topics:
        document = {"name": each.name, "log_count": each.log_count, "settings": dict(each.settings)}
        if each.replica_count:
            document["replica_count"] = each.replica_count
        client.ask("POST", "/topics", document)
    click.echo(f"created {counted(len(topics), 'topic')}", err=True)


def _read_file(file: Path) -> ClusterState:
    """Return the state in a file, and warn if others can read it."""
    try:
        if stat.S_IMODE(file.stat().st_mode) & stat.S_IROTH:
            click.echo(f"warning: others can read {file}, which has hashed passwords: run chmod 600 {file}", err=True)
        return read_snapshot_file(file.read_text("utf-8")).restore()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "expected text"
        raise UsageMistake(f"cannot read {file}: {reason}") from None
    except StorageFormatError as error:
        raise UsageMistake(f"{file}: {error}") from None
