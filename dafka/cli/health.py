"""`dafka health`: whether a running command is well, for whoever supervises it from outside."""

from __future__ import annotations

import http.client
import sys

import click

from dafka.cli.options import seconds, usage_mistakes
from dafka.config import MetricsConfig
from dafka.operations.addresses import split_address

ANSWER_BYTES_MAX = 4096


@click.command()
@click.argument("address", metavar="[ADDRESS:]PORT")
@click.option("--live", is_flag=True, help="Ask only whether it must be started anew, not whether it is ready.")
@click.option(
    "--timeout", type=seconds, default=5.0, show_default=True, metavar="SECONDS", help="Wait for the answer so long."
)
def health(address: str, live: bool, timeout: float) -> None:
    """Ask a command that runs with --metrics [ADDRESS:]PORT how it does.

    Exits with 0 where it is ready to do its work, else with 1, and says why in one sentence: a probe for containers.
    """
    with usage_mistakes():
        host, port = split_address(MetricsConfig(listen=address).listen)
    status, sentence = _ask(host, port, "/livez" if live else "/readyz", timeout)
    click.echo(sentence)
    sys.exit(0 if status == 200 else 1)


def _ask(host: str, port: int, path: str, timeout: float) -> tuple[int, str]:
    """The status, or 0 where there is no answer, and what is to be said of it."""
    connection = http.client.HTTPConnection(host, port, timeout=timeout)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read(ANSWER_BYTES_MAX).decode("utf-8", "replace")
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return 0, f"no answer from {host} port {port}: {reason}"
    finally:
        connection.close()
    return response.status, " ".join(body.split()) or f"status {response.status}"
