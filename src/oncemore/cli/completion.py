"""`completion`: shell completion of commands, options, run ids and checkpoints."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a shell completion script.

    It completes commands, options, run ids and checkpoints. To enable it in every session, add this line:

    \b
    eval "$(oncemore completion bash)"   in ~/.bashrc
    eval "$(oncemore completion zsh)"    in ~/.zshrc
    oncemore completion fish | source    in ~/.config/fish/config.fish
    """
    completion_class = get_completion_class(shell)
    assert completion_class is not None
    click.echo(completion_class(ctx.find_root().command, {}, "oncemore", "_ONCEMORE_COMPLETE").source())
