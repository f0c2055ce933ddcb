"""A nightly job: reads orders, writes totals per customer, and sends one message that must not be sent twice.

python examples/etl.py FOLDER URL      # kill it, delete its files, run it again
"""

import csv
import json
import sys
import urllib.request
from collections import defaultdict
from pathlib import Path

from oncemore import UnknownOutcome, checkpoint_scope, checkpointed, idempotency_key


@checkpointed(outputs=["{folder}/orders.csv"])
def extract(folder: str, rows: int) -> int:
    with open(Path(folder, "orders.csv"), "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["customer", "amount"])
        writer.writerows([f"c{number % 17}", (number * 7919) % 1000] for number in range(rows))
    return rows


@checkpointed(inputs=["source"], outputs=["{folder}/totals/*.json"])
def transform(source: str, folder: str) -> dict[str, int]:
    totals: dict[str, int] = defaultdict(int)
    with open(source, newline="") as file:
        for row in csv.DictReader(file):
            totals[row["customer"]] += int(row["amount"])
    Path(folder, "totals").mkdir(exist_ok=True)
    for customer, amount in totals.items():
        Path(folder, "totals", f"{customer}.json").write_text(json.dumps({"customer": customer, "amount": amount}))
    return dict(totals)


@checkpointed(effect="once")
def announce(url: str, total: int) -> str:
    body = json.dumps({"total": total, "key": idempotency_key()}).encode()
    with urllib.request.urlopen(urllib.request.Request(url, body), timeout=30) as answer:
        return answer.read().decode()


def main(folder: str, url: str) -> None:
    with checkpoint_scope("etl", workflow="nightly") as run:
        rows = extract(folder, 50_000)
        totals = transform(str(Path(folder, "orders.csv")), folder)
        try:
            receipt = announce(url, sum(totals.values()))
        except UnknownOutcome as cut_off:
            # The service knows the key if the message arrived. A person could check this instead.
            with urllib.request.urlopen(f"{url}?key={cut_off.key}", timeout=30) as answer:
                known = answer.read().decode()
            run.resolve(cut_off.key, happened=bool(known), result=known)
            receipt = announce(url, sum(totals.values()))
    print(f"{rows} rows, {len(totals)} customers, receipt {receipt}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
