"""The commands' first step: an interrupt while their modules are loading ends them without a traceback."""

import signal


def main() -> None:
    """Runs `dafka`."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from dafka.cli import main as run  # noqa: PLC0415 (loaded only once an interrupt is harmless)

    run()


def conformance() -> None:
    """Runs `dafka-conformance`."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from dafka_conformance.cli import main as run  # noqa: PLC0415

    run()
