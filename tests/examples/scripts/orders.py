"""Orders by customer, from a file to a file."""

from pathlib import Path

import pandas as pd

from oncemore import checkpoint_scope, checkpointed

SOURCE = Path("orders.csv")
rejected = []


@checkpointed
def extract():
    print("... extract")
    return pd.read_csv(SOURCE)


@checkpointed
def clean(frame):
    print("... clean")
    rejected.extend(frame[frame.amount <= 0].order.tolist())
    return frame[frame.amount > 0].reset_index(drop=True)


@checkpointed
def rates():
    print("... rates")
    with open("rates.txt") as file:
        return {line.split()[0]: float(line.split()[1]) for line in file}


@checkpointed
def total(frame, factors):
    print("... total")
    frame["euro"] = frame.amount * frame.currency.map(factors)
    return frame.groupby("customer", as_index=False).euro.sum()


@checkpointed(outputs=["totals.csv"])
def load(totals):
    print("... load")
    totals.to_csv("totals.csv", index=False)


with checkpoint_scope("orders"):
    orders = clean(extract())
    totals = total(orders, rates())
    load(totals)

print(orders.to_string())
print(totals.to_string())
print("rejected:", rejected)
print(Path("totals.csv").read_text())
