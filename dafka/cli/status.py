"""`dafka status` and `dafka health`: the state of a cluster, and of one running command."""

from __future__ import annotations

import http.client
import json
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import AsyncExitStack, suppress

import click
import trio

from dafka.broker.core.metadata.brokers import BROKERS_TOPIC, BrokerRegistration, decode_broker
from dafka.cli.options import DURATION, node_options
from dafka.cli.runner import require_tower, run
from dafka.cli.status_output import BrokerView, Shown, print_survey, survey_to_json
from dafka.config import Config, split_listen_address
from dafka.errors import ConfigError, DiscoveryError, StorageFormatError
from dafka.protocol import ClusterSurvey
from dafka.protocol.observer.cluster_survey import NodeState
from dafka.roles import Reader, open_observer, open_reader
from dafka.text import counted, escape_unprintable

HEALTH_BYTES_MAX = 4096
"""The maximum size of an answer to `dafka health`, in bytes."""


@click.command()
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@click.option("--json", "as_json", is_flag=True, help="Print each survey as one JSON object in a line.")
@click.option(
    "--watch", type=DURATION, metavar="DURATION", help="Repeat the survey after this long, until interrupted."
)
@click.option(
    "--timeout",
    type=DURATION,
    metavar="DURATION",
    help="How long to look for a tower, and then to wait for answers.  [default: 10s]",
)
@click.option(
    "--max-lag",
    type=click.IntRange(min=0),
    metavar="N",
    help="Exit with 1 if a store lags by more records or its lag is not known, a node or tower is silent, or too few "
    "brokers keep a log.",
)
@click.option("--partitions", "has_partitions", is_flag=True, help="Show each partition, too.")
@click.option("--all", "is_all", is_flag=True, help="Show all rows, not only the first 20 of each table.")
@node_options
def status(
    config: Config,
    topics: tuple[str, ...],
    as_json: bool,
    watch: int | None,
    timeout: int | None,
    max_lag: int | None,
    has_partitions: bool,
    is_all: bool,
) -> None:
    """Show a running cluster: nodes, topics, brokers, and each store's lag.

    With TOPICs, only these are shown. Problems come first in each table.
    """
    if timeout is not None:
        config = config.with_node(tower_timeout_ms=timeout)
    last_status: int | None = None

    async def program() -> int:
        nonlocal last_status
        async with (
            open_observer(topics, config) as observer,
            require_tower(observer, config),
            AsyncExitStack() as stack,
        ):
            brokers = ClusterBrokers(config, stack)
            await observer.wait_settled()
            while True:
                survey = await observer.survey(config.node.tower_timeout_ms / 1000)
                views = await brokers.view(survey)
                faults = None if max_lag is None else [*survey.faults(max_lag), *broker_faults(views)]
                found = 1 if faults else 0
                if as_json:
                    click.echo(json.dumps(survey_to_json(survey, faults, views)))
                else:
                    print_survey(survey, faults, Shown(is_all, has_partitions), views)
                if watch is None:
                    return found
                last_status = found
                await trio.sleep(watch / 1000)
                if not as_json:
                    click.echo()
                    click.clear()

    run(program, interrupted=lambda: last_status)


class ClusterBrokers:
    """Reads how brokers describe themselves, if a cluster has any. What it opens for that is closed with the stack."""

    def __init__(self, config: Config, stack: AsyncExitStack) -> None:
        # A port that was chosen is that of the observer.
        self._config = config.with_node(bind=re.sub(r":\d+$", ":*", config.node.bind))
        self._timeout_s = config.node.tower_timeout_ms / 1000
        self._stack = stack
        self._reader: Reader | None = None

    async def view(self, survey: ClusterSurvey) -> list[BrokerView]:
        """Return the brokers of a cluster by number; none if it has none, or no store answers in time."""
        if all(topic.name != BROKERS_TOPIC for topic in survey.topics):
            return []
        present = {node.address for node in survey.nodes if node.state is NodeState.UP}
        if self._reader is None:
            self._reader = await self._stack.enter_async_context(open_reader([BROKERS_TOPIC], self._config))
        found: list[BrokerRegistration] = []
        with trio.move_on_after(self._timeout_s), suppress(DiscoveryError):
            await self._reader.wait_ready()
            found = await read_brokers(self._reader)
        return [
            BrokerView(
                number=each.number,
                address=each.address,
                is_alive=each.address in present,
                is_draining=each.is_draining,
                under_replicated_logs=each.under_replicated_logs,
            )
            for each in found
        ]


def broker_faults(brokers: Iterable[BrokerView]) -> Iterator[str]:
    """Yield a sentence for each broker that is dead, or that leads logs that too few others keep."""
    for each in brokers:
        if not each.is_alive:
            yield f"broker {each.number} is dead"
        elif each.under_replicated_logs:
            logs = counted(each.under_replicated_logs, "log")
            yield f"broker {each.number} leads {logs} of which fewer brokers have all records than should"


async def read_brokers(reader: Reader) -> list[BrokerRegistration]:
    """Return the brokers of a cluster by number, living or not, as they have described themselves last.

    Descriptions that this version of dafka cannot read are not among them. The reader has the topic `$brokers` alone,
    and waits without limit for records that no store sends.
    """
    found = []
    for partition, end in reader.ends().items():
        if not end:
            continue
        records = reader.read(partition, end - 1, end)
        async for batch in records:
            with suppress(StorageFormatError):
                found += [decode_broker(partition.address, value) for value in batch.values if value]
        records.close()
    return sorted(found, key=lambda broker: (broker.number, broker.address))


def _parse_address(_context: click.Context, _parameter: click.Parameter, value: str) -> tuple[str, int]:
    try:
        return split_listen_address(value)
    except ConfigError as error:
        raise click.BadParameter(str(error)) from None


@click.command()
@click.argument("address", metavar="[ADDRESS:]PORT", callback=_parse_address)
@click.option("--live", is_flag=True, help="Ask only whether the command must be restarted, not whether it is ready.")
@click.option(
    "--timeout",
    type=DURATION,
    default="5s",
    show_default=True,
    metavar="DURATION",
    help="How long to wait for the answer.",
)
def health(address: tuple[str, int], live: bool, timeout: int) -> None:
    """Ask a running command whether it is healthy.

    The command must run with --metrics-listen [ADDRESS:]PORT. Exits with 0 if it is ready to work, otherwise with 1,
    and prints the reason in one sentence. Use it as the health check of a container.
    """
    status, sentence = _ask(*address, "/livez" if live else "/readyz", timeout / 1000)
    click.echo(sentence)
    sys.exit(0 if status == 200 else 1)


def _ask(host: str, port: int, path: str, timeout_s: float) -> tuple[int, str]:
    """Return the HTTP status, or 0 without an answer, and a sentence."""
    connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read(HEALTH_BYTES_MAX).decode("utf-8", "replace")
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return 0, f"no answer from {host} port {port}: {reason}"
    finally:
        connection.close()
    return response.status, escape_unprintable(" ".join(body.split())) or f"status {response.status}"
