"""The command line. So far it reads: `oncemore events RUN`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from datetime import datetime, timezone

from . import History, OncemoreError
from .events import Event


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 if it succeeded, 1 if not, 2 if it was not understood."""
    parser = argparse.ArgumentParser(prog="oncemore", description="What a store knows of its runs.")
    commands = parser.add_subparsers(dest="command", required=True)
    events = commands.add_parser("events", help="the events of a run, in order")
    events.add_argument("run", help="the run's id")
    events.add_argument("--store", help="path or URL; default: ONCEMORE_STORE, else ./.oncemore")
    events.add_argument("--since", type=int, default=0, metavar="N", help="only those after event N")
    events.add_argument("--follow", action="store_true", help="go on until nobody has the run open")
    events.add_argument("--jsonl", action="store_true", help="one JSON object a line")
    given = parser.parse_args(arguments)
    show = as_json if given.jsonl else as_text
    try:
        run = History(given.store).run(given.run)
        for event in run.follow(given.since) if given.follow else run.events(given.since):
            print(show(event), flush=given.follow)
    except OncemoreError as error:
        print(f"oncemore: {error}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, BrokenPipeError):  # whoever listened has heard enough
        sys.stderr.close()
        return 0
    return 0


def as_json(event: Event) -> str:
    """One line of JSON: the number, then what is stored."""
    return json.dumps({"seq": event.seq, **json.loads(event.to_json())})


def as_text(event: Event) -> str:
    """One line for people: number, time in UTC, kind, and what it is about."""
    when = datetime.fromtimestamp(event.time, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
    hidden = {"seq", "time", "lane", "traceback", "fingerprint", "entry", "snapshot"}
    facts = "  ".join(f"{name}={value}" for name, value in vars(event).items() if name not in hidden and value != "")
    return f"{event.seq:6}  {when}  {type(event).__name__:16} {facts}".rstrip()


if __name__ == "__main__":
    sys.exit(main())
