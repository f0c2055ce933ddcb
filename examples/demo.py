"""`make demo`: pipeline.py fails at its fourth step, runs again, and shows what it reused.

The failure is real: step 4 requests exchange rates from a small local service, which isn't running yet on the first run.
The pipeline doesn't know that it is part of a demo.
"""

from __future__ import annotations

import http.server
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd

HERE = Path(__file__).resolve().parent
PLACE = HERE / ".demo"
STEPS = ["load", "clean", "features", "train", "report"]


def main() -> int:
    shutil.rmtree(PLACE, ignore_errors=True)
    PLACE.mkdir()
    write_orders(PLACE / "orders.csv")
    port = free_port()

    heading("First run: the exchange rate service isn't running yet")
    code, first, seconds = run_pipeline(port)
    if code == 0 or through(first) != STEPS[:3]:
        return trouble("the first run should have failed at its fourth step")
    print(f"\n  failed at step 4 of 5, after {seconds:.1f} s")

    heading("Second run, same command: the service is running now")
    with rate_service(port):
        code, second, again = run_pipeline(port)
    ran, reused = counted(second, "ran:"), counted(second, "reused:")
    if code != 0:
        return trouble("the second run should have succeeded")
    if reused != STEPS[:3] or ran != STEPS[3:]:
        return trouble(f"the second run should have run only {STEPS[3:]}, but ran {ran}")

    heading("What happened")
    print(f"  {'step':<12}{'first run':<14}second run")
    for step, before, after in zip(STEPS, ["ran"] * 3 + ["failed", ""], ["reused"] * 3 + ["ran"] * 2, strict=True):
        print(f"  {step:<12}{before:<14}{after}")
    print(f"  {'':<12}{f'{seconds:.1f} s':<14}{again:.1f} s")
    return 0


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


def run_pipeline(port: int) -> tuple[int, list[str], float]:
    """Run the pipeline as a user would, show its output, and return exit code, lines and seconds."""
    env = {**os.environ, "no_proxy": "127.0.0.1", "RATES": f"http://127.0.0.1:{port}/rates.json"}
    command = [sys.executable, "../pipeline.py", "orders.csv"]
    print("  $ python ../pipeline.py orders.csv", flush=True)
    start, lines = time.perf_counter(), []
    with subprocess.Popen(
        command, cwd=PLACE, env=env, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout
        assert process.stderr
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
        errors = process.stderr.read()
    if process.returncode:
        print(f"  {errors.strip().splitlines()[-1]}" if errors.strip() else "", flush=True)
    elif errors:
        print(errors, end="")
    return process.returncode, lines, time.perf_counter() - start


def through(lines: list[str]) -> list[str]:
    """The completed steps: after each, the pipeline prints the time and the step's name."""
    return [match[1] for line in lines if (match := re.match(r" +[\d.]+ s +(\w+)", line))]


def counted(lines: list[str], label: str) -> list[str]:
    """The steps on the line that starts with `label`, in pipeline order."""
    words = [word.rpartition(".")[2] for line in lines if line.startswith(label) for word in line.split()[1:]]
    return [step for step in STEPS if step in words]


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
