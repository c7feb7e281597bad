"""`dafka health`: whether a running command is well, for whoever supervises it from outside."""

from __future__ import annotations

import http.client
import sys

import click

from dafka.cli.options import DURATION, usage_mistakes
from dafka.config import MetricsConfig

ANSWER_BYTES_MAX = 4096


@click.command()
@click.argument("address", metavar="[ADDRESS:]PORT")
@click.option("--live", is_flag=True, help="Ask only whether it must be restarted, not whether it is ready.")
@click.option(
    "--timeout",
    type=DURATION,
    default="5s",
    show_default=True,
    metavar="DURATION",
    help="How long to wait for the answer.",
)
def health(address: str, live: bool, timeout: int) -> None:
    """Ask a running command whether it is healthy.

    The command must run with --metrics-listen [ADDRESS:]PORT. Exits with 0 if it is ready to work, otherwise with 1,
    and prints the reason: a probe for containers.
    """
    with usage_mistakes():
        host, port = MetricsConfig(listen=address).address
    status, sentence = _ask(host, port, "/livez" if live else "/readyz", timeout / 1000)
    click.echo(sentence)
    sys.exit(0 if status == 200 else 1)


def _ask(host: str, port: int, path: str, timeout_s: float) -> tuple[int, str]:
    """The status, or 0 where there is no answer, and what is to be said of it."""
    connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
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
