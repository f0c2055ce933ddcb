"""`make demo`: pipeline.py fails at its fourth step, is started again, and reuses what is done.

The failure is real: step 4 requests exchange rates from a small local service, which isn't running yet on the first run.
The pipeline doesn't know that it is part of a demo.
"""

from __future__ import annotations

import http.server
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd

from oncemore import History

HERE = Path(__file__).resolve().parent
PLACE = HERE / ".demo"
STEPS = ["load", "clean", "features", "train", "report"]


def main() -> int:
    shutil.rmtree(PLACE, ignore_errors=True)
    PLACE.mkdir()
    write_orders(PLACE / "orders.csv")
    port = free_port()

    heading("First run: the exchange rate service isn't running yet")
    code, ran, _ = run_pipeline(port)
    if code == 0 or ran != STEPS[:3]:
        return trouble(f"the first run should have failed at its fourth step, but ran {ran}")

    heading("Second run, same command: the service is running now")
    with rate_service(port):
        code, ran, reused = run_pipeline(port)
    if code != 0:
        return trouble("the second run should have succeeded")
    if (ran, reused) != (STEPS[3:], STEPS[:3]):
        return trouble(f"the second run should have run only {STEPS[3:]}, but ran {ran}")

    python, command = Path(sys.executable), Path(sys.executable).with_name("oncemore")
    heading("Now you: paste these here")
    print(
        f"""\
cd {shown(PLACE)}

# What happened, and why a step ran
{shown(command, PLACE)} show churn-nov
{shown(command, PLACE)} why churn-nov train

# Go back to before `features` and run again: it and `train` run, and `train`
# fails, because the exchange rate service has stopped
{shown(command, PLACE)} rollback churn-nov --before features --yes
{shown(python, PLACE)} ../pipeline.py orders.csv

Next, edit {shown(HERE / "pipeline.py", PLACE)} and run it again. Change a comment, and no step
runs because of it; change `clean`, and it runs again with all that uses its
result. The tutorial, {shown(HERE.parent / "docs" / "tutorial.md", PLACE)}, takes ten minutes."""
    )
    return 0


def shown(path: Path, start: Path | None = None) -> str:
    """A path as one types it in the current folder, or in `start`."""
    return shlex.quote(os.path.relpath(path, start or Path.cwd()))


def fitted(line: str) -> str:
    """A line as oncemore shows it on a terminal, where it is cut off at the right margin."""
    line, width = line.rstrip(), shutil.get_terminal_size().columns
    return f"{line[: width - 2]}…" if sys.stdout.isatty() and len(line) >= width else line


def write_orders(path: Path, orders: int = 300_000, customers: int = 6_000) -> None:
    """Two years of synthetic orders, with typical flaws."""
    rng = np.random.default_rng(7)
    customer = rng.integers(customers, size=orders)
    leaves = rng.integers(200, 1_000, size=customers)  # the day on which a customer stops ordering
    day = (rng.random(orders) * np.minimum(leaves[customer], 730)).astype(int)
    frame = pd.DataFrame(
        {
            "customer": customer,
            "day": pd.Timestamp("2023-12-01") + pd.to_timedelta(day, unit="D"),
            "currency": rng.choice(["EUR", "USD", "GBP"], orders, p=[0.6, 0.3, 0.1]),
            "amount": np.where(rng.random(orders) < 0.02, np.nan, rng.lognormal(3.5, 1, orders).round(2)),
        }
    )
    pd.concat([frame, frame.sample(3_000, random_state=7)]).to_csv(path, index=False)


def run_pipeline(port: int) -> tuple[int, list[str], list[str]]:
    """Run the pipeline as a user would and show what it prints; returns its exit code, and the steps that ran and were reused.

    Of a traceback, only the last line is shown.
    """
    env = {**os.environ, "no_proxy": "127.0.0.1", "RATES": f"http://127.0.0.1:{port}/rates.json", "ONCEMORE_LOG": "on"}
    env["PYTHONIOENCODING"] = "utf-8"
    print("$ python ../pipeline.py orders.csv", flush=True)
    before, held = totals(), list[str]()
    with subprocess.Popen(
        [sys.executable, "../pipeline.py", "orders.csv"],
        cwd=PLACE,
        env=env,
        encoding="utf-8",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        assert process.stdout
        for line in process.stdout:
            if held or line.startswith("Traceback"):
                held.append(line)
            else:
                print(fitted(line), flush=True)
    if held:
        print(fitted(f"Traceback ... {held[-1]}"))
    after = totals()
    ran = [step for step in STEPS if after[step][0] > before[step][0]]
    return process.returncode, ran, [step for step in STEPS if after[step][1] > before[step][1]]


def totals() -> dict[str, tuple[int, int]]:
    """How often each step ran and was reused so far."""
    store = PLACE / ".oncemore"
    known = History(store).run("churn-nov").summary().steps if store.exists() else ()
    return {**dict.fromkeys(STEPS, (0, 0)), **{each.step: (each.ran, each.reused) for each in known}}


@contextmanager
def rate_service(port: int) -> Iterator[None]:
    """Answers every request with today's exchange rates."""

    class Rates(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"EUR": 1.0, "USD": 0.86, "GBP": 1.14}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", port), Rates) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield
        server.shutdown()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def heading(text: str) -> None:
    print(f"\n{text}\n{'-' * len(text)}", flush=True)


def trouble(text: str) -> int:
    print(f"\nThe demo failed: {text}.", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
