"""Generates docs/reference/cli.md from the program: `python -m docs.cli_reference > docs/reference/cli.md`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from oncemore.cli import MEANINGS
from oncemore.cli.app import program

_HEAD = """\
# Command line

This page is generated from the program by `python -m docs.cli_reference`.

`pip install 'oncemore[cli]'` installs the command `oncemore`. The store is given by `--store`, else by `ONCEMORE_STORE`;
the default is the folder `.oncemore` of the project that you are in: the nearest folder, from the working directory upward,
with `.oncemore`, `pyproject.toml` or `.git`. All commands except `repair` and `key rotate` can be used while jobs
are running.

On a terminal, tables are colored and long ones go through a pager; in a pipe, the output is plain columns. Commands that
read have `--json`. Commands that remove something ask for confirmation unless `--yes` is given; without a terminal and
without `--yes`, they do nothing. `oncemore completion bash` (or `zsh`, `fish`) prints a script that enables completion of
commands, options and run ids.
"""


def page() -> str:
    """The whole page."""
    context = click.Context(program, info_name="oncemore", **program.context_settings)
    commands = [program.commands[name] for name in program.list_commands(context)]
    codes = [f"| {code} | {meaning} |" for code, meaning in MEANINGS.items()]
    parts = [
        _HEAD,
        "\n".join(f"- [`oncemore {each.name}`](#{each.name}): {each.get_short_help_str(200)}" for each in commands),
        "\n".join(["## Exit codes", "", "| code | meaning |", "|---|---|", *codes]),
        *("\n\n".join(_command(each, context)) for each in commands),
    ]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _command(command: click.Command, parent: click.Context, heading: str = "##") -> Iterator[str]:
    context = click.Context(command, parent=parent, info_name=command.name)
    yield f"{heading} {context.command_path.partition(' ')[2]}"
    yield f"```text\n{command.get_usage(context).removeprefix('Usage: ')}\n```"
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        yield f"```text\n{paragraph[2:]}\n```" if paragraph.startswith("\b\n") else paragraph.replace("\n", " ")
    lines = [_option(each, context) for each in command.get_params(context) if isinstance(each, click.Option)]
    yield "\n".join(["| option | |", "|---|---|", *lines])
    for each in command.commands.values() if isinstance(command, click.Group) else ():
        yield from _command(each, context, f"{heading}#")


def _option(option: click.Option, context: click.Context) -> str:
    record = option.get_help_record(context)
    assert record is not None
    return f"| `{record[0].replace('|', chr(92) + '|')}` | {option.help} |"


if __name__ == "__main__":
    print(page(), end="")
