"""The entry points of the installed commands. Each makes Ctrl-C end the process silently, then loads its modules."""

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
        _exit(error)


def conformance() -> None:
    """Run `dafka-conformance`."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from dafka.errors import MissingExtraError  # noqa: PLC0415
    from dafka.extras import require_extra  # noqa: PLC0415

    try:
        with require_extra("conformance", "dafka-conformance"):
            from dafka_conformance.cli import main as run  # noqa: PLC0415

            run(prog_name="dafka-conformance")
    except MissingExtraError as error:
        _exit(error)


def _exit(error: Exception) -> None:
    sys.stderr.write(f"Error: {error}\n")
    sys.exit(2)
