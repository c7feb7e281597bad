"""The command `dafka-conformance`, also run by `python -m dafka_conformance`."""

import signal


def main() -> None:
    """Run the command. Ctrl-C ends it silently while its modules are loaded."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from dafka_conformance.cli import main as run  # noqa: PLC0415 (after Ctrl-C is handled)

    run(prog_name="dafka-conformance")


if __name__ == "__main__":
    main()
