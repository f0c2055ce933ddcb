"""`completion`: the shell completes commands, options and the ids of runs."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that lets a shell complete.

    It completes commands, options, run ids and checkpoints. To have it in every session:

    \b
    eval "$(oncemore completion bash)"   in ~/.bashrc
    eval "$(oncemore completion zsh)"    in ~/.zshrc
    oncemore completion fish | source    in ~/.config/fish/config.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(ctx.find_root().command, {}, "oncemore", "_ONCEMORE_COMPLETE").source())
