"""The entry point of the command `dafka`: Ctrl-C ends it silently while its modules are loaded."""

from __future__ import annotations

import signal
import sys


def main() -> None:
    """Run `dafka`."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from dafka.errors import MissingExtraError  # noqa: PLC0415 (after Ctrl-C is handled)

    try:
        from dafka.cli import main as run  # noqa: PLC0415

        run(prog_name="dafka")
    except MissingExtraError as error:
        sys.stderr.write(f"Error: {error}\n")
        sys.exit(2)
