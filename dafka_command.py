"""The `dafka` command's first step: an interrupt while its modules are loading ends it without a traceback."""

import signal


def main() -> None:
    """Runs the command line."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from dafka.cli import main as run  # noqa: PLC0415 (loaded only once an interrupt is harmless)

    run()
