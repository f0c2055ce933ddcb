"""The program: its commands, and what becomes of errors."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import click

from .. import CheckpointWarning, OncemoreError
from . import completion, doctor, get, key, plan, prune, repair, rollback, runs, transfer, verify, why
from .codes import DECLINED, DONE, FAILED, INTERRUPTED, MEANINGS, UNHEARD
from .names import alike
from .options import Declined
from .output import version_of

_COMMANDS: list[click.Command] = [
    runs.runs,
    runs.show,
    runs.events,
    why.why,
    why.diff,
    get.get,
    plan.plan,
    plan.adopt,
    plan.audit,
    rollback.rollback,
    rollback.fork,
    rollback.rename,
    rollback.pin,
    rollback.resolve,
    prune.rm,
    prune.prune,
    transfer.export,
    transfer.import_,
    verify.verify,
    doctor.doctor,
    key.key,
    repair.repair,
    completion.completion,
]
_EPILOG = "\b\nExit codes:\n" + "\n".join(f"{code:5}  {meaning}" for code, meaning in MEANINGS.items())


class Program(click.Group):
    """A group that lists its commands in the order of their use, and knows names that are nearly right."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            raise click.UsageError(f"There is no command {args[0]!r}.{alike(args[0], self.commands)}", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            super().invoke(ctx)
        except BrokenPipeError:
            ctx.exit(UNHEARD)
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)
        except (OncemoreError, OSError) as error:
            click.echo(f"oncemore: {error}", err=True)
            ctx.exit(DECLINED if isinstance(error, Declined) else FAILED)


def _version(ctx: click.Context, param: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        click.echo(f"oncemore {version_of('oncemore')}")
        ctx.exit()


@click.group(cls=Program, epilog=_EPILOG, context_settings={"help_option_names": ["--help", "-h"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Print the version."
)
def program() -> None:
    """What a store knows of its runs: read it, reshape it, check it.

    The store is the one of --store, else of ONCEMORE_STORE, else ./.oncemore. Every command can be used while jobs run.
    """


for _command in _COMMANDS:
    program.add_command(_command)


def run(arguments: Sequence[str] | None) -> int:
    """Run one command; the exit code."""
    code = _run(arguments)
    try:
        sys.stdout.flush()  # a pipe holds back what is written to it: that nobody reads it may show only now
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python tries again, and complains
        return UNHEARD
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


def _warn(message: Warning | str, category: type[Warning], *where: Any, **__: Any) -> None:
    ours = issubclass(category, CheckpointWarning)  # else it is of a script that is looked at
    text = f"oncemore: warning: {message}\n" if ours else warnings.formatwarning(message, category, *where[:2])
    click.echo(text, err=True, nl=False)
