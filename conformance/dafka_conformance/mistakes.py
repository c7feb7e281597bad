"""What is asked for wrongly: one sentence on standard error, and exit status 2."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import click


class Mistake(click.UsageError):
    """Something was asked for wrongly: one sentence, and exit status 2."""

    def show(self, file: IO[Any] | None = None) -> None:
        """Says so on standard error."""
        complain(self.message)


class Commands(click.Group):
    """Says click's own usage errors in a sentence too, and lists the commands in the order in which one needs them.

    Each is listed with its whole first sentence.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order in which they were added."""
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Each with its whole first sentence."""
        rows = [(name, command.get_short_help_str(limit=1000)) for name, command in self.commands.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Reads the command line. Raises `Mistake`."""
        with _mistakes():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        """Carries it out. Raises `Mistake`."""
        with _mistakes():
            return super().invoke(ctx)


@contextmanager
def _mistakes() -> Iterator[None]:
    try:
        yield
    except click.UsageError as error:
        is_help = type(error).__name__ == "NoArgsIsHelpError"  # click 8.2 has it, and prints the help
        if isinstance(error, Mistake) or is_help:
            raise
        raise Mistake(" ".join(error.format_message().split())) from None


def complain(sentence: str) -> None:
    """Says a sentence on standard error, in the command's name."""
    click.echo(f"dafka-conformance: {sentence}", err=True)
