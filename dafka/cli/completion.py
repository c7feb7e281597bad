"""`dafka completion`: completion of commands and options in a shell."""

from __future__ import annotations

import click
from click.shell_completion import ShellComplete, get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def completion(shell: str) -> None:
    """Print the code that completes commands and options in a shell.

    Bash 4.4 and later, in ~/.bashrc: eval "$(dafka completion bash)"

    Zsh, in ~/.zshrc after compinit: eval "$(dafka completion zsh)"

    Fish: dafka completion fish > ~/.config/fish/completions/dafka.fish
    """
    found = get_completion_class(shell)
    assert found is not None, shell
    complete = found(click.get_current_context().find_root().command, {}, "dafka", "_DAFKA_COMPLETE")
    click.echo(ShellComplete.source(complete))  # click's own for bash warns where there is no bash
