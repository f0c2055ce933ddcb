"""The program: its commands, and how errors become messages and exit codes."""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import click

from .. import CheckpointWarning, OncemoreError
from ..errors import did_you_mean
from . import BROKEN_PIPE, DECLINED, DONE, FAILED, INTERRUPTED, MEANINGS
from .completion import completion
from .doctor import doctor
from .export import export, import_
from .get import get
from .key import key
from .memo import memo
from .options import Declined
from .output import version_of
from .plan import adopt, audit, plan
from .prune import prune, rm
from .repair import repair
from .rollback import answer, fork, pin, rename, resolve, rollback
from .runs import events, runs, show
from .verify import verify
from .why import diff, why

_COMMANDS: list[click.Command] = [
    *(runs, show, events, why, diff, get, plan, adopt, audit, rollback, fork, rename, pin, resolve, answer),
    *(rm, prune, memo, export, import_, verify, doctor, key, repair, completion),
]
_EPILOG = "\b\nExit codes:\n" + "\n".join(f"{code:5}  {meaning}" for code, meaning in MEANINGS.items())


class Program(click.Group):
    """A group that lists its commands in a sensible order and suggests corrections for mistyped ones."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            raise click.UsageError(f"Unknown command {args[0]!r}.{did_you_mean(args[0], self.commands)}", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            super().invoke(ctx)
        except BrokenPipeError:
            ctx.exit(BROKEN_PIPE)
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)
        except (OncemoreError, OSError) as error:
            click.echo(f"oncemore: {error}", err=True)
            ctx.exit(DECLINED if isinstance(error, Declined) else FAILED)


def _version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        click.echo(f"oncemore {version_of('oncemore')}")
        ctx.exit()


@click.group(cls=Program, epilog=_EPILOG, context_settings={"help_option_names": ["--help", "-h"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Print the version."
)
def program() -> None:
    """Inspect, change and check the runs in a store.

    The store is given by --store, else by ONCEMORE_STORE; the default is the folder .oncemore of the project that you are
    in: the nearest folder, from the working directory upward, with .oncemore, pyproject.toml or .git. All commands
    except `repair` and `key rotate` can be used while jobs are running.
    """


for _command in _COMMANDS:
    program.add_command(_command)


def run(arguments: Sequence[str] | None) -> int:
    """Run one command and return its exit code."""
    for stream in (sys.stdout, sys.stderr):  # names may have characters that the terminal's encoding lacks
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    code = _run(arguments)
    try:
        sys.stdout.flush()  # output to a pipe is buffered, so a closed pipe may only be noticed here
    except BrokenPipeError:
        # Else Python flushes again at exit and prints an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    return code


def _run(arguments: Sequence[str] | None) -> int:
    with warnings.catch_warnings():
        warnings.showwarning = _warn
        try:
            code = program.main(arguments, prog_name="oncemore", standalone_mode=False)
        except click.ClickException as error:
            error.show()
            return error.exit_code
        except click.Abort:
            return INTERRUPTED
        return code if isinstance(code, int) else DONE


def _warn(message: Warning | str, category: type[Warning], *location: Any, **__: Any) -> None:
    ours = issubclass(category, CheckpointWarning)  # otherwise it comes from a script run by plan, adopt or audit
    text = f"oncemore: warning: {message}\n" if ours else warnings.formatwarning(message, category, *location[:2])
    click.echo(text, err=True, nl=False)
