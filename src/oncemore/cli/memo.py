"""`memo`: list and remove memoized results."""

from __future__ import annotations

import click

from ..settings import size
from ..stores import shown_url
from . import options
from .options import open_history
from .output import columns, plural, print_result, timestamp
from .prune import parse_size

_FUNCTIONS = columns("function", "calls", "size", "oldest", "newest", "last used", numbers=("calls", "size"))
_CALLS = columns("call", "recorded", "size", "arguments", numbers=("size",), text="arguments")


@click.command()
@click.argument("function", required=False)
@click.option("--call", metavar="NODE", help="Only this call, as the list of a function's calls names it.")
@click.option("--older-than", metavar="AGE", help="Only results recorded longer ago than this: '12h', '30d', '8w'.")
@click.option(
    "--down-to", type=parse_size, metavar="SIZE", help="Only the oldest results, so that the rest take at most SIZE."
)
@click.option("--clear", is_flag=True, help="Remove the results that would be listed.")
@options.reads
@options.yes
def memo(
    function: str | None,
    call: str | None,
    older_than: str | None,
    down_to: int | None,
    clear: bool,
    store: str | None,
    as_json: bool,
    yes: bool,
) -> None:
    """List memoized results by function, or remove some.

    With FUNCTION or an option that selects calls, lists these calls. With --clear, removes them; they run again when they are
    called next. Memoized results belong to no run: `prune` and `rm` leave them alone.
    """
    history, chosen = open_history(store), {"call": call, "older_than": older_than, "down_to": down_to}
    if not clear and function is None and not any(each is not None for each in chosen.values()):
        functions = history.memo()
        table = [
            (
                *(each.function, f"{each.calls:,}", size(each.bytes)),
                *(timestamp(each.oldest), timestamp(each.newest), timestamp(each.used)[:10]),
            )
            for each in functions
        ]
        nothing = [] if functions else [f"No memoized results found in {shown_url(history.store.url)}."]
        print_result(as_json, [each.as_dict() for each in functions], (_FUNCTIONS, table), *nothing)
        return
    found = history.memo_calls(function, call=call, older_than=older_than, down_to=down_to)
    if clear and found:
        total = size(sum(each.bytes for each in found))
        options.confirm(f"Remove {plural(len(found), 'memoized result')} ({total})?", yes)
        found = history.memo_clear(function, call=call, older_than=older_than, down_to=down_to)
    rows = [(each.node, timestamp(each.recorded), size(each.bytes), each.arguments) for each in found]
    total = f"{plural(len(found), 'memoized result')}, {size(sum(each.bytes for each in found))}"
    print_result(as_json, [each.as_dict() for each in found], (_CALLS, rows), total + " removed" * clear)
